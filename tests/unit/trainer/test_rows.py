"""Rows of a snapshot: what is read, what is counted, what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.prompts import Split, prompt_hash, split
from trainer.data.rows import (
    DemonstrationRow,
    Drop,
    PairRow,
    read_demonstrations,
    read_pairs,
    require_usable,
)
from trainer.errors import NoUsableRows, SnapshotRefused


def prompt_of(wanted: Split, start: int = 0) -> list[dict[str, str]]:
    """A prompt that the split puts where it is wanted."""
    return next(
        messages
        for number in range(start, start + 1000)
        if split(prompt_hash(messages := [{"role": "user", "content": f"Question {number}?"}])) is wanted
    )


PROMPT = prompt_of(Split.TRAIN)


def pair(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": PROMPT,
        "chosen": "Yes.",
        "rejected": "No.",
        "weight": 1.5,
        "prompt_hash": prompt_hash(PROMPT),
        "chosen_policy": "a" * 64,
        "rejected_policy": "import:book",
    } | changes


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(records), path)
    return path


def test_a_pair_is_read_as_it_was_written(tmp_path: Path) -> None:
    read = read_pairs(write(tmp_path / "train.parquet", [pair()]))
    assert read.rows == [
        PairRow(tuple(PROMPT), "Yes.", "No.", 1.5, prompt_hash(PROMPT), "a" * 64, "import:book")
    ]
    assert (read.total, read.dropped) == (1, Counter())


def test_a_demonstration_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = {"prompt": PROMPT, "completion": "Yes.", "weight": 2.0, "prompt_hash": prompt_hash(PROMPT)}
    read = read_demonstrations(write(tmp_path / "train.parquet", [record]))
    assert read.rows == [DemonstrationRow(tuple(PROMPT), "Yes.", 2.0, prompt_hash(PROMPT))]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chosen": None}, Drop.MISSING_TEXT),
        ({"rejected": None}, Drop.MISSING_TEXT),
        ({"chosen": " \n"}, Drop.EMPTY_ANSWER),
        ({"rejected": ""}, Drop.EMPTY_ANSWER),
        ({"rejected": "Yes."}, Drop.IDENTICAL_ANSWERS),
        ({"prompt": []}, Drop.EMPTY_PROMPT),
        ({"prompt": [{"role": "user", "content": "  "}]}, Drop.EMPTY_PROMPT),
        ({"prompt": [*PROMPT, {"role": "user", "content": None}]}, Drop.MISSING_TEXT),
        ({"prompt": [*PROMPT, {"role": "assistant", "content": "Well"}]}, Drop.PROMPT_ENDS_WITH_ANSWER),
        ({"weight": None}, Drop.BAD_WEIGHT),
        ({"weight": float("nan")}, Drop.BAD_WEIGHT),
        ({"weight": float("inf")}, Drop.BAD_WEIGHT),
        ({"weight": -1.0}, Drop.BAD_WEIGHT),
        ({"weight": 0.0}, Drop.ZERO_WEIGHT),
    ],
)
def test_an_unusable_row_is_counted_by_its_reason(
    tmp_path: Path, changes: dict[str, Any], reason: Drop
) -> None:
    read = read_pairs(write(tmp_path / "train.parquet", [pair(), pair(**changes), pair(chosen="Sure.")]))
    assert [row.chosen for row in read.rows] == ["Yes.", "Sure."]
    assert (read.total, read.dropped) == (3, Counter({reason: 1}))


def test_a_held_out_prompt_is_never_trained_on(tmp_path: Path) -> None:
    """Whatever hash the row itself carries."""
    path = write(tmp_path / "train.parquet", [pair(), pair(prompt=prompt_of(Split.HELDOUT))])
    with pytest.raises(SnapshotRefused, match="row 2: its prompt is held out"):
        read_pairs(path)


def test_a_file_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    record = {"prompt": PROMPT, "completion": "Yes.", "weight": 2.0, "prompt_hash": prompt_hash(PROMPT)}
    with pytest.raises(SnapshotRefused, match="lacks the columns chosen, rejected"):
        read_pairs(write(tmp_path / "train.parquet", [record]))


@pytest.mark.parametrize("content", [b"", b"not parquet at all"])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.parquet"
    path.write_bytes(content)
    with pytest.raises(SnapshotRefused, match="cannot be read as parquet"):
        read_pairs(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotRefused, match=r"nowhere\.parquet cannot be read"):
        read_pairs(tmp_path / "nowhere.parquet")


def test_nothing_usable_is_an_error_with_the_counts() -> None:
    with pytest.raises(NoUsableRows, match=r"none of 5 rows can be used \(bad_weight 2, empty_answer 3\)"):
        require_usable("train", 0, 5, Counter({Drop.EMPTY_ANSWER: 3, Drop.BAD_WEIGHT: 2}))
    with pytest.raises(NoUsableRows, match="no rows at all"):
        require_usable("train", 0, 0, {})
    require_usable("train", 1, 5, Counter({Drop.EMPTY_ANSWER: 4}))
