"""Schema `evaluation`: judges, what they are worth, runs over held-out prompts, and selection records.

The trainer has no access to this schema, and no column of it holds a reward. A report joins the rewards of a
round through the view `evaluation.reward_of_selected`, which is empty until its selection is written
(migration 0005).
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, DateTime, ForeignKey, ForeignKeyConstraint, Identity
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.db.base import Base, CreatedAt, Json, JsonList, Key

SCHEMA = "evaluation"


def _run() -> Any:
    return mapped_column(ForeignKey(f"{SCHEMA}.eval_run.id"), primary_key=True)


def _policy() -> Any:
    return mapped_column(ForeignKey("registry.policy.ref"), primary_key=True)


def _of_item() -> tuple[Any, ...]:
    names = ("run_id", "suite", "item")
    return (
        ForeignKeyConstraint(names, [f"{SCHEMA}.item.{name}" for name in names]),
        {"schema": SCHEMA},
    )


class Judge(Base):
    """One judge version: the name of its endpoint, its model, its prompt templates, and where it comes from.

    `endpoint` is a name that the operator's settings give an address; `templates` maps a dimension to the
    name, version and digest of its prompt, whose text is in the artefact.
    """

    __tablename__ = "judge"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    ref: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True), unique=True)
    name: Mapped[str]
    version: Mapped[str]
    digest: Mapped[str]
    artifact: Mapped[str]
    endpoint: Mapped[str]
    model: Mapped[str]
    templates: Mapped[Json]
    parameters: Mapped[Json]
    provenance: Mapped[Json]
    created_at: Mapped[CreatedAt]


class CalibrationRow(Base):
    """A judge measured on labelled pairs, with the bar it was held against and what it fell short of."""

    __tablename__ = "calibration"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    judge: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.judge.ref"))
    dimension: Mapped[str]
    template: Mapped[str]
    labels: Mapped[str]
    labels_digest: Mapped[str]
    pairs: Mapped[int]
    figures: Mapped[Json]
    bar: Mapped[Json]
    shortcomings: Mapped[JsonList]
    passed: Mapped[bool]
    created_at: Mapped[CreatedAt]


class EvalRun(Base):
    """One run over suites: whose answers, against whose, judged by whom; `config` is all it follows from."""

    __tablename__ = "eval_run"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    round_id: Mapped[UUID | None] = mapped_column(ForeignKey("training.training_round.id"))
    policies: Mapped[JsonList]
    baseline: Mapped[str] = mapped_column(ForeignKey("registry.policy.ref"))
    reference: Mapped[str | None] = mapped_column(ForeignKey("registry.policy.ref"))
    judge: Mapped[str | None] = mapped_column(ForeignKey(f"{SCHEMA}.judge.ref"))
    config: Mapped[Json]
    config_digest: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="running")
    error: Mapped[str | None]
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


class ItemRow(Base):
    """A prompt of a run, frozen when the run begins, so that a resumed run asks the same."""

    __tablename__ = "item"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    run_id: Mapped[UUID] = _run()
    suite: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    prompt_hash: Mapped[str]
    messages: Mapped[JsonList]
    spec: Mapped[Json]


class AnswerRow(Base):
    """A policy's answer to an item, with the fingerprint of the engine that gave it."""

    __tablename__ = "answer"
    __table_args__ = _of_item()

    run_id: Mapped[UUID] = mapped_column(primary_key=True)
    policy: Mapped[str] = _policy()
    suite: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]
    finish_reason: Mapped[str | None]
    tokens: Mapped[int | None]
    tool_calls: Mapped[JsonList] = mapped_column(server_default="[]")
    fingerprint: Mapped[str | None]
    created_at: Mapped[CreatedAt]


class OutcomeRow(Base):
    """What a scorer said of an answer. A suite has one metric, or one for each kind of prompt."""

    __tablename__ = "outcome"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    run_id: Mapped[UUID] = _run()
    policy: Mapped[str] = _policy()
    metric: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(primary_key=True)
    suite: Mapped[str]
    scorer: Mapped[str]
    outcome: Mapped[str]
    reason: Mapped[str]


class VerdictRow(Base):
    """A comparison of two answers: what was said in either order, and the result from the candidate's side.

    `shown_first` is the choice made with the candidate's answer shown first, `shown_second` with it second.
    Both are null for raters, whose page draws the side itself. `result` is null where it is unscored.
    """

    __tablename__ = "verdict"
    __table_args__ = _of_item()

    run_id: Mapped[UUID] = mapped_column(primary_key=True)
    candidate: Mapped[str] = _policy()
    other: Mapped[str] = _policy()
    suite: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    dimension: Mapped[str]
    prompt_hash: Mapped[str]
    shown_first: Mapped[str | None]
    shown_second: Mapped[str | None]
    result: Mapped[str | None]
    agreed: Mapped[bool | None]
    reason: Mapped[str]
    candidate_length: Mapped[int]
    other_length: Mapped[int]
    created_at: Mapped[CreatedAt]


class SelectionRow(Base):
    """An immutable selection record: the candidates of a round, the one chosen or none, and the reason.

    `record` is the whole document that `digest` is taken over.
    """

    __tablename__ = "selection"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    round_id: Mapped[UUID] = mapped_column(ForeignKey("training.training_round.id"))
    run_id: Mapped[UUID] = mapped_column(ForeignKey(f"{SCHEMA}.eval_run.id"), unique=True)
    candidates: Mapped[JsonList]
    chosen: Mapped[str | None] = mapped_column(ForeignKey("registry.policy.ref"))
    reason: Mapped[str]
    record: Mapped[Json]
    digest: Mapped[str]
    created_at: Mapped[CreatedAt]


class EngineWish(Base):
    """An engine that a run holds; `put_up` where it is up for runs alone, and goes with the last of them."""

    __tablename__ = "engine_wish"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    engine_id: Mapped[UUID] = mapped_column(ForeignKey("registry.engine.id"))
    put_up: Mapped[bool]
    wanted_at: Mapped[CreatedAt]
