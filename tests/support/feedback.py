"""Rows a feedback test begins with: responses as the gateway's recorder would have stored them."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from ratchet.ids import new_id, time_of
from ratchet.prompts import conversation_id, history_hash, prompt_hash

KEY = UUID(int=1)
OTHER_KEY = UUID(int=2)
TRAIN_PROMPT = "What colour is the sky?"
HELDOUT_PROMPT = "prompt 3"
VALIDATION_PROMPT = "prompt 4"


def user(text: str) -> list[dict[str, Any]]:
    """A prompt of one message."""
    return [{"role": "user", "content": text}]


def response(
    text: str | None = "The sky is blue.",
    *,
    messages: list[dict[str, Any]] | None = None,
    identity: UUID | None = None,
    key: UUID = KEY,
    policy: str = "sky@aaaaaaaaaaaa",
    user_id: str | None = "ann",
    **columns: Any,
) -> dict[str, Any]:
    """The columns of one response; any may be set by name."""
    identity = identity or new_id()
    messages = user(TRAIN_PROMPT) if messages is None else messages
    made = time_of(identity) if identity.version == 7 else datetime.now(UTC)
    row: dict[str, Any] = {
        "id": identity, "created_at": made, "kind": "chat", "status": "ok", "http_status": 200,
        "model": "sky", "policy": policy, "pinned": False, "decode": "d" * 64, "decode_overridden": [],
        "arm": "production", "stage": "production", "stamp": "verified", "key_id": key, "user_id": user_id,
        "conversation_id": conversation_id(messages, key=str(key), user=user_id),
        "history_hash": history_hash(messages), "prompt_hash": prompt_hash(messages), "messages": messages,
        "parameters_asked": {}, "parameters_used": {}, "output": text,
        "outputs": [{"index": 0, "text": text, "finish_reason": "stop", "tool_calls": None}],
        "finish_reason": "stop", "stream": False, "gateway": "test", "duration_ms": 0.0, "labels": {},
        "verdicts": {}, "sanitized": False, "pair_of": None, "probe": None,
    }  # fmt: skip
    return {**row, **columns}


def put(url: str, *rows: dict[str, Any]) -> list[UUID]:
    """Stores responses; returns their ids."""
    with psycopg.connect(url) as connection:
        for row in rows:
            columns = ", ".join(row)
            places = ", ".join(f"%({name})s" for name in row)
            values = {
                name: Jsonb(value) if isinstance(value, list | dict) else value for name, value in row.items()
            }
            connection.execute(f"INSERT INTO serving.response ({columns}) VALUES ({places})", values)  # noqa: S608
    return [row["id"] for row in rows]
