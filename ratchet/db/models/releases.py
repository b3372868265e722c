"""Schema `releases`: policies on their way to production, and everything that was decided about them."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, DateTime, ForeignKey, LargeBinary
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.db.base import Base, CreatedAt, Json, Key, Moment

SCHEMA = "releases"
OPEN_STATES = ("preparing", "running", "paused", "promoted")


def _ended() -> Any:
    return mapped_column(DateTime(timezone=True))


class Release(Base):
    """One policy's way to production, or back; at most one of a model name is open.

    `plan` is the release plan as it was checked; `stage_number` counts its stages from 0, -1 while the
    engine is made ready. `first_plan` is the traffic plan that gave the policy its first request,
    `stage_plan` that of this stage, and `stage_since` its begin, moved on by the time it was paused.
    `selection_id` is the record that chose the policy, and `overridden` whether an operator released it
    without one. `engine_id` is its engine, `engine_own` whether nothing else had wanted it, and
    `engines_down` when engines that nothing needs any more were let go.
    """

    __tablename__ = "release"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    model: Mapped[str]
    policy: Mapped[str] = mapped_column(ForeignKey("registry.policy.ref"))
    baseline: Mapped[str] = mapped_column(ForeignKey("registry.policy.ref"))
    plan_name: Mapped[str]
    plan: Mapped[Json]
    salt: Mapped[str]
    state: Mapped[str]
    stage: Mapped[str]
    stage_number: Mapped[int]
    stage_since: Mapped[CreatedAt]
    first_plan: Mapped[int | None] = mapped_column(ForeignKey("serving.traffic_plan.version"))
    stage_plan: Mapped[int | None] = mapped_column(ForeignKey("serving.traffic_plan.version"))
    paused_at: Mapped[datetime | None] = _ended()
    engine_id: Mapped[UUID] = mapped_column(ForeignKey("registry.engine.id"))
    engine_own: Mapped[bool]
    actor: Mapped[str]
    reason: Mapped[str]
    selection_id: Mapped[UUID | None] = mapped_column(ForeignKey("evaluation.selection.id"))
    overridden: Mapped[bool]
    predicted: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    observed: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None] = _ended()
    engines_down: Mapped[datetime | None] = _ended()


class ReleaseEvent(Base):
    """The audit: what was done or refused, by whom and why; append-only."""

    __tablename__ = "event"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey(f"{SCHEMA}.release.id"))
    model: Mapped[str]
    kind: Mapped[str]
    actor: Mapped[str]
    reason: Mapped[str]
    before: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    after: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    plan_version: Mapped[int | None] = mapped_column(ForeignKey("serving.traffic_plan.version"))
    created_at: Mapped[CreatedAt]


class Look(Base):
    """One look at the figures, and what was decided."""

    __tablename__ = "look"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    release_id: Mapped[UUID] = mapped_column(ForeignKey(f"{SCHEMA}.release.id"))
    stage: Mapped[str]
    number: Mapped[int]
    decision: Mapped[str]
    reason: Mapped[str]
    exposure: Mapped[Json]
    created_at: Mapped[CreatedAt]


class AnalysisRow(Base):
    """What one look saw of one metric: candidate minus baseline, with its confidence interval at any time."""

    __tablename__ = "analysis"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    look_id: Mapped[UUID] = mapped_column(
        ForeignKey(f"{SCHEMA}.look.id", ondelete="CASCADE"), primary_key=True
    )
    metric: Mapped[str] = mapped_column(primary_key=True)
    n_baseline: Mapped[int] = mapped_column(BigInteger)
    n_candidate: Mapped[int] = mapped_column(BigInteger)
    baseline: Mapped[float | None]
    candidate: Mapped[float | None]
    estimate: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    decision: Mapped[str]
    detail: Mapped[Json]


class Drill(Base):
    """The switch pulled on live traffic and back, and how long it took."""

    __tablename__ = "drill"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    model: Mapped[str]
    production: Mapped[str]
    other: Mapped[str]
    actor: Mapped[str]
    state: Mapped[str]
    started_at: Mapped[CreatedAt]
    finished_at: Mapped[datetime | None] = _ended()
    result: Mapped[dict[str, Any] | None] = mapped_column(JSONB)


class OfflineAbort(Base):
    """A switch that was thrown on a gateway's host while the database was away; told when it was back."""

    __tablename__ = "offline_abort"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    model: Mapped[str]
    actor: Mapped[str]
    reason: Mapped[str]
    switched_at: Mapped[Moment]
    cut: Mapped[bool]
    gateway: Mapped[str]
    told_at: Mapped[CreatedAt]
    settled_at: Mapped[datetime | None] = _ended()


class OperatorSession(Base):
    """An operator who signed in to the pages, by the SHA-256 of the cookie's 256 random bits."""

    __tablename__ = "operator_session"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    hash: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    key_id: Mapped[UUID] = mapped_column(ForeignKey("serving.api_key.id"))
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[Moment]
