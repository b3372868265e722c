"""Schema `operations`: is everything alive, and what asks for a person's attention."""

from datetime import datetime

from sqlalchemy import DateTime
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.db.base import Base, CreatedAt, Json, Key, Moment

SCHEMA = "operations"


class Heartbeat(Base):
    """The last sign of life of a process; one row for each name."""

    __tablename__ = "heartbeat"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    process: Mapped[str] = mapped_column(primary_key=True)
    beat_at: Mapped[Moment]
    detail: Mapped[Json]


class Alarm(Base):
    """Something an operator must look at; it stands until `cleared_at` is set."""

    __tablename__ = "alarm"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    kind: Mapped[str]
    subject: Mapped[str]
    detail: Mapped[Json]
    raised_at: Mapped[CreatedAt]
    cleared_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
