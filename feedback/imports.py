"""Imports: data sets of others become rows, once each, and never what speaks of held-out prompts."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from feedback.contamination import Contamination, HeldOutIndex, HeldOutPrompt, refusal
from feedback.formats import Format, Skipped, read
from feedback.rows import Kind, Row, record_of
from feedback.rule import is_held_out
from ratchet.canonical import digest_of
from ratchet.db.engine import session_scope
from ratchet.db.models.feedback import ImportedItem
from ratchet.errors import UsageError
from ratchet.ids import new_id

BATCH = 500

_HELD_OUT = text("SELECT suite, prompt_hash, text FROM feedback.heldout_prompt ORDER BY suite, prompt_hash")


class Contaminated(UsageError):
    """An import that speaks of held-out prompts; `found` is the whole list."""

    def __init__(self, found: list[Contamination]) -> None:
        super().__init__(refusal(found))
        self.found = found


@dataclass(slots=True)
class Imported:
    """What an import brought."""

    rows: int = 0
    """Rows of the file."""
    new: int = 0
    repeated: int = 0
    """Rows that were there already."""
    held_out: int = 0
    """New rows whose prompt the split holds out: kept, and never in a snapshot."""
    skipped: Counter[str] = field(default_factory=Counter[str])
    """Lines that can be no row, by reason."""

    def content(self) -> dict[str, Any]:
        """The counts in JSON types."""
        return {
            "rows": self.rows,
            "new": self.new,
            "repeated": self.repeated,
            "held_out": self.held_out,
            "skipped": dict(sorted(self.skipped.items())),
        }


def import_file(engine: Engine, path: Path, format: Format, kind: Kind, *, name: str) -> Imported:
    """Reads a file twice: first against the held-out prompts, then into the database, all or nothing.

    Args:
        engine: As the role `ratchet_feedback`.
        path: The file.
        format: What it is.
        kind: What its rows are.
        name: Name of the import, which stands as policy `import:<name>`.

    Raises:
        FormatError: The file cannot be read, or a line is wrong.
        Contaminated: Rows speak of held-out prompts of a suite; nothing was imported.
    """
    with session_scope(engine) as session:
        index = HeldOutIndex(
            HeldOutPrompt(f"{row.suite}/{row.prompt_hash[:12]}", row.text)
            for row in session.execute(_HELD_OUT)
        )
        found = list(index.check(_rows_of(read(path, format, kind, name=name))))
        if found:
            raise Contaminated(found)
        report = Imported()
        batch: list[Row] = []
        for row in read(path, format, kind, name=name):
            if isinstance(row, Skipped):
                report.skipped[row.reason.value] += 1
                continue
            batch.append(row)
            if len(batch) == BATCH:
                _store(session, batch, kind, name, report)
                batch.clear()
        _store(session, batch, kind, name, report)
        return report


def _rows_of(lines: Iterable[Row | Skipped]) -> Iterator[Row]:
    return (line for line in lines if not isinstance(line, Skipped))


def _store(session: Session, rows: list[Row], kind: Kind, name: str, report: Imported) -> None:
    if not rows:
        return
    values = [_values(row, kind, name) for row in rows]
    stored = session.execute(
        insert(ImportedItem).on_conflict_do_nothing().returning(ImportedItem.prompt_hash), values
    ).scalars()
    fresh = list(stored)
    report.rows += len(rows)
    report.new += len(fresh)
    report.repeated += len(rows) - len(fresh)
    report.held_out += sum(is_held_out(prompt_hash, ()) for prompt_hash in fresh)


def _values(row: Row, kind: Kind, name: str) -> dict[str, Any]:
    record = record_of(row)
    record["created_at"] = None if row.created_at is None else row.created_at.isoformat()
    return {
        "id": new_id(),
        "name": name,
        "kind": kind.value,
        "digest": digest_of(record),
        "row": record,
        "prompt_hash": row.prompt_hash,
    }
