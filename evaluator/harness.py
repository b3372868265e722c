"""One evaluation run, top to bottom: prompts frozen, answers generated, scored and compared.

Everything is in rows as soon as it is known, so a run that died goes on where it was. A run without a judge
uses task metrics only, and its summary says so.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Engine

from evaluator.comparing import Contest, ask_judge, decided_without_a_judge, judged_of
from evaluator.engines import Report, served_policy
from evaluator.figures import Measured
from evaluator.generation import Given, generate
from evaluator.judges import JudgeVersion, require_calibrated, require_independent
from evaluator.raters import SOURCE, StillRating, ask_raters, collect
from evaluator.repository import OF_A_SUITE, RowPrompts, RunRows, begin_run, hold_out
from evaluator.scorers.outcome import Answer
from evaluator.scoring import Refuses, Scored, metrics_of, score_suite, tools_of
from evaluator.settings import EvaluatorSettings
from evaluator.suites.items import Item, freeze
from evaluator.suites.model import FileSource, Suite
from ratchet.canonical import digest_of
from ratchet.db.engine import session_scope
from ratchet.errors import RatchetError, UsageError
from ratchet.prompts import prompt_text
from ratchet.registry import get_policy

KEPT_AT_ONCE = 16
ONLY_TASKS = "no judge: candidates are ranked by task metrics alone"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What is to be evaluated, and against what."""

    policies: tuple[str, ...]
    """Candidates."""
    baseline: str
    """What is in production."""
    suites: tuple[Suite, ...]
    round_id: UUID | None = None
    reference: str | None = None
    """Judged against too, where it is another policy than the baseline."""
    judge: JudgeVersion | None = None
    raters: int = 0
    """Votes of evaluation raters for each comparison, in the place of a judge; 0 asks none."""
    data: Path = Path()
    """What paths of data files are relative to."""
    seed: int = 0
    primary: str | None = None
    """Suite that ranks; None leaves it to `evaluator.figures.primary_suite`."""

    @property
    def compares(self) -> bool:
        """Whether judged suites have a source of verdicts."""
        return self.judge is not None or self.raters > 0

    def everyone(self) -> tuple[str, ...]:
        """Every policy that answers, each once, the baseline first."""
        named = (self.baseline, *([self.reference] if self.reference else []), *self.policies)
        return tuple(dict.fromkeys(named))

    def others(self) -> tuple[str, ...]:
        """Whom candidates are compared with by the judge."""
        return tuple(dict.fromkeys((self.baseline, *([self.reference] if self.reference else []))))

    def config(self) -> dict[str, Any]:
        """All that the outcome follows from, in JSON types; policies and judge stand beside it."""
        return {
            "suites": [suite.model_dump(mode="json") for suite in self.suites],
            "suites_digest": digest_of([suite.model_dump(mode="json") for suite in self.suites]),
            "seed": self.seed,
            "primary": self.primary,
            "raters": self.raters,
        }


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run works with."""

    database: Engine
    """As the role `ratchet_evaluator`."""
    settings: EvaluatorSettings
    engine_key: str
    """What engines ask for."""
    refuses: Refuses
    report: Report


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run that came to its end."""

    id: UUID
    measured: Mapping[str, Measured]
    """By policy."""
    items: Mapping[str, Sequence[Item]]
    answers: Mapping[str, Mapping[tuple[str, str], Answer]]


def evaluate(plan: RunPlan, parts: Parts, *, again: bool = False) -> RunResult:
    """Runs a plan, or goes on with the run of the same plan.

    Args:
        plan: What is evaluated.
        parts: What it works with.
        again: Begin anew in any case.

    Raises:
        JudgeRefused: The judge is not independent of a policy or a reward model, or was not shown to be good.
        StillRating: Evaluation raters have not voted on everything yet; call again later.
        JudgeFailed: Too many comparisons have no verdict.
        EngineError: An engine does not come up, or fails for good.
        ConfigError: A suite cannot be asked.
        UsageError: There is no candidate, a suite twice, or both a judge and raters.
    """
    _check(plan)
    dimensions = [suite.dimension for suite in plan.suites if suite.scorer == "judge"]
    with session_scope(parts.database) as session:
        for policy in plan.everyone():
            get_policy(session, policy)
        if plan.judge is not None:
            require_independent(session, plan.judge, plan.everyone())
            require_calibrated(session, plan.judge, dimensions)
        run = begin_run(
            session,
            round_id=plan.round_id,
            policies=plan.policies,
            baseline=plan.baseline,
            reference=plan.reference,
            judge=plan.judge.ref if plan.judge else None,
            config=plan.config(),
            again=again,
        )
    rows = RunRows(parts.database, run.id)
    try:
        items = _frozen(plan, parts, rows)
        answers = {policy: _answered(plan, parts, rows, policy, items) for policy in plan.everyone()}
        scored = {
            policy: _scored(plan, parts, rows, policy, items, answers[policy]) for policy in plan.everyone()
        }
        if plan.judge is not None:
            _compared(plan, plan.judge, parts, rows, items, answers)
        elif plan.raters:
            _rated(plan, parts, rows, items, answers)
        verdicts = rows.verdicts()
        measured = {
            policy: Measured(policy, scored[policy], judged_of(verdicts, policy))
            for policy in plan.everyone()
        }
    except StillRating:
        rows.end()
        raise
    except RatchetError as error:
        rows.end(error=str(error))
        raise
    return RunResult(run.id, measured, items, answers)


def finish(parts: Parts, run: UUID, summary: dict[str, Any]) -> None:
    """Ends a run that was evaluated."""
    RunRows(parts.database, run).end(summary=summary)


def _check(plan: RunPlan) -> None:
    if not plan.policies:
        raise UsageError("there is no candidate to evaluate")
    if plan.judge is not None and plan.raters:
        raise UsageError("verdicts come from a judge or from raters: name one of them")
    names = [suite.name for suite in plan.suites]
    if len(set(names)) < len(names) or not names:
        raise UsageError("a run has at least one suite, and each suite once")
    if not plan.compares and all(suite.scorer == "judge" for suite in plan.suites):
        raise UsageError("every one of these suites needs verdicts: name a judge or ask raters")


def _frozen(plan: RunPlan, parts: Parts, rows: RunRows) -> dict[str, list[Item]]:
    found = rows.items()
    if found:
        return found
    with session_scope(parts.database) as session:
        prompts = RowPrompts(session)
        asked: list[Item] = []
        for suite in plan.suites:
            if suite.scorer == "judge" and not plan.compares:
                continue
            items = freeze(suite, plan.data, prompts)
            if suite.source is None or isinstance(suite.source, FileSource):
                hold_out(session, OF_A_SUITE + suite.name, (prompt_text(item.messages) for item in items))
            asked += items
    rows.freeze(asked)
    return rows.items()


def _answered(
    plan: RunPlan, parts: Parts, rows: RunRows, policy: str, items: Mapping[str, Sequence[Item]]
) -> dict[tuple[str, str], Answer]:
    tools = {suite.name: tools_of(suite) for suite in plan.suites}
    known = rows.answers(policy)
    missing = [
        (item, tools[suite])
        for suite, asked in items.items()
        for item in asked
        if (suite, item.name) not in known
    ]
    if not missing:
        return known
    with session_scope(parts.database) as session:
        decode = get_policy(session, policy).decode

    async def ask() -> None:
        kept: list[Given] = []
        given = generate(
            served,
            decode,
            missing,
            api_key=parts.engine_key,
            seed=plan.seed,
            concurrency=parts.settings.evaluator_concurrency,
        )
        try:
            async for one in given:
                kept.append(one)
                if len(kept) >= KEPT_AT_ONCE:
                    rows.keep_answers(policy, kept)
                    kept = []
        finally:
            await given.aclose()
            rows.keep_answers(policy, kept)

    with served_policy(parts.database, policy, parts.report) as served:
        parts.report(f"{policy} answers {len(missing)} prompts")
        asyncio.run(ask())
    return rows.answers(policy)


def _scored(
    plan: RunPlan,
    parts: Parts,
    rows: RunRows,
    policy: str,
    items: Mapping[str, Sequence[Item]],
    answers: Mapping[tuple[str, str], Answer],
) -> dict[str, list[Scored]]:
    by_metric: dict[str, list[Scored]] = {}
    for suite in plan.suites:
        if suite.scorer == "judge":
            continue
        asked = items[suite.name]
        given = {item.name: answers[suite.name, item.name] for item in asked}
        scored = score_suite(suite, asked, given, parts.refuses)
        rows.keep_outcomes(policy, suite.name, suite.scorer, scored)
        for metric in metrics_of(suite):
            by_metric[metric] = [one for one in scored if one.metric == metric]
    return by_metric


def _compared(
    plan: RunPlan,
    judge: JudgeVersion,
    parts: Parts,
    rows: RunRows,
    items: Mapping[str, Sequence[Item]],
    answers: Mapping[str, Mapping[tuple[str, str], Answer]],
) -> None:
    known = {
        (row.candidate, row.other, row.suite, row.item)
        for row in rows.verdicts()
        if row.source == "judge" and row.result is not None
    }
    waiting = [one for one in contests(plan, items, answers) if one.key not in known]
    if not waiting:
        return
    endpoint = parts.settings.endpoint(judge.endpoint, judge.model, judge.parameters)
    open_ones = _settle_equals(rows, "judge", waiting)
    parts.report(f"{judge.ref} compares {len(open_ones)} pairs")

    async def ask() -> None:
        kept: list[dict[str, Any]] = []
        verdicts = ask_judge(endpoint, judge.templates, open_ones)
        try:
            async for verdict in verdicts:
                kept.append(verdict)
                if len(kept) >= KEPT_AT_ONCE:
                    rows.keep_verdicts(kept)
                    kept = []
        finally:
            await verdicts.aclose()
            rows.keep_verdicts(kept)

    asyncio.run(ask())


def _settle_equals(rows: RunRows, source: str, waiting: Sequence[Contest]) -> list[Contest]:
    """Writes the ties of equal answers; what is left has to be asked."""
    same = [(one, verdict) for one in waiting if (verdict := decided_without_a_judge(one)) is not None]
    rows.keep_verdicts([one.row(source, verdict, (None, None)) for one, verdict in same])
    settled = {one.key for one, _ in same}
    return [one for one in waiting if one.key not in settled]


def _rated(
    plan: RunPlan,
    parts: Parts,
    rows: RunRows,
    items: Mapping[str, Sequence[Item]],
    answers: Mapping[str, Mapping[tuple[str, str], Answer]],
) -> None:
    known = {(row.candidate, row.other, row.suite, row.item) for row in rows.verdicts()}
    waiting = [one for one in contests(plan, items, answers) if one.key not in known]
    open_ones = _settle_equals(rows, SOURCE, waiting)
    with session_scope(parts.database) as session:
        ask_raters(session, rows.id, open_ones, plan.raters, now=datetime.now(UTC))
        told, left = collect(session, rows.id, open_ones, plan.raters)
    rows.keep_verdicts(told)
    if left:
        raise StillRating(
            f"{left} comparisons wait in the queue of the evaluation raters, {plan.raters} votes each;"
            " call again when they have voted"
        )


def contests(
    plan: RunPlan,
    items: Mapping[str, Sequence[Item]],
    answers: Mapping[str, Mapping[tuple[str, str], Answer]],
) -> list[Contest]:
    """Every pair of answers that is to be judged."""
    return [
        Contest(
            candidate,
            other,
            item,
            answers[candidate][suite.name, item.name],
            answers[other][suite.name, item.name],
            suite.dimension,
        )
        for suite in plan.suites
        if suite.scorer == "judge"
        for candidate in plan.policies
        for other in plan.others()
        if other != candidate
        for item in items.get(suite.name, ())
    ]
