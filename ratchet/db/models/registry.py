"""Schema `registry`: what can be served, immutable and addressed by content."""

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Identity, UniqueConstraint
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.db.base import Base, CreatedAt, Json, JsonList, Key, Moment

SCHEMA = "registry"


class DecodeConfigRow(Base):
    """A pinned decode configuration; `digest` is that of `config` (`ratchet.decode`)."""

    __tablename__ = "decode_config"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    digest: Mapped[str] = mapped_column(primary_key=True)
    config: Mapped[Json]
    created_at: Mapped[CreatedAt]


class Policy(Base):
    """One policy version: weights, tokenizer, chat template and decode config under one name.

    `ref` is `name@version`; `version` the first 12 hex digits of `digest`, which is taken over the four
    component digests, so that equal content has an equal version.
    """

    __tablename__ = "policy"
    __table_args__ = (UniqueConstraint("name", "digest"), {"schema": SCHEMA})

    ref: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True), unique=True)
    name: Mapped[str]
    version: Mapped[str]
    digest: Mapped[str]
    weights_digest: Mapped[str]
    tokenizer_digest: Mapped[str]
    template_digest: Mapped[str]
    decode_digest: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.decode_config.digest"))
    artifact: Mapped[str]
    parent: Mapped[str | None] = mapped_column(ForeignKey(f"{SCHEMA}.policy.ref"))
    architecture: Mapped[Json]
    golden: Mapped[JsonList]
    provenance: Mapped[Json]
    created_at: Mapped[CreatedAt]


class EngineRow(Base):
    """An inference engine that serves one policy: wanted by an operator, run by the supervisor or by URL.

    The supervisor owns `state`, `url`, `fingerprint`, `pid`, `restarts` and `last_error` of a managed engine.
    """

    __tablename__ = "engine"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    policy: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.policy.ref"))
    managed: Mapped[bool]
    desired: Mapped[str]
    state: Mapped[str]
    url: Mapped[str | None]
    fingerprint: Mapped[str | None]
    pid: Mapped[int | None]
    restarts: Mapped[int] = mapped_column(server_default="0")
    last_error: Mapped[str | None]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[CreatedAt]


class EngineProof(Base):
    """One proof of an engine by one gateway: its log-probabilities against the policy's golden ones."""

    __tablename__ = "engine_proof"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012

    id: Mapped[Key]
    engine_id: Mapped[Any] = mapped_column(ForeignKey(f"{SCHEMA}.engine.id"))
    policy: Mapped[str]
    gateway: Mapped[str]
    fingerprint: Mapped[str | None]
    ok: Mapped[bool]
    max_abs_difference: Mapped[float | None]
    tolerance: Mapped[float]
    reason: Mapped[str | None]
    detail: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    created_at: Mapped[CreatedAt]


__all__ = ["SCHEMA", "DecodeConfigRow", "EngineProof", "EngineRow", "Moment", "Policy"]
