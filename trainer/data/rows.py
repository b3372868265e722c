"""Rows of a snapshot, read from its parquet file and checked; what cannot be used is counted by reason."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.prompts import Split, prompt_hash, split
from trainer.errors import NoUsableRows, SnapshotRefused


class Drop(StrEnum):
    """Why a row was not used."""

    MISSING_TEXT = "missing_text"
    BAD_WEIGHT = "bad_weight"
    ZERO_WEIGHT = "zero_weight"
    EMPTY_PROMPT = "empty_prompt"
    EMPTY_ANSWER = "empty_answer"
    PROMPT_ENDS_WITH_ANSWER = "prompt_ends_with_answer"
    CONTROL_MARK_IN_TEXT = "control_mark_in_text"
    TEMPLATE_REFUSED = "template_refused"
    REPEATED_BOS = "repeated_bos"
    UNSTABLE_BOUNDARY = "unstable_boundary"
    IDENTICAL_ANSWERS = "identical_answers"
    IDENTICAL_AFTER_TRUNCATION = "identical_after_truncation"
    UNKNOWN_TO_POLICY = "unknown_to_policy"


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two answers to one prompt.

    Attributes:
        prompt: Messages of `role` and `content`, oldest first; the last is not the assistant's.
        chosen: The preferred answer.
        rejected: The other one.
        weight: Above zero.
        prompt_hash: Identity of the prompt.
        chosen_policy: The policy that wrote the chosen answer.
        rejected_policy: The policy that wrote the rejected answer.
    """

    prompt: tuple[Mapping[str, str], ...]
    chosen: str
    rejected: str
    weight: float
    prompt_hash: str
    chosen_policy: str | None = None
    rejected_policy: str | None = None


@dataclass(frozen=True, slots=True)
class DemonstrationRow:
    """One good answer to a prompt; attributes as in `PairRow`."""

    prompt: tuple[Mapping[str, str], ...]
    completion: str
    weight: float
    prompt_hash: str


Row = TypeVar("Row", PairRow, DemonstrationRow)


@dataclass(frozen=True)
class Read(Generic[Row]):
    """What a file held.

    Attributes:
        rows: The usable rows, in the file's order.
        dropped: How many rows were not usable, by reason.
        total: How many rows the file held.
    """

    rows: list[Row]
    dropped: Counter[Drop]
    total: int


class Unusable(Exception):
    """One row cannot be used; it is counted, never shown."""

    def __init__(self, reason: Drop) -> None:
        super().__init__(reason.value)
        self.reason = reason


def read_pairs(path: Path) -> Read[PairRow]:
    """Reads preference pairs.

    Raises:
        SnapshotRefused: The file is no parquet file, lacks a column, or holds a held-out prompt.
    """
    return _read(path, ("prompt", "chosen", "rejected", "weight", "prompt_hash"), _pair)


def read_demonstrations(path: Path) -> Read[DemonstrationRow]:
    """Reads demonstrations.

    Raises:
        SnapshotRefused: The file is no parquet file, lacks a column, or holds a held-out prompt.
    """
    return _read(path, ("prompt", "completion", "weight", "prompt_hash"), _demonstration)


def require_usable(name: str, usable: int, total: int, dropped: Mapping[Drop, int]) -> None:
    """Refuses a snapshot without a single usable row.

    Raises:
        NoUsableRows: There is none; the message has the counts by reason.
    """
    if usable:
        return
    if not total:
        raise NoUsableRows(f"{name} holds no rows at all; widen the snapshot's filter")
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()))
    raise NoUsableRows(
        f"{name}: none of {total} rows can be used ({reasons}); mend the rows or widen the snapshot's filter"
    )


def _read(path: Path, columns: tuple[str, ...], parse: Callable[[dict[str, Any]], Row]) -> Read[Row]:
    rows: list[Row] = []
    dropped: Counter[Drop] = Counter()
    total = 0
    for record in _records(path, columns):
        total += 1
        try:
            row = parse(record)
        except Unusable as unusable:
            dropped[unusable.reason] += 1
            continue
        if split(prompt_hash(row.prompt)) is Split.HELDOUT:
            raise SnapshotRefused(
                f"{path}, row {total}: its prompt is held out and must never train; build the snapshot again"
            )
        rows.append(row)
    return Read(rows, dropped, total)


def _records(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise SnapshotRefused(f"{path} cannot be read as parquet: {error}") from error
    with file:
        missing = [column for column in columns if column not in file.schema_arrow.names]
        if missing:
            raise SnapshotRefused(
                f"{path} lacks the columns {', '.join(missing)}: it is no snapshot of the kind needed"
            )
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def _pair(record: dict[str, Any]) -> PairRow:
    chosen, rejected = _text(record["chosen"]), _text(record["rejected"])
    if chosen == rejected:
        raise Unusable(Drop.IDENTICAL_ANSWERS)
    return PairRow(
        prompt=_prompt(record["prompt"]),
        chosen=chosen,
        rejected=rejected,
        weight=_weight(record["weight"]),
        prompt_hash=record["prompt_hash"],
        chosen_policy=record.get("chosen_policy"),
        rejected_policy=record.get("rejected_policy"),
    )


def _demonstration(record: dict[str, Any]) -> DemonstrationRow:
    return DemonstrationRow(
        prompt=_prompt(record["prompt"]),
        completion=_text(record["completion"]),
        weight=_weight(record["weight"]),
        prompt_hash=record["prompt_hash"],
    )


def _text(value: str | None) -> str:
    if value is None:
        raise Unusable(Drop.MISSING_TEXT)
    if not value.strip():
        raise Unusable(Drop.EMPTY_ANSWER)
    return value


def _prompt(value: list[dict[str, str]] | None) -> tuple[Mapping[str, str], ...]:
    if not value or not any((message["content"] or "").strip() for message in value):
        raise Unusable(Drop.EMPTY_PROMPT)
    if any(message["role"] is None or message["content"] is None for message in value):
        raise Unusable(Drop.MISSING_TEXT)
    if value[-1]["role"] == "assistant":
        raise Unusable(Drop.PROMPT_ENDS_WITH_ANSWER)
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


def _weight(value: float | None) -> float:
    if value is None or not math.isfinite(value) or value < 0:
        raise Unusable(Drop.BAD_WEIGHT)
    if value == 0:
        raise Unusable(Drop.ZERO_WEIGHT)
    return value
