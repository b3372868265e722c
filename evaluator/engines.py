"""Engines for the time of a run: wanted by rows, waited for, and let go where nothing else needs them.

A wish is alive for as long as its holder keeps a lock of the database's; of one that was killed PostgreSQL
takes the lock back, and whoever looks next dismisses its wish. An engine that several runs hold goes with the
last of them.

Which address a policy answers at stands in `registry.engine` alone: the supervisor or an operator put it
there, no request of the evaluator can.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from ratchet.db.engine import session_scope
from ratchet.db.models.registry import EngineRow
from ratchet.errors import EngineUnavailable
from ratchet.ids import new_id

LOOK_EVERY_S = 0.5
START_TIMEOUT_S = 600.0

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """An engine that is up."""

    policy: str
    url: str
    fingerprint: str | None
    """What its answers carry; null where the row does not say."""


@contextmanager
def served_policy(
    database: Engine, policy: str, report: Report, timeout_s: float = START_TIMEOUT_S
) -> Generator[ServedPolicy]:
    """An engine of a policy, for as long as the context lasts.

    Args:
        database: As the role `ratchet_evaluator`.
        policy: `name@version`.
        report: Told where one waits.
        timeout_s: Until it is up.

    Raises:
        EngineUnavailable: It does not come up; the message says what its row says.
    """
    wish = new_id()
    with database.connect() as holder:
        holder.execute(select(func.pg_advisory_lock(func.evaluation.lock_of_wish(wish))))
        holder.commit()
        with session_scope(database) as session:
            wanted = func.evaluation.want_engine(wish, new_id(), policy)
            identity: UUID = session.execute(select(wanted)).scalar_one()
        try:
            yield _up(database, identity, policy, report, timeout_s)
        finally:
            with session_scope(database) as session:
                session.execute(select(func.evaluation.dismiss_engine(wish)))
            holder.execute(select(func.pg_advisory_unlock(func.evaluation.lock_of_wish(wish))))
            holder.commit()


def dismiss_dead_wishes(session: Session) -> int:
    """Lets go the engines of runs that were killed.

    Args:
        session: As the role `ratchet_evaluator`.

    Returns:
        How many wishes were dead.
    """
    return session.execute(select(func.evaluation.dismiss_dead_wishes())).scalar_one()


def _up(database: Engine, identity: UUID, policy: str, report: Report, timeout_s: float) -> ServedPolicy:
    deadline = time.monotonic() + timeout_s
    told = False
    while True:
        with session_scope(database) as session:
            row = session.get_one(EngineRow, identity)
        if row.state == "up" and row.url is not None:
            return ServedPolicy(policy, row.url.rstrip("/"), row.fingerprint)
        if row.state == "failed" or time.monotonic() > deadline:
            raise EngineUnavailable(
                f"the engine of {policy} is {row.state}, not up"
                f"{f' ({row.last_error})' if row.last_error else ''}: is the stack running (`ratchet up`)?"
            )
        if not told:
            report(f"waiting for the engine of {policy}")
            told = True
        time.sleep(LOOK_EVERY_S)
