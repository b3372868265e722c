"""Selection records: written once, from what a run measured, and read by whoever releases a policy."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from evaluator.figures import (
    Axis,
    Measured,
    accuracy,
    candidates_of,
    gain,
    primary_suite,
    rates,
    rises_alone,
)
from evaluator.harness import ONLY_TASKS, Parts, RunPlan, RunResult, evaluate
from evaluator.judges import JudgeVersion
from evaluator.repository import CandidateRow, RoundRow, end_run, known_selection
from evaluator.scoring import metrics_of
from evaluator.selection import Change, Selection, Standing
from evaluator.selection import select as choose
from evaluator.statistics.interval import Interval
from evaluator.suites.model import Suite
from ratchet.bradley_terry import Match, rank
from ratchet.canonical import digest_of
from ratchet.db.engine import session_scope
from ratchet.db.models.evaluation import SelectionRow
from ratchet.errors import NotFound, UsageError
from ratchet.ids import new_id


def select_for_round(
    plan: RunPlan, round_row: RoundRow, parts: Parts, *, again: bool = False
) -> SelectionRow:
    """Evaluates the candidates of a round and writes the record; the same question has one record, which
    is shown when it is asked again: nothing is generated or judged then, also when another policy is in
    production meanwhile.

    Args:
        plan: Whose policies are the round's candidates.
        round_row: The round.
        parts: What the run works with.
        again: Evaluate anew in any case.

    Raises:
        UsageError: A candidate's KL was not measured.
        RatchetError: As `evaluator.harness.evaluate`.
    """
    primary = primary_suite(plan.suites, plan.compares, plan.primary)
    axes = [_axis(one) for one in round_row.candidates if one.policy in plan.policies]
    if not again and (shown := _shown(plan, round_row, parts)) is not None:
        return shown
    result = evaluate(plan, parts, again=again)
    with session_scope(parts.database) as session:
        known = session.scalars(select(SelectionRow).where(SelectionRow.run_id == result.id)).first()
    if known is not None:
        return known
    candidates = candidates_of(axes, result.measured, plan.baseline, plan.suites, primary, seed=plan.seed)
    selection = choose(candidates)
    record = document(plan, round_row, result, selection, primary)
    summary = {"chosen": selection.chosen, "candidates": len(candidates)}
    with session_scope(parts.database) as session:
        session.execute(
            insert(SelectionRow)
            .values(
                id=new_id(),
                round_id=round_row.id,
                run_id=result.id,
                candidates=record["candidates"],
                chosen=selection.chosen,
                reason=selection.reason,
                record=record,
                digest=digest_of(record),
            )
            .on_conflict_do_nothing(index_elements=["run_id"])
        )
        end_run(session, result.id, summary=summary)
        return session.scalars(select(SelectionRow).where(SelectionRow.run_id == result.id)).one()


def _shown(plan: RunPlan, round_row: RoundRow, parts: Parts) -> SelectionRow | None:
    with session_scope(parts.database) as session:
        return known_selection(
            session,
            round_id=round_row.id,
            policies=plan.policies,
            judge=plan.judge.ref if plan.judge else None,
            config=plan.config(),
        )


def document(
    plan: RunPlan, round_row: RoundRow, result: RunResult, selection: Selection, primary: Suite
) -> dict[str, Any]:
    """The record in JSON types: what was compared, what each candidate showed, what was chosen and why."""
    base = result.measured[plan.baseline]
    return {
        "round": str(round_row.id),
        "run": str(result.id),
        "baseline": plan.baseline,
        "reference": plan.reference,
        "judge": None if plan.judge is None else _judge(plan.judge),
        "raters": plan.raters or None,
        "ranking": _ranking(result, plan),
        "note": None if plan.compares else ONLY_TASKS,
        "ranked_by": primary.name,
        "seed": plan.seed,
        "suites": [_suite(suite) for suite in plan.suites],
        "prompts": {suite: len(items) for suite, items in result.items.items()},
        "production": policy_document(base, base, plan),
        "chosen": selection.chosen,
        "reason": selection.reason,
        "candidates": [
            _candidate(standing, result.measured[standing.candidate.policy], base, plan)
            for standing in selection.standings
        ],
    }


def read_selection(session: Session, text: str) -> SelectionRow:
    """A record by its own id, or the newest of a round.

    Raises:
        UsageError: The text is no id.
        NotFound: There is none.
    """
    try:
        identity = UUID(text)
    except ValueError:
        raise UsageError(f"{text!r} is neither a selection's id nor a round's") from None
    query = select(SelectionRow).where((SelectionRow.id == identity) | (SelectionRow.round_id == identity))
    found = session.scalars(query.order_by(SelectionRow.id.desc()).limit(1)).first()
    if found is None:
        raise NotFound(f"no selection record for {identity}: `ratchet select --round ID` writes one")
    return found


def _axis(row: CandidateRow) -> Axis:
    if row.kl is None:
        raise UsageError(
            f"the KL of {row.policy} (step {row.step}) was not measured, so it has no place on the axis"
        )
    return Axis(row.policy, row.step, max(0.0, row.kl))


def _judge(judge: JudgeVersion) -> dict[str, Any]:
    return {
        "ref": judge.ref,
        "model": judge.model,
        "templates": {dimension: one.digest for dimension, one in judge.templates.items()},
    }


def _ranking(result: RunResult, plan: RunPlan) -> dict[str, Any] | None:
    """Bradley-Terry strengths of candidates, production and reference, over each judged suite's verdicts."""
    found: dict[str, Any] = {}
    for suite in (one for one in plan.suites if one.scorer == "judge" and plan.compares):
        matches = [
            Match(policy, judged.other, one.score, one.prompt)
            for policy, measured in result.measured.items()
            for judged in measured.judged
            if judged.suite == suite.name
            for one in judged.verdicts
        ]
        found[suite.name] = rank(matches, seed=plan.seed).content()
    return found or None


def _suite(suite: Suite) -> dict[str, Any]:
    names = ("name", "description", "skill", "role", "scorer", "floor", "margin")
    return {name: getattr(suite, name) for name in names}


def _candidate(standing: Standing, measured: Measured, base: Measured, plan: RunPlan) -> dict[str, Any]:
    one = standing.candidate
    return {
        **policy_document(measured, base, plan),
        "step": one.step,
        "kl": one.kl,
        "primary": None
        if one.primary is None
        else {"name": one.primary.name, **asdict(one.primary.value), "p_value": one.primary.p_value,
              "nothing_gained": one.primary.nothing_gained},
        "floors": [
            {"name": floor.name, "value": asdict(floor.value), "minimum": floor.minimum,
             "told": floor.told, "passed": floor.passed}
            for floor in one.floors
        ],
        "floors_passed": all(floor.passed for floor in one.floors),
        "changes": _changes(one.changes),
        "told": _changes(one.told),
        "on_frontier": standing.on_frontier,
        "refused": list(standing.refused),
        "flags": rises_alone(measured, base, plan.suites, plan.seed),
    }  # fmt: skip


def _changes(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [
        {"name": change.name, "gain": asdict(change.gain), "margin": change.margin, "kept": change.kept}
        for change in changes
    ]


def policy_document(measured: Measured, base: Measured, plan: RunPlan) -> dict[str, Any]:
    """What a run measured of one policy, in JSON types."""
    return {
        "policy": measured.policy,
        "metrics": _metrics(measured, base, plan.suites, plan.seed),
        "judged": [
            {"suite": one.suite, "against": one.other, **rates(one, plan.seed)} for one in measured.judged
        ],
    }


def _metrics(
    measured: Measured, base: Measured, suites: Sequence[Suite], seed: int
) -> Mapping[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for suite in suites:
        for name in metrics_of(suite):
            counted = accuracy(measured.scored[name])
            same = measured.policy == base.policy
            difference = Interval(0.0, 0.0, 0.0) if same else gain(
                measured.scored[name], base.scored[name], seed
            )  # fmt: skip
            found[name] = {
                "accuracy": asdict(counted.accuracy),
                "gain": asdict(difference),
                "right": counted.right,
                "wrong": counted.wrong,
                "truncated": counted.truncated,
                "unscored": counted.unscored,
            }
    return found
