"""Rows of evaluation runs: begun or found again, filled piece by piece, ended once."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from evaluator.generation import Given
from evaluator.scorers.outcome import Answer
from evaluator.scoring import Scored
from evaluator.suites.items import Item, Prompt
from ratchet.canonical import digest_of
from ratchet.db.engine import session_scope
from ratchet.db.models.evaluation import AnswerRow, EvalRun, ItemRow, OutcomeRow, SelectionRow, VerdictRow
from ratchet.errors import NotFound, UsageError
from ratchet.ids import floor_of, new_id
from ratchet.prompts import hash_of_text, storable

_HELD_OUT = text("""
    SELECT DISTINCT ON (prompt_hash) prompt_hash, text FROM feedback.heldout_prompt
    WHERE suite = :suite OR (CAST(:suite AS text) IS NULL AND NOT starts_with(suite, :own))
    ORDER BY prompt_hash, suite
""")
_HOLD = text("""
    INSERT INTO feedback.heldout_prompt (suite, prompt_hash, text) VALUES (:suite, :prompt_hash, :text)
    ON CONFLICT DO NOTHING RETURNING prompt_hash
""")
_TRAFFIC = text("""
    SELECT DISTINCT ON (prompt_hash) id, prompt_hash, messages FROM feedback.heldout_traffic
    WHERE id >= :low AND messages IS NOT NULL ORDER BY prompt_hash, id
""")
_CANDIDATES = text("""
    SELECT DISTINCT ON (policy) step, policy, coalesce(kl_k3, kl_k1) AS kl
    FROM training.checkpoint WHERE round_id = :round AND policy IS NOT NULL ORDER BY policy, step
""")
TRAFFIC = "traffic"
"""What prompts are held out as that came from people who may want to be forgotten."""
OF_A_SUITE = "suite:"
"""What the names of prompts begin with that a suite's own file brings along."""

_ROUND = text("SELECT id, policy, reference, state FROM training.training_round WHERE id = :round")
_PLANS = text("SELECT DISTINCT ON (model) model, arms FROM serving.traffic_plan ORDER BY model, version DESC")


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A registered checkpoint of a round."""

    policy: str
    step: int
    kl: float | None
    """From the reference, in nats a sequence; null where it was not measured."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """What a selection needs to know of a round."""

    id: UUID
    state: str
    policy: str
    """The one it starts from."""
    reference: str
    production: str
    """What is in production under the policy's name; the policy itself where nothing is."""
    candidates: tuple[CandidateRow, ...]


class RowPrompts:
    """Held-out prompts from rows, sampled by the hash of seed and prompt: the same ones again."""

    def __init__(self, session: Session) -> None:
        """Reads as the role `ratchet_evaluator`."""
        self._session = session

    def held_out(self, suite: str | None, limit: int, seed: int) -> list[Prompt]:
        """A sample of the held-out table."""
        rows = self._session.execute(_HELD_OUT, {"suite": suite, "own": OF_A_SUITE}).all()
        found = [Prompt(row.prompt_hash, ({"role": "user", "content": row.text},)) for row in rows]
        return _sampled(found, limit, seed)

    def traffic(self, since_days: int, limit: int, seed: int) -> list[Prompt]:
        """A sample of production traffic on the held-out side, one conversation of each prompt."""
        low = floor_of(datetime.now(UTC) - timedelta(days=since_days))
        rows = self._session.execute(_TRAFFIC, {"low": low}).all()
        return _sampled([Prompt(row.prompt_hash, tuple(row.messages)) for row in rows], limit, seed)


def _sampled(prompts: list[Prompt], limit: int, seed: int) -> list[Prompt]:
    def place(prompt: Prompt) -> str:
        return hashlib.sha256(f"{seed}\n{prompt.name}".encode()).hexdigest()

    return sorted(prompts, key=place)[:limit]


def hold_out(session: Session, suite: str, texts: Iterable[str]) -> int:
    """Puts prompts into the held-out table: from now on nothing that is one, or overlaps one, may train.

    Args:
        session: As the role `ratchet_evaluator`.
        suite: The name they are held out under.
        texts: Prompts of one message.

    Returns:
        How many are new under this name.
    """
    rows = {hash_of_text(one): storable(one) for one in texts}
    return sum(
        session.execute(_HOLD, {"suite": suite, "prompt_hash": name, "text": one}).one_or_none() is not None
        for name, one in rows.items()
    )


def read_round(session: Session, text_id: str) -> RoundRow:
    """A round and its candidates.

    Raises:
        UsageError: The text is no id.
        NotFound: There is no such round.
    """
    try:
        identity = UUID(text_id)
    except ValueError:
        raise UsageError(f"{text_id!r} is no round id; `ratchet round list` shows them") from None
    row = session.execute(_ROUND, {"round": identity}).one_or_none()
    if row is None:
        raise NotFound(f"no round {identity}; `ratchet round list` shows those that are")
    found = session.execute(_CANDIDATES, {"round": identity}).all()
    candidates = sorted(
        (CandidateRow(one.policy, one.step, one.kl) for one in found if one.policy != row.policy),
        key=lambda one: one.step,
    )
    served = production_of(session, row.policy.partition("@")[0])
    return RoundRow(row.id, row.state, row.policy, row.reference, served or row.policy, tuple(candidates))


def production_of(session: Session, model: str) -> str | None:
    """The policy version in production under a model name; None where nothing is."""
    for row in session.execute(_PLANS):
        if row.model == model:
            return next((arm["policy"] for arm in row.arms if arm["arm"] == "production"), None)
    return None


def begin_run(
    session: Session,
    *,
    round_id: UUID | None,
    policies: Sequence[str],
    baseline: str,
    reference: str | None,
    judge: str | None,
    config: dict[str, Any],
    again: bool = False,
) -> EvalRun:
    """The newest run of the same content, to be resumed or read, else a new one.

    Args:
        session: As the role `ratchet_evaluator`.
        round_id: Whose candidates these are.
        policies: Candidates.
        baseline: What they are compared with.
        reference: Compared with too, where it is another one.
        judge: Its ref.
        config: Everything else that the outcome follows from.
        again: Make a new one in any case.
    """
    values: dict[str, Any] = {
        "round_id": round_id,
        "policies": sorted(policies),
        "baseline": baseline,
        "reference": reference,
        "judge": judge,
        "config": config,
    }
    digest = digest_of({**values, "round_id": str(round_id)})
    session.execute(text("SELECT pg_advisory_xact_lock(hashtext(:digest))"), {"digest": digest})
    same = select(EvalRun).where(EvalRun.config_digest == digest).order_by(EvalRun.id.desc()).limit(1)
    found = session.scalars(same).first()
    if found is not None and not again:
        if found.state == "failed":
            found.state, found.error, found.ended_at = "running", None, None
        return found
    run = EvalRun(id=new_id(), config_digest=digest, **values)
    session.add(run)
    session.flush()
    return run


def known_selection(
    session: Session, *, round_id: UUID, policies: Sequence[str], judge: str | None, config: dict[str, Any]
) -> SelectionRow | None:
    """The newest record of a round that answers this question, whatever is in production by now.

    Args:
        session: As the role `ratchet_evaluator`.
        round_id: The round.
        policies: Its candidates.
        judge: The judge's ref.
        config: Everything else that the outcome follows from, but for what candidates were compared with.
    """
    same = (
        select(SelectionRow)
        .join(EvalRun, EvalRun.id == SelectionRow.run_id)
        .where(EvalRun.round_id == round_id, EvalRun.judge.is_not_distinct_from(judge))
        .where(EvalRun.policies == sorted(policies), EvalRun.config == config, EvalRun.state == "done")
    )
    return session.scalars(same.order_by(SelectionRow.id.desc()).limit(1)).first()


class RunRows:
    """The rows of one run."""

    def __init__(self, database: Engine, run: UUID) -> None:
        """Works as the role `ratchet_evaluator`.

        Args:
            database: Connections of that role.
            run: Its id.
        """
        self._database = database
        self.id = run

    def items(self) -> dict[str, list[Item]]:
        """The frozen prompts by suite, in their order."""
        query = select(ItemRow).where(ItemRow.run_id == self.id).order_by(ItemRow.suite, ItemRow.position)
        found: dict[str, list[Item]] = {}
        with session_scope(self._database) as session:
            for row in session.scalars(query):
                item = Item(row.suite, row.item, tuple(row.messages), row.spec)
                found.setdefault(row.suite, []).append(item)
        return found

    def freeze(self, items: Iterable[Item]) -> None:
        """Writes the prompts of a run that begins."""
        with session_scope(self._database) as session:
            session.add_all(
                ItemRow(
                    run_id=self.id, suite=item.suite, item=item.name, position=position,
                    prompt_hash=item.prompt_hash, messages=list(item.messages), spec=item.spec,
                )
                for position, item in enumerate(items)
            )  # fmt: skip

    def answers(self, policy: str) -> dict[tuple[str, str], Answer]:
        """The answers of a policy so far, by suite and item."""
        query = select(AnswerRow).where(AnswerRow.run_id == self.id, AnswerRow.policy == policy)
        with session_scope(self._database) as session:
            return {
                (row.suite, row.item): Answer(row.text, row.finish_reason, row.tokens, tuple(row.tool_calls))
                for row in session.scalars(query)
            }

    def keep_answers(self, policy: str, given: Sequence[Given]) -> None:
        """Writes answers; one that is there already stays."""
        values = [
            {
                "run_id": self.id, "policy": policy, "suite": one.item.suite, "item": one.item.name,
                "text": one.answer.text, "finish_reason": one.answer.finish_reason,
                "tokens": one.answer.tokens, "tool_calls": list(one.answer.tool_calls),
                "fingerprint": one.fingerprint,
            }
            for one in given
        ]  # fmt: skip
        if values:
            with session_scope(self._database) as session:
                session.execute(insert(AnswerRow).on_conflict_do_nothing(), values)

    def keep_outcomes(self, policy: str, suite: str, scorer: str, scored: Sequence[Scored]) -> None:
        """Writes outcomes; equal answers have equal outcomes, so those that are there stay."""
        values = [
            {
                "run_id": self.id, "policy": policy, "suite": suite, "metric": one.metric, "item": one.item,
                "scorer": scorer, "outcome": one.score.outcome.value, "reason": one.score.reason,
            }
            for one in scored
        ]  # fmt: skip
        if values:
            with session_scope(self._database) as session:
                session.execute(insert(OutcomeRow).on_conflict_do_nothing(), values)

    def verdicts(self) -> list[VerdictRow]:
        """Every verdict, in a fixed order."""
        query = select(VerdictRow).where(VerdictRow.run_id == self.id)
        order = (VerdictRow.candidate, VerdictRow.other, VerdictRow.suite, VerdictRow.item, VerdictRow.source)
        with session_scope(self._database) as session:
            return list(session.scalars(query.order_by(*order)))

    def keep_verdicts(self, values: Sequence[dict[str, Any]]) -> None:
        """Writes verdicts, a new one over one that was unscored."""
        if not values:
            return
        asked = insert(VerdictRow)
        told = ("shown_first", "shown_second", "result", "agreed", "reason")
        kept = asked.on_conflict_do_update(
            index_elements=["run_id", "candidate", "other", "suite", "item", "source"],
            set_={name: asked.excluded[name] for name in told},
            where=VerdictRow.result.is_(None),
        )
        with session_scope(self._database) as session:
            session.execute(kept, [{"run_id": self.id, **each} for each in values])

    def end(self, *, error: str | None = None, summary: dict[str, Any] | None = None) -> None:
        """Ends the run, as `end_run`."""
        with session_scope(self._database) as session:
            end_run(session, self.id, error=error, summary=summary)


def end_run(
    session: Session, run: UUID, *, error: str | None = None, summary: dict[str, Any] | None = None
) -> None:
    """Ends a run: failed with an error, done with a summary, waiting with neither; a done one stays done."""
    ended = error is not None or summary is not None
    state = "failed" if error is not None else "done" if summary is not None else "waiting"
    session.execute(
        update(EvalRun)
        .where(EvalRun.id == run, EvalRun.state != "done")
        .values(state=state, error=error, summary=summary, ended_at=func.now() if ended else None)
    )
