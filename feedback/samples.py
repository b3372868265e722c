"""Samples on demand: two policies answer logged prompts anew, through the gateway, and are compared.

A wish is a row. It is carried out under a lock on that row and ends with it in one transaction: a worker that
dies in between leaves it pending, and carried out twice it makes one comparison.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from feedback.comparisons import UNKNOWN_LANGUAGE, Plan, store
from feedback.evidence import Answer
from feedback.rows import turns_of
from feedback.rule import is_held_out
from feedback.sampling import length_class, spread
from feedback.settings import Stratum
from ratchet.errors import UsageError
from ratchet.ids import floor_of, id_beside, new_id

LOOKED_AT = 5_000
TIMEOUT_S = 300.0

_LOGGED = text("""
    SELECT id, prompt_hash, coalesce(labels ->> 'language', 'und') AS language,
           length(messages::text) AS characters
    FROM serving.response
    WHERE id >= :low AND status = 'ok' AND probe IS NULL AND pair_of IS NULL AND kind = 'chat'
        AND prompt_hash IS NOT NULL
    ORDER BY id DESC LIMIT :limit
""")
_ASK = text("""
    INSERT INTO feedback.sample_request (id, response_id, first_policy, second_policy)
    VALUES (:id, :response, :first, :second)
""")
_TAKE = text("""
    SELECT request.id, request.first_policy, request.second_policy, response.messages, response.prompt_hash,
           response.history_hash, response.user_id, response.labels ->> 'language' AS language
    FROM feedback.sample_request AS request JOIN serving.response AS response ON response.id = response_id
    WHERE request.id = :id AND request.state = 'pending'
    FOR UPDATE OF request SKIP LOCKED
""")
_DECODE = text("SELECT decode_digest FROM registry.policy WHERE ref = :policy")
_END = text("""
    UPDATE feedback.sample_request
    SET state = :state, error = :error, first_answer = :first, second_answer = :second, finished_at = :now
    WHERE id = :id
""")


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where fresh answers come from."""

    url: str
    key: str
    """An API key of role `service`."""

    def answer(self, policy: str, row: Row[Any], request: UUID) -> Answer:
        """A policy's answer to a logged conversation.

        Raises:
            httpx.HTTPError: The gateway cannot be reached or refuses.
        """
        reply = httpx.post(
            f"{self.url.rstrip('/')}/v1/chat/completions",
            json={"model": policy, "messages": row.messages},
            headers={"authorization": f"Bearer {self.key}", "x-ratchet-session": f"sample:{request}"},
            timeout=TIMEOUT_S,
        ).raise_for_status()
        choice = reply.json()["choices"][0]
        return Answer(
            id=reply.headers["x-ratchet-response-id"],
            prompt=turns_of(row.messages),
            prompt_hash=row.prompt_hash,
            history_hash=row.history_hash,
            text=choice["message"]["content"] or "",
            policy=reply.headers["x-ratchet-policy"],
            decode=None,
            created_at=datetime.fromtimestamp(reply.json()["created"]).astimezone(),
            user=row.user_id,
        )


def request_samples(
    session: Session,
    policies: tuple[str, str],
    count: int,
    strata: tuple[Stratum, ...],
    *,
    now: datetime,
    since: timedelta = timedelta(days=14),
) -> int:
    """Asks for fresh answers to logged prompts, one a prompt, spread over languages and lengths.

    Args:
        session: As the role `ratchet_feedback`.
        policies: Two versions, `name@version`.
        count: Prompts at most.
        strata: What the prompts are spread over; the policy says nothing here.
        now: The time.
        since: How far back prompts are looked for.

    Returns:
        Wishes noted.

    Raises:
        UsageError: The two policies are one.
    """
    first, second = policies
    if first == second:
        raise UsageError("name two different policies to compare")
    rows = session.execute(_LOGGED, {"low": floor_of(now - since), "limit": LOOKED_AT}).all()
    prompts = {row.prompt_hash: row for row in rows if not is_held_out(row.prompt_hash, ())}

    def stratum(row: Row[Any]) -> tuple[str, ...]:
        parts = {"language": row.language, "length": length_class(row.characters), "policy": ""}
        return tuple(parts[each] for each in strata)

    chosen = list(spread(prompts.values(), stratum, lambda row: row.prompt_hash))[:count]
    for row in chosen:
        session.execute(_ASK, {"id": new_id(), "response": row.id, "first": first, "second": second})
    return len(chosen)


def answer_sample(
    session: Session, request: UUID, gateway: Gateway, plan: Plan, *, now: datetime
) -> int | None:
    """Carries a wish out.

    Returns:
        Comparisons made (0 where the two answers cannot be compared), None if there was nothing to do.

    Raises:
        httpx.HTTPError: The gateway cannot be reached or refuses; the wish stays.
    """
    row = session.execute(_TAKE, {"id": request}).first()
    if row is None:
        return None
    first, second = (
        _with_decode(session, gateway.answer(policy, row, request))
        for policy in (row.first_policy, row.second_policy)
    )
    fit = first.prompt is not None and first.text.strip() and second.text.strip()
    differ = first.text.strip() != second.text.strip()
    made = 0
    if fit and differ:
        names = (first.id or "", second.id or "")
        identity = id_beside(request, "comparison")
        language = row.language or UNKNOWN_LANGUAGE
        made = store(session, "sampled", (first, second), names, language, plan, now, identity)
    reason = None if made else "the answers cannot be compared, or their like was compared lately"
    session.execute(
        _END,
        {
            "id": request, "state": "done", "error": reason, "now": now,
            "first": first.id, "second": second.id,
        },
    )  # fmt: skip
    return made


def _with_decode(session: Session, answer: Answer) -> Answer:
    decode = session.execute(_DECODE, {"policy": answer.policy}).scalar()
    return replace(answer, decode=decode)


def give_up(session: Session, request: UUID, reason: str, *, now: datetime) -> None:
    """Ends a wish that cannot be carried out."""
    session.execute(
        _END,
        {"id": request, "state": "failed", "error": reason, "first": None, "second": None, "now": now},
    )
