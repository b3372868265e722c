"""The spool on a real file system: frames, segments, claims, and what damage leaves."""

import os
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.replay import Damage, Record, Replay, closing_body, delta_body
from gateway.spool import (
    CLOSING,
    DELTA,
    MAGIC,
    OPENING,
    Claim,
    Frame,
    GarbledFrame,
    IncompleteFrame,
    Segment,
    Spool,
    decode,
    encode,
    orphans,
)
from ratchet.errors import EnvironmentFault, SpoolFull

A, B = UUID(int=1).bytes, UUID(int=2).bytes

frames = st.builds(
    Frame,
    st.sampled_from([OPENING, DELTA, CLOSING]),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=60),
)


def opened(identity: bytes, body: bytes = b"{}") -> bytes:
    return encode(OPENING, identity, body)


def said(identity: bytes, text: str, index: int = 0) -> bytes:
    return encode(DELTA, identity, delta_body(index, text))


def closed(identity: bytes, at: float = 1.0) -> bytes:
    return encode(CLOSING, identity, closing_body(at, b'{"status":"ok"}'))


def replay_of(*contents: bytes, folder: Path) -> Replay:
    """A replay of sealed segments with these bytes."""
    segments: list[Segment] = []
    for number, content in enumerate(contents, start=1):
        path = folder / f"{number:08}.seg"
        path.write_bytes(content)
        segments.append(Segment(number, path, len(content), sealed=True))
    return Replay(lambda: segments)


def all_frames(data: bytes) -> list[Frame]:
    found: list[Frame] = []
    at = 0
    while at < len(data):
        frame, at = decode(data, at)
        found.append(frame)
    return found


def texts(records: Sequence[Record]) -> list[tuple[int, str]]:
    return [
        (UUID(bytes=record.id).int, record.texts.get(0, bytearray()).decode("utf-8", "surrogatepass"))
        for record in records
    ]


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    return Claim.of_new_folder(tmp_path / "spool", "gateway")


@given(st.lists(frames, max_size=8))
def test_frames_come_back_as_they_were_written(written: list[Frame]) -> None:
    assert all_frames(b"".join(encode(*frame) for frame in written)) == written


@given(st.lists(frames, min_size=1, max_size=5), st.data())
def test_a_frame_cut_anywhere_is_incomplete_and_one_bit_flipped_is_never_taken(
    written: list[Frame], data: st.DataObject
) -> None:
    last = encode(*written[-1])
    cut = data.draw(st.integers(0, len(last) - 1))
    with pytest.raises(IncompleteFrame):
        decode(last[:cut], 0)
    position, bit = data.draw(st.integers(0, len(last) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(last)
    flipped[position] ^= 1 << bit
    with pytest.raises((IncompleteFrame, GarbledFrame)):
        decode(bytes(flipped), 0)


def test_zeros_after_a_loss_of_power_are_no_frames() -> None:
    with pytest.raises(GarbledFrame):
        decode(bytes(64), 0)


def requests(count: int) -> tuple[list[bytes], list[tuple[int, str]]]:
    """Frames of so many interleaved requests, and each request's id and text in the order of closing."""
    identities = [UUID(int=number + 1).bytes for number in range(count)]
    written = [opened(identity) for identity in identities]
    written += [said(identity, f"é{number}") for number, identity in enumerate(identities)]
    written += [said(identity, "\ud800!") for identity in identities]
    written += [closed(identity) for identity in identities]
    return written, [(number + 1, f"é{number}\ud800!") for number in range(count)]


@pytest.mark.parametrize("count", [1, 3])
def test_every_prefix_of_a_segment_replays_to_exactly_its_whole_frames(tmp_path: Path, count: int) -> None:
    written, expected = requests(count)
    whole = MAGIC + b"".join(written)
    ends = [len(MAGIC)]
    for frame in written:
        ends.append(ends[-1] + len(frame))
    for length in range(len(whole) + 1):
        replay = replay_of(whole[:length], folder=tmp_path)
        frames_left = sum(end <= length for end in ends[1:])
        closings = max(0, frames_left - (len(written) - count))
        assert texts(replay.read(100, 1 << 20)) == expected[:closings]
        partly = dict(texts(replay.abandoned()))
        assert len(partly) == min(frames_left, count) - closings
        for number, text in expected[closings:]:
            heard = sum(frames_left > count * step + number - 1 for step in (1, 2))
            assert partly.get(number, "") == ["", text[:2], text][heard]
        assert replay.damage == []


@settings(max_examples=200)
@given(position=st.integers(0), bit=st.integers(0, 7), last=st.booleans())
def test_a_flipped_bit_costs_what_follows_it_and_is_noted_unless_it_looks_like_a_torn_tail(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int, last: bool
) -> None:
    written, expected = requests(2)
    whole = bytearray(MAGIC + b"".join(written))
    position %= len(whole)
    whole[position] ^= 1 << bit
    second = [] if last else [MAGIC + opened(B) + closed(B)]
    folder = tmp_path_factory.getbasetemp() / "garbled"
    folder.mkdir(exist_ok=True)
    replay = replay_of(bytes(whole), *second, folder=folder)
    got = texts(replay.read(100, 1 << 20))

    start, whole_frames = len(MAGIC), 0
    while whole_frames < len(written) and start + len(written[whole_frames]) <= position:
        start += len(written[whole_frames])
        whole_frames += 1
    if position < len(MAGIC):
        start = 0
    closings = max(0, whole_frames - 6)
    assert got[:closings] == expected[:closings]
    assert [number for number, _ in got[closings:]] in ([], [2])
    if not last or replay.damage:
        assert replay.damage == [Damage(folder / "00000001.seg", start)]


def test_segments_hold_records_until_all_in_them_are_settled(tmp_path: Path) -> None:
    replay = replay_of(
        MAGIC + opened(A) + said(A, "one ") + opened(B) + closed(B, 2.0),
        MAGIC + said(A, "two") + closed(A, 3.0),
        folder=tmp_path,
    )
    (second,) = replay.read(1, 1 << 20)
    assert (second.id, second.ended_at, second.closing) == (B, 2.0, b'{"status":"ok"}')
    replay.settle([second])
    assert replay.spent() == []
    (first,) = replay.read(1, 1 << 20)
    assert (texts([first]), first.segments) == ([(1, "one two")], {1, 2})
    assert replay.spent() == []
    replay.settle([first])
    assert replay.spent() == [1, 2]
    assert replay.read(1, 1 << 20) == []


def test_reading_stops_at_the_number_of_records_and_goes_on_from_there(tmp_path: Path) -> None:
    many = b"".join(opened(UUID(int=n).bytes) + closed(UUID(int=n).bytes) for n in range(1, 301))
    replay = replay_of(MAGIC + many, folder=tmp_path)
    sizes = [len(replay.read(128, 1 << 30)) for _ in range(4)]
    assert sizes == [128, 128, 44, 0]


def test_a_frame_larger_than_a_chunk_is_read_whole(tmp_path: Path) -> None:
    text = "x" * (3 << 20)
    replay = replay_of(MAGIC + opened(A) + said(A, text) + said(A, "end") + closed(A), folder=tmp_path)
    (record,) = replay.read(10, 1 << 30)
    assert bytes(record.texts[0]) == text.encode() + b"end"
    assert record.size == len(text) + len(b"end") + len(b"{}") + len(b'{"status":"ok"}')


def test_what_has_no_opening_is_passed_over(tmp_path: Path) -> None:
    replay = replay_of(MAGIC + said(A, "x") + closed(A) + opened(B) + closed(B), folder=tmp_path)
    assert [record.id for record in replay.read(10, 1 << 20)] == [B]
    assert replay.abandoned() == []


def test_a_segment_that_is_shorter_than_its_writer_knows_or_gone_is_damage(tmp_path: Path) -> None:
    content = MAGIC + opened(A) + closed(A)
    path = tmp_path / "00000001.seg"
    path.write_bytes(content[:-3])
    gone = tmp_path / "00000002.seg"
    segments = [Segment(1, path, len(content), sealed=False), Segment(2, gone, 50, sealed=False)]
    replay = Replay(lambda: segments)
    assert replay.read(10, 1 << 20) == []
    assert replay.damage == [Damage(path, len(MAGIC + opened(A))), Damage(gone, 0)]


def test_the_writer_reports_whole_frames_and_seals_segments_that_are_full(claim: Claim) -> None:
    spool = Spool(claim, max_bytes=1 << 16)
    frame = said(A, "x" * 4000)
    for _ in range(5):
        spool.append(frame)
    spool.sync()
    first, second, third = spool.segments()
    assert [(s.number, s.sealed) for s in (first, second, third)] == [(1, True), (2, True), (3, False)]
    assert first.size == len(MAGIC) + 2 * len(frame)
    assert third.size == len(MAGIC) + len(frame)
    assert spool.bytes == sum(s.size for s in spool.segments()) == 3 * len(MAGIC) + 5 * len(frame)
    assert all(s.path.stat().st_size == s.size for s in (first, second, third))
    spool.drop(1)
    assert [s.number for s in spool.segments()] == [2, 3]
    assert not first.path.exists()
    spool.close()
    assert all(s.sealed for s in spool.segments())
    spool.forget_sealed()
    claim.release(remove=True)


def test_the_limit_refuses_new_records_first_and_leaves_the_rest_to_those_under_way(claim: Claim) -> None:
    spool = Spool(claim, max_bytes=1 << 16)
    frame = said(A, "x" * 7000)
    room_for_new = (1 << 16) * 7 // 8
    while spool.bytes + len(frame) + len(MAGIC) <= room_for_new:
        spool.append(frame, new_record=True)
    with pytest.raises(SpoolFull, match="RATCHET_SPOOL_MAX_BYTES raises the limit"):
        spool.append(frame, new_record=True)
    assert spool.full is not None
    spool.append(frame)
    assert spool.full is not None
    with pytest.raises(SpoolFull):
        spool.append(frame)
    assert not spool.probe()
    spool.drop(1)
    spool.drop(2)
    spool.drop(3)
    before = spool.segments()
    assert spool.probe()
    assert (spool.full, [s.size for s in spool.segments()][: len(before)]) == (None, [s.size for s in before])
    spool.foreign_bytes = 1 << 16
    with pytest.raises(SpoolFull):
        spool.append(frame, new_record=True)
    spool.close()
    spool.forget_sealed()
    claim.release(remove=True)


def test_a_frame_larger_than_a_segment_is_sealed_with_it(claim: Claim) -> None:
    spool = Spool(claim, max_bytes=1 << 16)
    spool.append(said(A, "x" * 20_000))
    assert [s.sealed for s in spool.segments()] == [True]
    spool.append(said(A, "y"))
    assert [s.sealed for s in spool.segments()] == [True, False]
    spool.close()
    with pytest.raises(SpoolFull, match="the gateway is stopping"):
        spool.append(said(A, "z"))
    spool.sync()
    claim.release(remove=True)


def test_a_folder_whose_owner_lives_cannot_be_claimed_and_a_dead_ones_only_once(tmp_path: Path) -> None:
    claim = Claim.of_new_folder(tmp_path, "../gate way/1")
    assert claim.folder.name.startswith(f"_gate_way_1-{os.getpid()}-")
    assert Claim.of_orphan(claim.folder) is None
    assert list(orphans(tmp_path, set())) == []
    claim.release(remove=False)
    (heir,) = orphans(tmp_path, set())
    assert heir.folder == claim.folder
    assert list(orphans(tmp_path, set())) == []
    assert list(orphans(tmp_path, {heir.folder})) == []
    heir.release(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_removed_while_its_lock_was_being_taken_is_not_claimed(tmp_path: Path) -> None:
    claim = Claim.of_new_folder(tmp_path, "gateway")
    (claim.folder / "lock").unlink()
    (claim.folder / "lock").touch()
    second = Claim.of_orphan(claim.folder)
    assert second is not None
    second.release(remove=True)
    assert Claim.of_orphan(claim.folder) is None
    claim.release(remove=False)


def test_what_is_not_a_spool_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rejected").mkdir()
    (tmp_path / "rejected" / "x.json").touch()
    (tmp_path / "note").touch()
    assert list(orphans(tmp_path, set())) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["note", "rejected", "x.json"]


def test_a_root_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="set RATCHET_SPOOL_DIR"):
        Claim.of_new_folder(tmp_path / "file", "gateway")
