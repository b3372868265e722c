"""Schema `serving`: who may ask, which policy answers, and everything that was answered."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, DateTime, Identity, LargeBinary
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.db.base import Base, CreatedAt, Json, JsonList, Key, Moment

SCHEMA = "serving"


class ApiKey(Base):
    """A key, stored as the SHA-256 of its 256 random bits (no dictionary attack is possible on those)."""

    __tablename__ = "api_key"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    name: Mapped[str]
    role: Mapped[str]
    prefix: Mapped[str]
    hash: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    limits: Mapped[Json] = mapped_column(server_default="{}")
    created_at: Mapped[CreatedAt]
    revoked_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


class TrafficPlan(Base):
    """A version of the plan of one model name; append-only, the newest is in force.

    `arms` is a list of `{"arm": "production"|"canary"|"holdback"|"shadow", "policy": ref, "share": 0..1}`;
    `enforcement` says what happens to a client value that differs from the pinned decode config,
    `fallback` is the policy that traffic returns to when the one in production is taken back, and `cut`
    ends answers under way of policies that this version serves no more.
    """

    __tablename__ = "traffic_plan"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    version: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    model: Mapped[str]
    stage: Mapped[str]
    arms: Mapped[JsonList]
    enforcement: Mapped[str]
    salt: Mapped[str]
    actor: Mapped[str]
    reason: Mapped[str]
    fallback: Mapped[str | None]
    cut: Mapped[bool] = mapped_column(server_default="false")
    created_at: Mapped[CreatedAt]


class Response(Base):
    """One request and what came of it; range-partitioned by `id`, whose UUIDv7 time is the request's start.

    Times are in milliseconds. `output` is the first choice's text, `outputs` every choice with its text, tool
    calls and finish reason. `output_sha256` is taken over the exact text before NUL bytes and lone
    surrogates, which PostgreSQL cannot hold, were replaced by U+FFFD (`sanitized` says that some were).
    """

    __tablename__ = "response"
    __table_args__ = {"schema": SCHEMA, "postgresql_partition_by": "RANGE (id)"}  # noqa: RUF012

    id: Mapped[Key]
    created_at: Mapped[Moment]
    kind: Mapped[str]
    status: Mapped[str]
    http_status: Mapped[int]
    error: Mapped[str | None]
    error_code: Mapped[str | None]
    model: Mapped[str | None]
    policy: Mapped[str | None]
    pinned: Mapped[bool]
    decode: Mapped[str | None]
    decode_overridden: Mapped[JsonList]
    arm: Mapped[str | None]
    stage: Mapped[str | None]
    plan_version: Mapped[int | None] = mapped_column(BigInteger)
    engine_id: Mapped[UUID | None]
    fingerprint: Mapped[str | None]
    stamp: Mapped[str]
    key_id: Mapped[UUID | None]
    user_id: Mapped[str | None]
    session_id: Mapped[str | None]
    conversation_id: Mapped[str | None]
    history_hash: Mapped[str | None]
    prompt_hash: Mapped[str | None]
    messages: Mapped[list[Any] | None] = mapped_column(JSONB)
    parameters_asked: Mapped[Json]
    parameters_used: Mapped[Json]
    output: Mapped[str | None]
    outputs: Mapped[JsonList]
    output_sha256: Mapped[str | None]
    finish_reason: Mapped[str | None]
    prompt_tokens: Mapped[int | None]
    output_tokens: Mapped[int | None]
    stream: Mapped[bool]
    ttft_ms: Mapped[float | None]
    itl_p50_ms: Mapped[float | None]
    itl_p99_ms: Mapped[float | None]
    queue_ms: Mapped[float | None]
    duration_ms: Mapped[float | None]
    trace_id: Mapped[str | None]
    gateway: Mapped[str]
    pair_of: Mapped[UUID | None]
    probe: Mapped[str | None]
    labels: Mapped[Json]
    verdicts: Mapped[Json]
    sanitized: Mapped[bool]
