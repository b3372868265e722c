"""Snapshots: one digest for the same rows in any order, nothing held out, whole or not at all."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.errors import FormatError, SnapshotError
from feedback.rows import Kind, PreferenceRow, Row, canonical, hash_of_prompt
from feedback.rule import AnyKept, Kept
from feedback.snapshot import Member, Snapshot, open_snapshot, write_snapshot
from feedback.sorting import digest_of_rows
from ratchet.prompts import Split, hash_of_text, split
from tests.unit.feedback.builders import (
    NOON,
    demonstration_row,
    demonstration_rows,
    pair_row,
    preference_rows,
    prompt,
    question,
)


def built(
    root: Path,
    *rows: AnyKept | Row,
    kind: Kind = Kind.PAIRS,
    dropped: dict[str, int] | None = None,
    **options: object,
) -> Snapshot:
    kept = [row if isinstance(row, Kept) else Kept(row) for row in rows]
    return write_snapshot(
        root, kind, kept, wanted={"min_votes": 1}, dropped=dropped or {}, created=NOON, **options
    )


CANONICAL = (
    '{"chosen":"chosen 0","chosen_decode":"d2","chosen_policy":"demo@2","chosen_response_id":"c0",'
    '"created_at":"2026-03-01T12:00:00.000000Z","prompt":[{"content":"caf\\u00e9","role":"user"}],'
    '"prompt_hash":"850f7dc43910ff890f8879c0ed26fe697c93a067ad93a7d50f466a7028a9bf4e",'
    '"rejected":"rejected 0",'
    '"rejected_decode":"d1","rejected_policy":"demo@1","rejected_response_id":"r0","source":"comparison",'
    '"votes":3,"weight":1.0}'
)


def test_the_canonical_row_and_its_digest_by_hand():
    row = pair_row(asked="café", weight=1)
    assert row.prompt_hash == hashlib.sha256("café".encode()).hexdigest()
    assert canonical(row) == CANONICAL
    expected = hashlib.sha256(b"ratchet pairs 1\n" + CANONICAL.encode() + b"\n").hexdigest()
    assert digest_of_rows(Kind.PAIRS, [row]) == expected
    with pytest.raises(ValueError, match="no time zone"):
        canonical(replace(row, created_at=NOON.replace(tzinfo=None)))
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(replace(row, weight=float("nan")))


def test_a_snapshot_holds_what_its_manifest_says(tmp_path: Path):
    train, validation, heldout = (question(part) for part in Split)
    rows = [
        pair_row(1, asked=train, chosen="longer"),
        pair_row(2, asked=train, chosen_policy="human:edit", source="edit"),
        pair_row(3, asked=validation, chosen_policy="demo@1"),
        pair_row(4, asked=heldout),
        pair_row(1, asked=train, chosen="longer"),
        pair_row(5, asked=train),
    ]
    suite = frozenset({hash_of_text("another")})
    snapshot = built(
        tmp_path, *rows, pair_row(6, asked="another"), dropped={"tie": 2, "held_out": 1}, held_out=suite
    )
    manifest = snapshot.manifest
    assert snapshot.path == tmp_path / manifest.digest
    assert manifest.digest == digest_of_rows(Kind.PAIRS, [*rows[:3], rows[5]])
    assert (manifest.kind, manifest.schema_version, manifest.created) == (Kind.PAIRS, 1, NOON)
    assert manifest.filter == {"min_votes": 1}
    assert manifest.rows == 4
    assert manifest.by_split == {Split.TRAIN: 3, Split.VALIDATION: 1}
    assert manifest.by_policy == {"demo@1": 4, "demo@2": 2}
    assert manifest.by_source == {"comparison": 3, "edit": 1}
    assert manifest.dropped == {"duplicate": 1, "held_out": 3, "tie": 2}
    assert manifest.lengths is not None
    assert manifest.lengths["by_source"]["all"]["pairs"] == 4
    assert {row.chosen for row in snapshot.rows(Split.TRAIN)} == {"longer", "chosen 2", "chosen 5"}
    assert list(snapshot.rows(Split.VALIDATION)) == [rows[2]]
    snapshot.verify()
    assert open_snapshot(snapshot.path) == snapshot
    assert [path.name for path in tmp_path.iterdir()] == [manifest.digest]
    assert sorted(path.name for path in snapshot.path.iterdir()) == [
        "manifest.json",
        "train.parquet",
        "validation.parquet",
    ]
    on_disk = json.loads((snapshot.path / "manifest.json").read_text())
    assert on_disk["digest"] == manifest.digest
    assert on_disk["by_split"] == {"train": 3, "validation": 1}


def test_the_columns_are_those_the_trainer_reads(tmp_path: Path):
    snapshot = built(tmp_path, pair_row())
    table = pq.read_table(snapshot.path / "train.parquet")
    assert table.column_names == [
        "prompt",
        "chosen",
        "rejected",
        "chosen_response_id",
        "rejected_response_id",
        "chosen_policy",
        "rejected_policy",
        "chosen_decode",
        "rejected_decode",
        "source",
        "votes",
        "weight",
        "created_at",
        "prompt_hash",
    ]
    (record,) = table.to_pylist()
    assert record["prompt"] == [{"role": "user", "content": question()}]
    assert (record["weight"], record["votes"], record["created_at"]) == (1.0, 3, NOON)


def test_demonstrations_make_snapshots_the_same_way(tmp_path: Path):
    rows = [demonstration_row(1), demonstration_row(2, asked=question(Split.VALIDATION))]
    snapshot = built(tmp_path, *rows, kind=Kind.DEMONSTRATIONS)
    assert snapshot.manifest.digest != digest_of_rows(Kind.PAIRS, [])
    assert snapshot.manifest.lengths is None
    assert snapshot.manifest.by_policy == {}
    assert list(snapshot.rows(Split.TRAIN)) == rows[:1]
    snapshot.verify()


def test_the_same_rows_built_again_leave_the_folder_alone(tmp_path: Path):
    first = built(tmp_path, pair_row(1), pair_row(2))
    before = {path: path.stat().st_mtime_ns for path in first.path.iterdir()}
    again = built(tmp_path, pair_row(2), pair_row(1), dropped={"tie": 7})
    assert again.path == first.path
    assert again.manifest.dropped == {"tie": 7}
    assert {path: path.stat().st_mtime_ns for path in first.path.iterdir()} == before
    assert open_snapshot(first.path).manifest.dropped == {}
    assert built(tmp_path, pair_row(1)).path != first.path


def test_members_are_told_in_order_with_who_stands_behind_them(tmp_path: Path):
    kept = [
        Kept(
            pair_row(number, asked=question(number=number % 3)), (f"r{number}",), 0.5, "ann", (f"i{number}",)
        )
        for number in range(6)
    ]
    heard: list[Member] = []
    snapshot = built(tmp_path, *kept, member=heard.append, run_bytes=1)
    assert [one.position for one in heard] == list(range(6))
    assert [one.kept.row for one in heard] == list(snapshot.rows(Split.TRAIN))
    assert {one.kept for one in heard} == set(kept)
    assert {one.part for one in heard} == {Split.TRAIN}


def test_dropped_may_be_counted_while_rows_are_read(tmp_path: Path):
    dropped: Counter[str] = Counter()

    def rows() -> Iterator[Kept[PreferenceRow]]:
        yield Kept(pair_row(1))
        dropped["tie"] += 1
        yield Kept(pair_row(2))

    snapshot = write_snapshot(tmp_path, Kind.PAIRS, rows(), wanted={}, dropped=dropped, created=NOON)
    assert snapshot.manifest.dropped == {"tie": 1}


def test_no_rows_make_an_empty_snapshot(tmp_path: Path):
    snapshot = built(tmp_path)
    assert snapshot.manifest.rows == 0
    assert list(snapshot.rows(Split.TRAIN)) == []
    snapshot.verify()


def test_rows_that_lie_are_refused_and_leave_nothing(tmp_path: Path):
    with pytest.raises(ValueError, match="is not that of the row's prompt"):
        built(tmp_path, replace(pair_row(), prompt=prompt("another")))
    with pytest.raises(ValueError, match="a row of demonstrations in a snapshot of pairs"):
        built(tmp_path, demonstration_row())
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_snapshot_is_told(tmp_path: Path):
    snapshot = built(tmp_path, pair_row(1), pair_row(2))
    file = snapshot.path / "train.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(SnapshotError, match=r"train\.parquet: \d+ bytes, \d+ bytes expected"):
        open_snapshot(snapshot.path)
    with pytest.raises(FormatError, match="cannot be read as Parquet"):
        list(snapshot.rows(Split.TRAIN))
    with pytest.raises(SnapshotError, match="delete the folder"):
        built(tmp_path, pair_row(1), pair_row(2))
    file.unlink()
    with pytest.raises(SnapshotError, match="missing"):
        open_snapshot(snapshot.path)
    other = built(tmp_path, pair_row(1))
    file.write_bytes((other.path / "train.parquet").read_bytes())
    with pytest.raises(SnapshotError, match="the rows have digest"):
        snapshot.verify()
    with pytest.raises(SnapshotError, match=r"no snapshot here: manifest\.json is missing"):
        open_snapshot(tmp_path / "gone")
    manifest = snapshot.path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 9}))
    with pytest.raises(SnapshotError, match="schema version 9, this program reads 1"):
        open_snapshot(snapshot.path)
    manifest.write_text("{}")
    with pytest.raises(SnapshotError, match=r"manifest\.json: kind: Field required"):
        open_snapshot(snapshot.path)


def test_a_build_that_fails_leaves_nothing(tmp_path: Path):
    def rows() -> Iterator[Kept[PreferenceRow]]:
        yield Kept(pair_row(1))
        raise RuntimeError("the database went away")

    with pytest.raises(RuntimeError, match="went away"):
        write_snapshot(tmp_path, Kind.PAIRS, rows(), wanted={}, dropped={}, created=NOON)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=40, deadline=None)
@given(
    st.lists(preference_rows, max_size=8) | st.lists(demonstration_rows, min_size=1, max_size=8),
    st.randoms(use_true_random=False),
    st.sampled_from([1, 600, 2**20]),
)
def test_the_digest_is_a_function_of_the_rows(rows: list[Row], shuffler: random.Random, run_bytes: int):
    kind = Kind.PAIRS if not rows or isinstance(rows[0], PreferenceRow) else Kind.DEMONSTRATIONS
    train = [row for row in rows if split(row.prompt_hash) is not Split.HELDOUT]
    shuffled = shuffler.sample(rows, len(rows)) + rows[:2]
    with TemporaryDirectory() as folder:
        snapshot = built(Path(folder), *shuffled, kind=kind, run_bytes=run_bytes)
        assert snapshot.manifest.digest == digest_of_rows(kind, train)
        got = [row for part in (Split.TRAIN, Split.VALIDATION) for row in snapshot.rows(part)]
        assert sorted(map(canonical, got)) == sorted({canonical(row) for row in train})
        assert set(got) == set(train)
        snapshot.verify()


@settings(max_examples=30, deadline=None)
@given(st.lists(preference_rows, min_size=1, max_size=4), st.data())
def test_another_row_has_another_digest(rows: list[PreferenceRow], data: st.DataObject):
    place = data.draw(st.integers(0, len(rows) - 1))
    changed = [replace(row, votes=row.votes + 1) if n == place else row for n, row in enumerate(rows)]
    if set(map(canonical, changed)) != set(map(canonical, rows)):
        assert digest_of_rows(Kind.PAIRS, changed) != digest_of_rows(Kind.PAIRS, rows)


def test_hash_of_prompt_is_the_hash_of_its_text():
    assert hash_of_prompt(prompt()) == hash_of_text(question())
