"""Real snapshots, written by feedback's own writer: prompts by number, a preference anyone can see."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path

from feedback.rows import DemonstrationRow, Kind, PreferenceRow, Row, Turn
from feedback.rule import Kept
from feedback.snapshot import write_snapshot
from ratchet.prompts import Split, hash_of_text, split

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GOOD, BAD = "the answer has room to be plain", "nobody will ever know"


def questions(part: Split, number: int) -> list[str]:
    """The first questions that fall into a split."""
    texts = (f"What is the sum of two and {place}?" for place in count())
    return list(islice((text for text in texts if split(hash_of_text(text)) is part), number))


def pairs_snapshot(
    root: Path,
    *,
    rows: int,
    validation: int = 2,
    chosen: str = GOOD,
    rejected: str = BAD,
    policy: str = "import:test",
) -> Path:
    """A folder of pairs in which one answer is always preferred."""

    def made() -> Iterator[Row]:
        for question in (*questions(Split.TRAIN, rows), *questions(Split.VALIDATION, validation)):
            yield PreferenceRow(
                prompt=(Turn("user", question),),
                chosen=chosen,
                rejected=rejected,
                chosen_response_id=None,
                rejected_response_id=None,
                chosen_policy=policy,
                rejected_policy=policy,
                chosen_decode=None,
                rejected_decode=None,
                source="import",
                votes=1,
                weight=1.0,
                created_at=NOON,
                prompt_hash=hash_of_text(question),
            )

    return _written(root, Kind.PAIRS, made())


def demonstrations_snapshot(root: Path, *, rows: int, validation: int = 2, completion: str = GOOD) -> Path:
    """A folder of demonstrations that all say the same."""

    def made() -> Iterator[Row]:
        for question in (*questions(Split.TRAIN, rows), *questions(Split.VALIDATION, validation)):
            yield DemonstrationRow(
                prompt=(Turn("user", question),),
                completion=completion,
                response_id=None,
                policy="import:test",
                decode=None,
                source="import",
                votes=1,
                weight=1.0,
                created_at=NOON,
                prompt_hash=hash_of_text(question),
            )

    return _written(root, Kind.DEMONSTRATIONS, made())


def _written(root: Path, kind: Kind, rows: Iterator[Row]) -> Path:
    kept = [Kept(row) for row in rows]
    return write_snapshot(root, kind, kept, wanted={"source": "import"}, dropped={}, created=NOON).path
