"""Floors while a round trains: the newest checkpoint is asked every so many steps, a breach stops the round.

The word `stop` goes into the round's control row, with the floor, and the checkpoint to restart from. The
trainer reads that row between steps; it learns which floor broke and nothing of the prompts.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import insert

from evaluator.figures import floors_of
from evaluator.harness import Parts, RunPlan, evaluate, finish
from evaluator.repository import CandidateRow, read_round
from evaluator.selection import Floor
from evaluator.suites.model import Suite
from ratchet.db.engine import session_scope
from ratchet.db.models.training import RoundControl
from ratchet.errors import ConfigError
from ratchet.ids import new_id

WHO = "evaluator"
OPEN_STATES = ("asked", "running")


@dataclass(frozen=True, slots=True)
class Look:
    """One checkpoint against the floors."""

    policy: str
    step: int
    floors: tuple[Floor, ...]

    @property
    def breached(self) -> tuple[Floor, ...]:
        """The floors that do not hold."""
        return tuple(floor for floor in self.floors if not floor.passed)


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of a round so far."""

    round_id: str
    suites: tuple[Suite, ...]
    every: int
    """Steps between looks at least."""
    data: Path = Path()
    seed: int = 0
    last: Look | None = None
    good: Look | None = None
    """The last one whose floors held."""


def floored(suites: tuple[Suite, ...]) -> tuple[Suite, ...]:
    """The suites that have a floor and are scored without a judge.

    Raises:
        ConfigError: There is none, so that nothing could be breached.
    """
    kept = tuple(suite for suite in suites if suite.floor is not None and suite.scorer != "judge")
    if not kept:
        raise ConfigError("none of these suites has a floor: nothing could stop the round")
    return kept


def look(watch: Watch, parts: Parts) -> tuple[Watch, bool]:
    """Looks at the newest checkpoint, if it is far enough from the last one looked at.

    Args:
        watch: The round so far; its suites have floors.
        parts: What the evaluation works with.

    Returns:
        The round as it is known now, and whether it may still bring a further checkpoint.

    Raises:
        RatchetError: As `evaluator.harness.evaluate`.
    """
    with session_scope(parts.database) as session:
        found = read_round(session, watch.round_id)
    goes_on = found.state in OPEN_STATES
    after = -watch.every if watch.last is None else watch.last.step
    newest = max(found.candidates, key=lambda one: one.step, default=None)
    if newest is None or newest.step < after + watch.every:
        return watch, goes_on
    seen = _look_at(newest, watch, parts, found.id)
    if not seen.breached:
        return replace(watch, last=seen, good=seen), goes_on
    if goes_on:
        with session_scope(parts.database) as session:
            session.execute(
                insert(RoundControl).values(
                    id=new_id(), round_id=found.id, word="stop", who=WHO, why=reason(seen, watch.good)
                )
            )
    return replace(watch, last=seen), False


def reason(seen: Look, good: Look | None) -> str:
    """Why a round is stopped, and where to begin again, in words."""
    floors = "; ".join(floor.shown for floor in seen.breached)
    restart = "the beginning" if good is None else f"step {good.step} ({good.policy})"
    return f"floor breached at step {seen.step}: {floors}. Restart from {restart} with a larger beta"


def _look_at(row: CandidateRow, watch: Watch, parts: Parts, round_id: object) -> Look:
    plan = RunPlan(
        policies=(row.policy,), baseline=row.policy, suites=watch.suites, data=watch.data, seed=watch.seed
    )
    result = evaluate(plan, parts)
    seen = Look(row.policy, row.step, tuple(floors_of(result.measured[row.policy], watch.suites)))
    finish(
        parts,
        result.id,
        {"round": str(round_id), "step": row.step, "breached": [floor.name for floor in seen.breached]},
    )
    return seen
