"""Schema `operations`: is everything alive, and what asks for a person's attention."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import DateTime, ForeignKey
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


class Loop(Base):
    """One turn of the loop: from a snapshot of what people preferred to a released policy."""

    __tablename__ = "loop"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    model: Mapped[str]
    policy: Mapped[str] = mapped_column(ForeignKey("registry.policy.ref"))
    method: Mapped[str]
    wish: Mapped[Json]
    asked_by: Mapped[str]
    reason: Mapped[str]
    created_at: Mapped[CreatedAt]
    stopped_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    stopped_by: Mapped[str | None]
    stop_reason: Mapped[str | None]


class LoopStep(Base):
    """One step of a turn, carried out by the subsystem it belongs to."""

    __tablename__ = "loop_step"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    loop_id: Mapped[UUID] = mapped_column(ForeignKey(f"{SCHEMA}.loop.id"), primary_key=True)
    step: Mapped[str] = mapped_column(primary_key=True)
    place: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="waiting")
    subject: Mapped[str | None]
    detail: Mapped[Json] = mapped_column(server_default="{}")
    error: Mapped[str | None]
    tries: Mapped[int] = mapped_column(server_default="0")
    started_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
