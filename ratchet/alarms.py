"""What an operator must look at, raised once and standing until it is cleared."""

from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from ratchet.db.models.operations import Alarm
from ratchet.ids import new_id


def raise_alarm(session: Session, kind: str, subject: str, detail: dict[str, Any]) -> None:
    """Raises an alarm, or brings the detail of the one that stands up to date."""
    raised = insert(Alarm).values(id=new_id(), kind=kind, subject=subject, detail=detail)
    session.execute(
        raised.on_conflict_do_update(
            index_elements=["kind", "subject"],
            index_where=text("cleared_at IS NULL"),
            set_={"detail": raised.excluded.detail},
        )
    )
