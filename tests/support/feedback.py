"""Rows a feedback test begins with: responses as the gateway's recorder would have stored them."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from ratchet.ids import id_beside, new_id, time_of
from ratchet.prompts import conversation_id, hash_of_text, history_hash, prompt_hash, split

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


def put_comparisons(url: str, count: int, **changed: Any) -> list[UUID]:
    """Stores comparisons of two answers to a training prompt; `gold_choice` makes them gold."""
    made: list[UUID] = []
    gold = changed.get("gold_choice") is not None
    prompt = changed.pop("prompt", TRAIN_PROMPT)
    with psycopg.connect(url) as connection:
        for _ in range(count):
            identity = new_id()
            row: dict[str, Any] = {
                "id": identity, "pool": "preference", "source": "gold" if gold else "shadow",
                "prompt": Jsonb(user(prompt)), "prompt_hash": hash_of_text(prompt),
                "history_hash": history_hash(user(prompt)), "split": split(hash_of_text(prompt)).value,
                "a_answer": f"a-{identity}", "a_text": f"first {identity}", "a_policy": "sky@aaaaaaaaaaaa",
                "b_answer": f"b-{identity}", "b_text": f"second {identity}", "b_policy": "sea@bbbbbbbbbbbb",
                "answered_at": time_of(identity), "wanted": None if gold else 2,
            }  # fmt: skip
            row |= changed
            columns, places = ", ".join(row), ", ".join(f"%({name})s" for name in row)
            connection.execute(f"INSERT INTO feedback.comparison ({columns}) VALUES ({places})", row)  # noqa: S608
            made.append(identity)
    return made


def put_raters(url: str, count: int, *, pool: str = "preference", quota: int = 1_000) -> list[UUID]:
    """Stores raters; returns their ids."""
    made = [new_id() for _ in range(count)]
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO feedback.rater (id, name, pool, daily_quota) VALUES (%s, %s, %s, %s)",
            [(identity, f"{pool}-{identity}", pool, quota) for identity in made],
        )
    return made


def put_event(url: str, response_id: UUID, kind: str, *, state: str = "joined", **columns: Any) -> UUID:
    """Stores a client's event."""
    identity = id_beside(response_id, "test", str(new_id()))
    row: dict[str, Any] = {
        "id": identity, "response_id": response_id, "origin": "client", "key_id": KEY, "kind": kind,
        "user_id": "ann", "body_sha256": "0", "state": state,
    }  # fmt: skip
    row |= columns
    with psycopg.connect(url) as connection:
        names, places = ", ".join(row), ", ".join(f"%({name})s" for name in row)
        connection.execute(f"INSERT INTO feedback.feedback_event ({names}) VALUES ({places})", row)  # noqa: S608
    return identity


def put_votes(url: str, comparison: UUID, *choices: str, raters: list[UUID] | None = None) -> list[UUID]:
    """Stores one vote each of as many raters, with the leases behind them; returns the raters."""
    raters = raters or put_raters(url, len(choices))
    with psycopg.connect(url) as connection:
        for rater, choice in zip(raters, choices, strict=True):
            lease = new_id()
            values = {"lease": lease, "item": comparison, "rater": rater, "id": new_id(), "choice": choice}
            connection.execute(
                "INSERT INTO feedback.lease (id, comparison_id, rater_id, pool, left_side, state, expires_at)"
                " SELECT %(lease)s, id, %(rater)s, pool, 'a', 'voted', now() FROM feedback.comparison"
                " WHERE id = %(item)s",
                values,
            )
            connection.execute(
                "INSERT INTO feedback.rating"
                " (id, lease_id, comparison_id, rater_id, pool, choice, left_side, seconds)"
                " SELECT %(id)s, %(lease)s, id, %(rater)s, pool, %(choice)s, 'a', 1 FROM feedback.comparison"
                " WHERE id = %(item)s",
                values,
            )
    return raters


def put_policy(url: str, ref: str, parent: str | None = None, **provenance: Any) -> None:
    """Registers a policy version; `ref` is `name@` and 12 hex digits."""
    name, _, version = ref.partition("@")
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO registry.decode_config (digest, config) VALUES ('d', '{}') ON CONFLICT DO NOTHING"
        )
        connection.execute(
            "INSERT INTO registry.policy (ref, name, version, digest, weights_digest, tokenizer_digest,"
            " template_digest, decode_digest, artifact, parent, architecture, golden, provenance)"
            " VALUES (%s, %s, %s, %s, 'w', 't', 'c', 'd', 'a', %s, '{}', '[]', %s)",
            (ref, name, version, version + "0" * 52, parent, Jsonb(provenance)),
        )


def serve_policy(url: str, model: str, ref: str) -> None:
    """Puts a policy version into production under a model name."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO serving.traffic_plan (model, stage, arms, enforcement, salt, actor, reason)"
            " VALUES (%s, 'production', %s, 'replace', 's', 'test', 'test')",
            (model, Jsonb([{"arm": "production", "policy": ref, "share": 1.0}])),
        )
