"""Schemas `training` and `reward`: rounds and what came of them; reward models, which no evaluator sees.

Of `training` the evaluator reads the columns that select a candidate on its KL axis, and none that holds a
reward; of `reward` it reads nothing (migration 0003).
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, DateTime, Double, ForeignKey, Identity, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.db.base import Base, CreatedAt, Json, Key

SCHEMA = "training"
REWARD_SCHEMA = "reward"

OptionalMoment = datetime | None


def _moment() -> Any:
    return mapped_column(DateTime(timezone=True))


def _number() -> Any:
    return mapped_column(Double)


class TrainingRound(Base):
    """One round: what was asked, how far it is, and what came of it.

    `config` is the whole configuration, `snapshot` the digest of its data, `policy` the one it starts from
    and `reference` the one that KL is measured from. `worker` is the process that runs it and `beat_at` its
    last sign of life; `attempts` counts how often a worker began. `data` says how many rows are used and how
    many were dropped, by reason.
    """

    __tablename__ = "training_round"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    method: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="asked")
    config: Mapped[Json]
    config_digest: Mapped[str]
    snapshot: Mapped[str]
    policy: Mapped[str] = mapped_column(ForeignKey("registry.policy.ref"))
    reference: Mapped[str] = mapped_column(ForeignKey("registry.policy.ref"))
    reference_digest: Mapped[str | None]
    sweep: Mapped[UUID | None]
    asked_by: Mapped[str]
    reason: Mapped[str]
    created_at: Mapped[CreatedAt]
    sent_at: Mapped[OptionalMoment] = _moment()
    started_at: Mapped[OptionalMoment] = _moment()
    ended_at: Mapped[OptionalMoment] = _moment()
    beat_at: Mapped[OptionalMoment] = _moment()
    worker: Mapped[str | None]
    attempts: Mapped[int] = mapped_column(server_default="0")
    step: Mapped[int] = mapped_column(server_default="0")
    total_steps: Mapped[int | None]
    data: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    error: Mapped[str | None]
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    code_version: Mapped[str | None]
    folder: Mapped[str | None]


class Checkpoint(Base):
    """A candidate at one distance from the reference.

    `kl_k1` and `kl_k3` are in nats a sequence, sampled from the policy, with their standard errors; `reward`
    is a mean difference from the reference on the same prompts. `policy` is set once the candidate is
    registered.
    """

    __tablename__ = "checkpoint"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    round_id: Mapped[UUID] = mapped_column(ForeignKey(f"{SCHEMA}.training_round.id"))
    step: Mapped[int]
    kl_k1: Mapped[float | None] = _number()
    kl_k1_se: Mapped[float | None] = _number()
    kl_k3: Mapped[float | None] = _number()
    kl_k3_se: Mapped[float | None] = _number()
    reward: Mapped[float | None] = _number()
    accuracy: Mapped[float | None] = _number()
    length_quantiles: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    digest: Mapped[str]
    policy: Mapped[str | None] = mapped_column(ForeignKey("registry.policy.ref"))
    path: Mapped[str]
    is_last: Mapped[bool] = mapped_column(server_default="false")
    created_at: Mapped[CreatedAt]


class RoundMetric(Base):
    """A number of a round at a step."""

    __tablename__ = "metric"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    round_id: Mapped[UUID] = mapped_column(ForeignKey(f"{SCHEMA}.training_round.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(Double)


class RoundControl(Base):
    """A word to a running round, `ok` or `stop`; append-only, the newest holds."""

    __tablename__ = "round_control"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    round_id: Mapped[UUID] = mapped_column(ForeignKey(f"{SCHEMA}.training_round.id"))
    word: Mapped[str]
    who: Mapped[str]
    why: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), server_default=func.clock_timestamp()
    )


class RewardModel(Base):
    """One reward model version: its encrypted artefact, the policy it grew from, its data and its report."""

    __tablename__ = "reward_model"
    __table_args__ = {"schema": REWARD_SCHEMA}  # noqa: RUF012

    ref: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True), unique=True)
    name: Mapped[str]
    version: Mapped[str]
    digest: Mapped[str]
    artifact: Mapped[str]
    parent: Mapped[str | None] = mapped_column(ForeignKey("registry.policy.ref"))
    snapshot: Mapped[str]
    round_id: Mapped[UUID | None] = mapped_column(ForeignKey(f"{SCHEMA}.training_round.id"))
    report: Mapped[Json]
    provenance: Mapped[Json]
    created_at: Mapped[CreatedAt]


class RewardMeasurement(Base):
    """A reward model measured again, on fresh pairs of a policy."""

    __tablename__ = "measurement"
    __table_args__ = {"schema": REWARD_SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    reward_model: Mapped[str] = mapped_column(ForeignKey(f"{REWARD_SCHEMA}.reward_model.ref"))
    policy: Mapped[str | None]
    snapshot: Mapped[str]
    report: Mapped[Json]
    created_at: Mapped[CreatedAt]
