"""Once a week: held-out production traffic for the evaluation raters, and what they said into the harness.

Where two policies answered the same held-out conversation (shadow copies, canaries, hold-backs), one of them
in production now, both answers are compared. The sample is spread over the other policy and the length of
the prompt. What was rated becomes a run like any other, and its prompts join the held-out table as the suite
`traffic`, so that later selections ask them too.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, Select, select, text

from evaluator.comparing import Contest, decided_without_a_judge, judged_of
from evaluator.figures import rates
from evaluator.generation import Given
from evaluator.raters import SOURCE, ask_raters, collect
from evaluator.repository import TRAFFIC, RunRows, begin_run, hold_out
from evaluator.scorers.outcome import Answer
from evaluator.suites.items import Item
from evaluator.turns import in_turn
from ratchet.db.engine import session_scope
from ratchet.db.models.evaluation import EvalRun
from ratchet.ids import floor_of
from ratchet.prompts import message_text

KIND, SUITE, DIMENSION = "weekly traffic", TRAFFIC, "helpfulness"
SAMPLE = 100
VOTES = 2
WINDOW = timedelta(days=7)
LENGTHS = (200, 1_000)
"""Characters of a prompt below which it is short, and medium."""

_PAIRS = text("""
    WITH served AS (
        SELECT DISTINCT ON (model) arm ->> 'policy' AS policy
        FROM serving.traffic_plan, jsonb_array_elements(arms) AS arm
        WHERE arm ->> 'arm' = 'production' ORDER BY model, version DESC
    )
    SELECT DISTINCT ON (theirs.prompt_hash, mine.policy, theirs.policy)
        theirs.prompt_hash, theirs.messages, mine.policy AS candidate, mine.output AS mine,
        theirs.policy AS baseline, theirs.output AS theirs
    FROM feedback.heldout_traffic AS theirs
    JOIN served ON served.policy = theirs.policy
    JOIN feedback.heldout_traffic AS mine ON mine.prompt_hash = theirs.prompt_hash
        AND mine.policy <> theirs.policy AND mine.messages = theirs.messages AND mine.id >= :low
    WHERE theirs.id >= :low AND mine.output <> '' AND theirs.output <> ''
    ORDER BY theirs.prompt_hash, mine.policy, theirs.policy, theirs.id
""")


def sample_traffic(database: Engine, *, now: datetime, limit: int = SAMPLE) -> list[UUID]:
    """Begins a run of this week for each policy in production that has answers to compare.

    Called again within the week it changes nothing.

    Args:
        database: As the role `ratchet_evaluator`.
        now: The time.
        limit: Comparisons at most, of each policy in production.

    Returns:
        The runs that were begun.
    """
    week = f"{now:%G-W%V}"
    with session_scope(database) as session:
        found = session.execute(_PAIRS, {"low": floor_of(now - WINDOW)}).all()
    begun: list[UUID] = []
    for baseline in sorted({row.baseline for row in found}):
        pairs = [row for row in found if row.baseline == baseline]
        pairs.sort(key=lambda row: hashlib.sha256(f"{week}{row.prompt_hash}".encode()).digest())
        chosen = in_turn(pairs, lambda row: (row.candidate, _length(row.messages)))[:limit]
        identity = _begin(database, week, baseline, chosen, now)
        if identity is not None:
            begun.append(identity)
    return begun


def collect_ratings(database: Engine) -> list[UUID]:
    """Reads the votes of weekly runs that wait, and ends those that have them all; returns the ended ones."""
    waiting = select(EvalRun).where(EvalRun.state == "waiting", EvalRun.config["kind"].astext == KIND)
    ended: list[UUID] = []
    with session_scope(database) as session:
        runs = list(session.scalars(waiting.order_by(EvalRun.id)))
    for run in runs:
        rows = RunRows(database, run.id)
        contests = _contests(rows, run)
        with session_scope(database) as session:
            verdicts, left = collect(session, run.id, contests, VOTES)
        rows.keep_verdicts(verdicts)
        if left == 0:
            _end(database, rows, run)
            ended.append(run.id)
    return ended


def _begin(database: Engine, week: str, baseline: str, chosen: Sequence[Any], now: datetime) -> UUID | None:
    with session_scope(database) as session:
        if session.scalars(_of_week(week, baseline)).first() is not None:
            return None
        run = begin_run(
            session,
            round_id=None,
            policies=sorted({row.candidate for row in chosen}),
            baseline=baseline,
            reference=None,
            judge=None,
            config={"kind": KIND, "week": week},
        )
    rows = RunRows(database, run.id)
    spec = {"dimension": DIMENSION, "from": "traffic"}
    items = {row.prompt_hash: Item(SUITE, row.prompt_hash, tuple(row.messages), spec) for row in chosen}
    if not rows.items():
        rows.freeze(items.values())
    for policy, said in _answers(chosen):
        rows.keep_answers(policy, [Given(items[name], Answer(words), None) for name, words in said.items()])
    contests = _contests(rows, run)
    same = [(one, verdict) for one in contests if (verdict := decided_without_a_judge(one)) is not None]
    settled = {one.key for one, _ in same}
    rows.keep_verdicts([one.row(SOURCE, verdict, (None, None)) for one, verdict in same])
    with session_scope(database) as session:
        ask_raters(session, run.id, [one for one in contests if one.key not in settled], VOTES, now=now)
    rows.end()
    return run.id


def _of_week(week: str, baseline: str) -> Select[EvalRun]:
    """The run of a week that is in the raters' queue already."""
    return select(EvalRun).where(
        EvalRun.baseline == baseline,
        EvalRun.state != "running",
        EvalRun.config["kind"].astext == KIND,
        EvalRun.config["week"].astext == week,
    )


def _answers(chosen: Sequence[Any]) -> list[tuple[str, dict[str, str]]]:
    said: dict[str, dict[str, str]] = {}
    for row in chosen:
        said.setdefault(row.baseline, {})[row.prompt_hash] = row.theirs
        said.setdefault(row.candidate, {})[row.prompt_hash] = row.mine
    return list(said.items())


def _contests(rows: RunRows, run: EvalRun) -> list[Contest]:
    """What is compared, without what is settled already."""
    settled = {(row.candidate, row.item) for row in rows.verdicts() if row.result is not None}
    theirs = rows.answers(run.baseline)
    items = rows.items().get(SUITE, [])
    contests: list[Contest] = []
    for policy in run.policies:
        mine = rows.answers(policy)
        contests += [
            Contest(policy, run.baseline, item, mine[SUITE, item.name], theirs[SUITE, item.name], DIMENSION)
            for item in items
            if (SUITE, item.name) in mine and (policy, item.name) not in settled
        ]
    return contests


def _end(database: Engine, rows: RunRows, run: EvalRun) -> None:
    verdicts = rows.verdicts()
    rows.end(
        summary={
            "policies": [
                {"policy": policy, **rates(judged, 0)}
                for policy in run.policies
                for judged in judged_of(verdicts, policy)
            ]
        }
    )
    with session_scope(database) as session:
        hold_out(session, SUITE, _questions(rows.items().get(SUITE, [])))


def _questions(items: Sequence[Item]) -> list[str]:
    """Single questions alone: the held-out table keeps a text, no conversation."""
    return [message_text(item.messages[0]) for item in items if len(item.messages) == 1]


def _length(messages: Sequence[Any]) -> int:
    characters = sum(len(message_text(message)) for message in messages)
    return sum(characters >= bound for bound in LENGTHS)
