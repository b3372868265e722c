"""Schema `feedback`: what people said about answers, who rated what, and the data sets made of it.

Rules that no code can break stand in the schema itself (migration 0002): a rater, a lease and a vote belong
to one pool, a comparison on a held-out prompt never to the pool that trains, an item is never leased beyond
its quota, a rater never sees an item twice, and no held-out row can be a pair.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    LargeBinary,
    SmallInteger,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.db.base import Base, CreatedAt, Json, JsonList, Key, Moment

SCHEMA = "feedback"

OptionalMoment = datetime | None


def _moment() -> Any:
    return mapped_column(DateTime(timezone=True))


class Metric(Base):
    """A custom metric that clients may report: its type, and its bounds or categories."""

    __tablename__ = "metric"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    name: Mapped[str] = mapped_column(primary_key=True)
    type: Mapped[str]
    low: Mapped[float | None]
    high: Mapped[float | None]
    categories: Mapped[list[Any] | None] = mapped_column(JSONB(none_as_null=True))
    description: Mapped[str]
    created_at: Mapped[CreatedAt]


class FeedbackEvent(Base):
    """What a user did about a response; range-partitioned by `id`, whose UUIDv7 time is the *response's*.

    So an event lies in the month of its response, and goes with it. The rest of the id is a hash of key,
    response and idempotency key: the same event sent twice is one row (`ratchet.ids.id_beside`).

    `state`: `new`; `parked`, its response is not there yet; `joined`; `unknown`, the response never came.
    """

    __tablename__ = "feedback_event"
    __table_args__ = {"schema": SCHEMA, "postgresql_partition_by": "RANGE (id)"}  # noqa: RUF012

    id: Mapped[Key]
    created_at: Mapped[CreatedAt]
    response_id: Mapped[UUID]
    choice: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    origin: Mapped[str]
    key_id: Mapped[UUID | None]
    kind: Mapped[str]
    value: Mapped[float | None]
    text: Mapped[str | None]
    name: Mapped[str | None]
    other_response_id: Mapped[UUID | None]
    user_id: Mapped[str | None]
    body_sha256: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="new")
    settled_at: Mapped[OptionalMoment] = _moment()


class Watermark(Base):
    """How far a scan over the responses has come."""

    __tablename__ = "watermark"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[UUID]
    updated_at: Mapped[CreatedAt]


class Rater(Base):
    """A person who compares answers, in one pool for ever: preference (trains) or evaluation (judges)."""

    __tablename__ = "rater"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    name: Mapped[str]
    pool: Mapped[str]
    status: Mapped[str] = mapped_column(server_default="active")
    daily_quota: Mapped[int]
    guidelines_read_at: Mapped[OptionalMoment] = _moment()
    set_aside_at: Mapped[OptionalMoment] = _moment()
    set_aside_reason: Mapped[str | None]
    created_at: Mapped[CreatedAt]


class RaterToken(Base):
    """A sign-in link or a session of a rater, stored as the SHA-256 of its 256 random bits."""

    __tablename__ = "rater_token"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    hash: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    rater_id: Mapped[UUID] = mapped_column(ForeignKey(f"{SCHEMA}.rater.id", ondelete="CASCADE"))
    kind: Mapped[str]
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[Moment]


class ComparisonRow(Base):
    """Two answers to one prompt, with their texts, so that rating needs no look at old responses.

    `a_answer` and `b_answer` are the ids of the answers in order: a response's id, `<id>/<choice>` for its
    further choices, `edit:<event>` for a person's correction. `leased` and `voted` count what is out and what
    has come back; the quota is `wanted`, null for gold items, which every rater may see once. `bands` are the
    near-duplicate keys of the prompt.
    """

    __tablename__ = "comparison"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    created_at: Mapped[CreatedAt]
    pool: Mapped[str]
    source: Mapped[str]
    prompt: Mapped[JsonList]
    prompt_hash: Mapped[str]
    history_hash: Mapped[str]
    split: Mapped[str]
    a_answer: Mapped[str]
    a_text: Mapped[str]
    a_policy: Mapped[str]
    a_decode: Mapped[str | None]
    b_answer: Mapped[str]
    b_text: Mapped[str]
    b_policy: Mapped[str]
    b_decode: Mapped[str | None]
    answered_at: Mapped[Moment]
    user_id: Mapped[str | None]
    language: Mapped[str] = mapped_column(server_default="und")
    length: Mapped[str] = mapped_column(server_default="unknown")
    names_policy: Mapped[bool] = mapped_column(server_default="false")
    bands: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default="{}")
    gold_choice: Mapped[str | None]
    wanted: Mapped[int | None]
    leased: Mapped[int] = mapped_column(server_default="0")
    voted: Mapped[int] = mapped_column(server_default="0")


def _pool_keys() -> tuple[Any, ...]:
    return (
        ForeignKeyConstraint(
            ["comparison_id", "pool"],
            [f"{SCHEMA}.comparison.id", f"{SCHEMA}.comparison.pool"],
            ondelete="CASCADE",
        ),
        ForeignKeyConstraint(["rater_id", "pool"], [f"{SCHEMA}.rater.id", f"{SCHEMA}.rater.pool"]),
        {"schema": SCHEMA},
    )


class Lease(Base):
    """An item shown to a rater, and which side was on the left.

    At most one is `open` for a rater; one that was on the page when the last vote was undone is `waiting`.
    """

    __tablename__ = "lease"
    __table_args__ = _pool_keys()

    id: Mapped[Key]
    comparison_id: Mapped[UUID]
    rater_id: Mapped[UUID]
    pool: Mapped[str]
    left_side: Mapped[str]
    state: Mapped[str]
    leased_at: Mapped[CreatedAt]
    expires_at: Mapped[Moment]


class Rating(Base):
    """A vote, turned back from left and right into `a` and `b`. An undone one stays, without effect."""

    __tablename__ = "rating"
    __table_args__ = _pool_keys()

    id: Mapped[Key]
    lease_id: Mapped[UUID] = mapped_column(ForeignKey(f"{SCHEMA}.lease.id", ondelete="CASCADE"))
    comparison_id: Mapped[UUID]
    rater_id: Mapped[UUID]
    pool: Mapped[str]
    choice: Mapped[str]
    left_side: Mapped[str]
    reasons: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")
    note: Mapped[str | None]
    seconds: Mapped[float]
    flagged: Mapped[bool] = mapped_column(server_default="false")
    created_at: Mapped[CreatedAt]
    undone_at: Mapped[OptionalMoment] = _moment()


class SampleRequest(Base):
    """A wish for two fresh answers, one of each policy, to the prompt of a logged response."""

    __tablename__ = "sample_request"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    response_id: Mapped[UUID]
    first_policy: Mapped[str]
    second_policy: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="pending")
    attempts: Mapped[int] = mapped_column(server_default="0")
    error: Mapped[str | None]
    first_answer: Mapped[UUID | None]
    second_answer: Mapped[UUID | None]
    requested_at: Mapped[CreatedAt]
    sent_at: Mapped[OptionalMoment] = _moment()
    finished_at: Mapped[OptionalMoment] = _moment()


class HeldoutPrompt(Base):
    """A prompt of an evaluation suite: nothing that is it, or overlaps it, may train."""

    __tablename__ = "heldout_prompt"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    suite: Mapped[str] = mapped_column(primary_key=True)
    prompt_hash: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]
    created_at: Mapped[CreatedAt]


class ImportedItem(Base):
    """A pair or demonstration read from a file; `digest` is that of the canonical row, so once is enough."""

    __tablename__ = "imported_item"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    name: Mapped[str]
    kind: Mapped[str]
    digest: Mapped[str]
    row: Mapped[Json]
    prompt_hash: Mapped[str]
    created_at: Mapped[CreatedAt]


class DatasetSnapshot(Base):
    """A frozen data set on disk; withdrawn when a person in it asked to be forgotten."""

    __tablename__ = "dataset_snapshot"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    digest: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    path: Mapped[str]
    manifest: Mapped[Json]
    created_at: Mapped[CreatedAt]
    withdrawn_at: Mapped[OptionalMoment] = _moment()
    withdrawn_reason: Mapped[str | None]


class SnapshotBuild(Base):
    """A wish for a snapshot, and what came of it: digest, ledger and staleness report, or the error."""

    __tablename__ = "snapshot_build"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    kind: Mapped[str]
    request: Mapped[Json]
    requested_by: Mapped[str]
    requested_at: Mapped[CreatedAt]
    state: Mapped[str] = mapped_column(server_default="pending")
    attempts: Mapped[int] = mapped_column(server_default="0")
    sent_at: Mapped[OptionalMoment] = _moment()
    digest: Mapped[str | None] = mapped_column(ForeignKey(f"{SCHEMA}.dataset_snapshot.digest"))
    ledger: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    staleness: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    error: Mapped[str | None]
    finished_at: Mapped[OptionalMoment] = _moment()


class PreferencePair(Base):
    """A pair of a snapshot, without its texts: who was compared, on what it rests, who stands behind it."""

    __tablename__ = "preference_pair"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    snapshot: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.dataset_snapshot.digest"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    split: Mapped[str]
    prompt_hash: Mapped[str]
    chosen_response_id: Mapped[str | None]
    rejected_response_id: Mapped[str | None]
    chosen_policy: Mapped[str]
    rejected_policy: Mapped[str]
    chosen_decode: Mapped[str | None]
    rejected_decode: Mapped[str | None]
    source: Mapped[str]
    votes: Mapped[int]
    weight: Mapped[float]
    agreement: Mapped[float | None]
    raters: Mapped[list[str]] = mapped_column(ARRAY(Text))
    user_id: Mapped[str | None]
    created_at: Mapped[OptionalMoment] = _moment()


class DemonstrationEntry(Base):
    """A demonstration of a snapshot, without its text."""

    __tablename__ = "demonstration"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    snapshot: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.dataset_snapshot.digest"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    split: Mapped[str]
    prompt_hash: Mapped[str]
    response_id: Mapped[str | None]
    policy: Mapped[str]
    decode: Mapped[str | None]
    source: Mapped[str]
    weight: Mapped[float]
    user_id: Mapped[str | None]
    created_at: Mapped[OptionalMoment] = _moment()


class PolicyMark(Base):
    """A policy that was trained, itself or through a parent, on a snapshot since withdrawn."""

    __tablename__ = "policy_mark"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    policy: Mapped[str] = mapped_column(ForeignKey("registry.policy.ref"), primary_key=True)
    snapshot: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.dataset_snapshot.digest"), primary_key=True)
    reason: Mapped[str]
    created_at: Mapped[CreatedAt]


class Forgotten(Base):
    """The SHA-256 of a person's id: what still arrives from before that time is removed too."""

    __tablename__ = "forgotten"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    user_hash: Mapped[str] = mapped_column(primary_key=True)
    forgotten_at: Mapped[CreatedAt]
