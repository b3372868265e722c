"""Signs of life: one row for each process, overwritten each time."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from ratchet.db.models.operations import Heartbeat


def beat(session: Session, process: str, detail: dict[str, Any]) -> None:
    """Says that a process is alive now.

    Args:
        session: Of a role that may write `operations.heartbeat`.
        process: Its name among all processes of the stack, such as `trainer-worker`.
        detail: Facts in JSON types.
    """
    values = {"beat_at": datetime.now(UTC), "detail": detail}
    session.execute(
        insert(Heartbeat)
        .values(process=process, **values)
        .on_conflict_do_update(index_elements=[Heartbeat.process], set_=values)
    )
