"""The third step of a turn of the loop: the candidates of its round are evaluated, and one or none chosen.

An evaluation takes long, so the worker starts one process at a time for it, which ends with the worker, and
is begun again where it was. What is asked stands in the turn's row; where engines and judges answer does not.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from evaluator.engines import Report
from evaluator.figures import primary_suite
from evaluator.harness import RunPlan
from evaluator.judges import get_judge
from evaluator.raters import StillRating
from evaluator.records import select_for_round
from evaluator.repository import read_round
from evaluator.settings import EvaluatorSettings
from evaluator.suites.model import Suite, parse_suite
from evaluator.wiring import parts_of, suites_named
from ratchet.db.engine import session_scope
from ratchet.db.models.evaluation import SelectionRow
from ratchet.db.models.operations import Loop
from ratchet.errors import DatabaseUnavailable, RatchetError
from ratchet.home import Home
from ratchet.logs import get_logger
from ratchet.loop import Due, State, Step, check, due, note
from ratchet.supervisor import leash

PROGRAM = "evaluator.conductor"
AGAIN_LATER = 75
"""Exit code of a process whose run waits for raters, or for the database (EX_TEMPFAIL of sysexits)."""
WAIT_S = 300.0
NOTHING_TO_CHOOSE = "the round left no candidate"

log = get_logger(__name__)


@dataclass
class Dispatcher:
    """Starts a process for the turn that has waited longest, unless one is at work.

    Attributes:
        conductor: The process at work, if any.
        loop: Its turn.
        not_before: Turns that wait for raters, with the monotonic time of the next look.
    """

    conductor: "subprocess.Popen[Any] | None" = None
    loop: UUID | None = None
    not_before: dict[UUID, float] = field(default_factory=dict[UUID, float])

    def take_steps(self, session: Session) -> None:
        """Begins what is due and ends what was stopped; must be called from the main thread.

        Args:
            session: As the role `ratchet_evaluator`.
        """
        check(session, Step.SELECT, _problem)
        open_ones = due(session, Step.SELECT)
        if self.conductor is not None and self.loop is not None:
            if self.conductor.poll() is None:
                if self.loop not in {one.loop.id for one in open_ones}:
                    self.conductor.terminate()
                return
            self._ended(session, self.loop, self.conductor.returncode)
            self.conductor = self.loop = None
            return
        now = time.monotonic()
        ready = [one for one in open_ones if self.not_before.get(one.loop.id, 0.0) <= now]
        if ready:
            self._begin(session, ready[0].loop.id)

    def _begin(self, session: Session, loop: UUID) -> None:
        self.conductor = subprocess.Popen(
            [
                sys.executable, "-I", "-S", leash.__file__, str(os.getpid()),
                sys.executable, "-m", PROGRAM, str(loop),
            ],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self.loop = loop
        note(session, loop, Step.SELECT, State.RUNNING)
        log.info("a selection begins", loop=str(loop), pid=self.conductor.pid)

    def _ended(self, session: Session, loop: UUID, code: int) -> None:
        if code == AGAIN_LATER:
            self.not_before[loop] = time.monotonic() + WAIT_S
        elif code != 0:
            error = f"the evaluator's process ended with code {code}; its log says by what"
            note(session, loop, Step.SELECT, State.FAILED, error=error)


def carry_out(
    database: Engine, home: Home, loop: UUID, settings: EvaluatorSettings, report: Report
) -> SelectionRow | None:
    """Evaluates the candidates of a turn's round, and notes what was chosen.

    Args:
        database: As the role `ratchet_evaluator`.
        home: The data folder.
        loop: The turn.
        settings: Of the evaluator.
        report: Told how far it is.

    Returns:
        The record; None where there was nothing to do, or the step failed.

    Raises:
        StillRating: Raters have not voted on everything yet.
        DatabaseUnavailable: It cannot be reached.
    """
    with session_scope(database) as session:
        one = next((each for each in due(session, Step.SELECT) if each.loop.id == loop), None)
    if one is None:
        return None
    try:
        row = _select(database, home, one, settings, report)
    except (StillRating, DatabaseUnavailable):
        raise
    except RatchetError as error:
        with session_scope(database) as session:
            note(session, loop, Step.SELECT, State.FAILED, error=str(error))
        return None
    with session_scope(database) as session:
        if row is None:
            note(session, loop, Step.SELECT, State.SKIPPED, detail={"reason": NOTHING_TO_CHOOSE})
        else:
            detail = {"chosen": row.chosen, "reason": row.reason}
            note(session, loop, Step.SELECT, State.DONE, subject=str(row.id), detail=detail)
    return row


def _select(
    database: Engine, home: Home, one: Due, settings: EvaluatorSettings, report: Report
) -> SelectionRow | None:
    asked: dict[str, Any] = one.loop.wish["selection"]
    suites = tuple(_suite(text) for text in asked.get("suites", ())) or suites_named(())
    with session_scope(database) as session:
        found = read_round(session, one.before or "")
        judge = get_judge(session, home, asked["judge"]) if asked.get("judge") else None
    if not found.candidates:
        return None
    plan = RunPlan(
        policies=tuple(each.policy for each in found.candidates),
        baseline=found.production,
        suites=suites,
        round_id=found.id,
        reference=found.reference,
        judge=judge,
        raters=asked.get("raters", 0),
        data=Path(asked.get("data", "")),
        seed=asked.get("seed", 0),
        primary=asked.get("primary"),
    )
    return select_for_round(plan, found, parts_of(home, database, settings, report))


def _problem(loop: Loop) -> str | None:
    try:
        suites = tuple(_suite(text) for text in loop.wish["selection"].get("suites", ()))
        primary_suite(suites or suites_named(()), _judged(loop), loop.wish["selection"].get("primary"))
    except RatchetError as error:
        return str(error)
    return None


def _judged(loop: Loop) -> bool:
    asked: dict[str, Any] = loop.wish["selection"]
    return bool(asked.get("judge") or asked.get("raters"))


def _suite(text: str) -> Suite:
    """A suite by name, or by the text of its file."""
    return parse_suite(text, "the turn's suite") if "\n" in text else suites_named((text,))[0]
