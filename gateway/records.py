"""What one request leaves behind: an opening before the engine is asked, a closing when it is over.

The fields are the columns of `serving.response` (`ratchet.db.models.serving.Response`), in JSON types.
"""

from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

Status = Literal["ok", "error", "rejected", "cancelled", "lost"]
Stamp = Literal["verified", "unverified", "mismatch"]


@dataclass(frozen=True, slots=True)
class Opening:
    """Everything known before the engine is asked."""

    id: UUID
    kind: Literal["chat", "completion"]
    stream: bool
    model: str | None
    policy: str | None
    pinned: bool
    decode: str | None
    decode_overridden: list[str]
    arm: str | None
    stage: str | None
    plan_version: int | None
    key_id: UUID | None
    user_id: str | None
    session_id: str | None
    conversation_id: str | None
    history_hash: str | None
    prompt_hash: str | None
    messages: list[Any] | None
    parameters_asked: dict[str, Any]
    parameters_used: dict[str, Any]
    trace_id: str | None
    gateway: str
    queue_ms: float | None = None
    pair_of: UUID | None = None
    probe: str | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """How it ended. Texts of a stream need not be repeated here: the recorder kept its deltas.

    Attributes:
        outputs: For each choice `{"index", "text", "finish_reason", "tool_calls"}`; None of a stream whose
            deltas say it all.
    """

    status: Status
    http_status: int
    stamp: Stamp
    error: str | None = None
    error_code: str | None = None
    engine_id: UUID | None = None
    fingerprint: str | None = None
    outputs: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = None
    duration_ms: float | None = None
    labels: dict[str, Any] = field(default_factory=dict[str, Any])
    verdicts: dict[str, Any] = field(default_factory=dict[str, Any])
