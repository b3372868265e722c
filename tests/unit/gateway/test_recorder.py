"""The recorder while PostgreSQL is away: what each call promises, and what the spool then holds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.jsonable import loads
from gateway.recorder import Recorder
from gateway.replay import Record, Replay
from gateway.spool import orphans
from ratchet.errors import EnvironmentFault, SpoolFull
from ratchet.ids import new_id
from ratchet.settings import FullSpool
from tests.support.recording import NOWHERE, closing, opening, settings

Start = Callable[..., Recorder]
SMALL = 1 << 16
HALF = "x" * 25_000


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts recorders that no database answers; stopped in the end."""
    started: list[Recorder] = []

    def make(**fields: Any) -> Recorder:
        recorder = Recorder(settings(NOWHERE, tmp_path, **fields), "gateway")
        recorder.start()
        started.append(recorder)
        return recorder

    yield make
    for recorder in started:
        recorder.stop(1)


def left_behind(root: Path) -> tuple[list[Record], list[Record]]:
    """The records that stopped recorders left: those with a closing, and those without."""
    whole: list[Record] = []
    partly: list[Record] = []
    for claim in orphans(root, set()):
        replay = Replay(claim.segments)
        while found := replay.read(100, 1 << 20):
            whole += found
        partly += replay.abandoned()
        assert replay.damage == []
        claim.release(remove=False)
    return whole, partly


def said(record: Record) -> dict[int, str]:
    return {index: text.decode("utf-8", "surrogatepass") for index, text in record.texts.items()}


def ending(record: Record) -> dict[str, Any]:
    assert record.closing is not None
    return loads(record.closing)


def test_what_was_begun_said_and_ended_is_in_the_spool_when_nothing_could_be_stored(
    start: Start, tmp_path: Path
) -> None:
    recorder = start()
    asked = opening(user_id="\ud800\x00")
    handle = recorder.begin(asked)
    other = recorder.begin(opening())
    handle.delta(0, "Blue")
    handle.delta(1, "\x00\udfff")
    handle.delta(0, ", mostly.")
    handle.end(closing())
    other.delta(0, "Bec")
    status = recorder.status()
    assert (status["written"], status["open"], status["depth"], status["flushed"]) == (2, 1, 1, 0)
    assert (status["full"], status["failed_open"], status["held"]) == (False, 0, 0)
    recorder.stop(1)
    assert "127.0.0.1" in recorder.status()["last_error"]

    (whole,), (partly,) = left_behind(tmp_path)
    assert UUID(bytes=whole.id) == asked.id
    assert loads(whole.opening)["user_id"] == "\ud800\x00"
    assert said(whole) == {0: "Blue, mostly.", 1: "\x00\udfff"}
    assert ending(whole)["finish_reason"] == "stop"
    assert (said(partly), partly.closing) == ({0: "Bec"}, None)


def test_a_recorder_that_recorded_nothing_leaves_nothing(start: Start, tmp_path: Path) -> None:
    start().stop(1)
    assert list(tmp_path.iterdir()) == []


def test_ending_twice_keeps_the_first_end_and_text_after_it_is_refused(start: Start, tmp_path: Path) -> None:
    recorder = start()
    handle = recorder.begin(opening())
    handle.end(closing())
    handle.end(closing(status="cancelled"))
    with pytest.raises(RuntimeError, match="takes no more text"):
        handle.delta(0, "late")
    recorder.stop(1)
    (whole,), partly = left_behind(tmp_path)
    assert (ending(whole)["status"], said(whole), partly) == ("ok", {}, [])


def test_a_spool_at_its_limit_refuses_new_requests_and_lets_those_under_way_end(
    start: Start, tmp_path: Path
) -> None:
    recorder = start(spool_max_bytes=SMALL)
    handle = recorder.begin(opening())
    handle.delta(0, HALF)
    handle.delta(0, HALF)
    with pytest.raises(SpoolFull, match="RATCHET_SPOOL_MAX_BYTES"):
        recorder.begin(opening(messages=[{"role": "user", "content": HALF}]))
    assert recorder.status()["full"]
    handle.end(closing())
    recorder.stop(1)
    (whole,), partly = left_behind(tmp_path)
    assert (said(whole), ending(whole)["status"], partly) == ({0: HALF * 2}, "ok", [])


def test_closed_a_piece_that_finds_no_room_must_not_leave_and_the_end_waits_for_room(
    start: Start, tmp_path: Path
) -> None:
    recorder = start(spool_max_bytes=SMALL)
    handle, filler = recorder.begin(opening()), recorder.begin(opening(stream=False))
    handle.delta(0, HALF)
    handle.delta(0, HALF)
    with pytest.raises(SpoolFull):
        handle.delta(0, HALF)
    with pytest.raises(SpoolFull):
        filler.end(closing(outputs=[{"index": 0, "text": HALF, "finish_reason": "stop"}]))
    filler.end(closing(status="error"))
    assert recorder.status()["held"] == 1
    assert (recorder.status()["open"], recorder.status()["depth"]) == (1, 1)
    handle.end(closing(status="error", error_code="recorder_full"))
    recorder.stop(1)
    (whole,), (partly,) = left_behind(tmp_path)
    assert (said(whole), ending(whole)["error_code"]) == ({0: HALF * 2}, "recorder_full")
    assert partly.id != whole.id


def test_open_an_answer_passes_without_a_record_and_is_counted(start: Start, tmp_path: Path) -> None:
    recorder = start(spool_max_bytes=SMALL, spool_full=FullSpool.FAIL_OPEN)
    handle = recorder.begin(opening())
    handle.delta(0, HALF)
    handle.delta(0, HALF)
    handle.delta(0, HALF)
    passed = recorder.begin(opening(messages=[{"role": "user", "content": HALF}]))
    assert (handle.recorded, passed.recorded) == (True, False)
    passed.delta(0, "unheard")
    passed.end(closing())
    assert recorder.status()["failed_open"] == 1
    handle.end(closing())
    assert recorder.status()["held"] == 1
    recorder.stop(1)
    whole, (partly,) = left_behind(tmp_path)
    assert (whole, said(partly)) == ([], {0: HALF * 2})


def test_after_the_stop_nothing_is_taken_any_more(start: Start) -> None:
    recorder = start()
    handle = recorder.begin(opening())
    recorder.stop(1)
    recorder.stop(1)
    with pytest.raises(SpoolFull, match="the gateway is stopping"):
        recorder.begin(opening())
    with pytest.raises(SpoolFull):
        handle.delta(0, "late")


def test_a_recorder_must_be_started_and_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not started"):
        Recorder(settings(NOWHERE, tmp_path), "gateway").begin(opening(new_id()))
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="RATCHET_SPOOL_DIR"):
        Recorder(settings(NOWHERE, tmp_path / "file"), "gateway").start()
