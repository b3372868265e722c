"""Keeps the managed rows of `registry.engine` and the processes behind them the same.

The rows are the truth: whoever wants an engine inserts one that is `managed` and desired `up`, and whoever is
done with it sets it `down`. A policy of a plan in force that no row names gets a row here.
"""

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy import Engine as Connections
from sqlalchemy import func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ratchet.artifacts import Kind, store_of
from ratchet.db.engine import session_scope
from ratchet.db.models.registry import EngineRow, Policy
from ratchet.errors import DatabaseUnavailable
from ratchet.home import Home
from ratchet.ids import new_id
from ratchet.plan import current_plans
from ratchet.secrets_store import shared_key
from ratchet.supervisor import cores
from ratchet.supervisor.child import Child, end_all
from ratchet.supervisor.database import first_line
from ratchet.supervisor.engine import HEALTH_TIMEOUT_S, Engine, State, Wanted, Workshop
from ratchet.supervisor.settings import SupervisorSettings
from ratchet.supervisor.show import Show

RECONCILE_EVERY_S = 1.0
ENGINE_KEY = "engine"
_TROUBLES = (DatabaseUnavailable, DBAPIError)


class Engines:
    """Every engine of this stack."""

    def __init__(
        self,
        home: Home,
        settings: SupervisorSettings,
        connections: Connections,
        show: Show,
        changed: Callable[[], None],
    ) -> None:
        self._home = home
        self._settings = settings
        self._show = show
        self._connections = connections
        self._health = httpx.Client(timeout=HEALTH_TIMEOUT_S, trust_env=False)
        self._running: dict[UUID, Engine] = {}
        self._wanted = 0
        self._reconcile_at = 0.0
        self._database_away = False
        self._shop = Workshop(
            home=home,
            settings=settings,
            api_key=shared_key(home, ENGINE_KEY),
            show=show,
            health=self._health,
            cores=self._choose_cores,
            write=self._write,
            changed=changed,
        )

    def refusal(self, policies: tuple[str, ...]) -> str | None:
        """Why the folder of one of these policies cannot be served, if one cannot."""
        engines = (engine for engine in self._running.values() if engine.policy in policies)
        return next((engine.refusal for engine in engines if engine.refusal), None)

    def children(self) -> dict[str, Child]:
        """Processes that run now, by name."""
        return {
            engine.child.command.name: engine.child
            for engine in self._running.values()
            if engine.child is not None
        }

    def want(self, policies: tuple[str, ...]) -> None:
        """Makes sure that these policies have an engine, and forgets what a killed stack said of its own."""
        with session_scope(self._connections) as session:
            stale = EngineRow.managed & (EngineRow.state != State.STOPPED)
            session.execute(
                update(EngineRow)
                .where(stale)
                .values(state=State.WAITING, pid=None, url=None, fingerprint=None, updated_at=func.now())
            )
            for policy in dict.fromkeys(policies):
                rows = session.scalars(
                    select(EngineRow).where(EngineRow.policy == policy).order_by(EngineRow.id.desc())
                ).all()
                if any(row.desired == "up" for row in rows):
                    continue
                ours = next((row for row in rows if row.managed), None)
                if ours is None:
                    session.add(_new_row(policy))
                else:
                    ours.desired = "up"
                    ours.state = State.WAITING

    def tick(self, hurry: Callable[[], bool]) -> None:
        """Brings rows and processes together; while the database is away, processes stay as they are."""
        try:
            if time.monotonic() >= self._reconcile_at:
                self._reconcile_at = time.monotonic() + RECONCILE_EVERY_S
                self._reconcile(hurry)
            for engine in self._running.values():
                engine.tick()
        except _TROUBLES as error:
            if not self._database_away:
                self._database_away = True
                self._show.trouble(
                    "engines", f"the database is away, engines stay as they are: {first_line(error)}"
                )
            return
        if self._database_away:
            self._database_away = False
            self._show.done("engines", "the database is back")

    def stop(self, hurry: Callable[[], bool]) -> None:
        """Ends every engine, and says so in the rows as far as the database can still be reached."""
        end_all(self.children().values(), hurry)
        try:
            for engine in self._running.values():
                engine.stopped()
        except _TROUBLES as error:
            self._show.trouble("engines", f"their rows could not be told: {first_line(error)}")
        self._health.close()

    def _reconcile(self, hurry: Callable[[], bool]) -> None:
        with session_scope(self._connections) as session:
            _add_missing_rows(session)
            found = session.execute(
                select(EngineRow, Policy)
                .join(Policy, Policy.ref == EngineRow.policy)
                .where(EngineRow.managed)
                .order_by(EngineRow.id)
            ).all()
        self._wanted = sum(row.desired == "up" for row, _ in found)
        for row, policy in found:
            engine = self._running.get(row.id)
            if row.desired == "up" and engine is None:
                folder = store_of(self._home, Kind.POLICY).root / policy.artifact
                context = int(policy.architecture["context_length"])
                wanted = Wanted(row.id, row.policy, folder, context, row.restarts)
                self._running[row.id] = Engine(wanted, self._shop)
            elif row.desired == "down" and engine is not None:
                end_all([engine.child] if engine.child else [], hurry)
                engine.stopped()
                del self._running[row.id]
                self._show.end("engine", f"{row.policy} was stopped, as its row asks")
            elif row.desired == "down" and row.state != State.STOPPED:
                self._write(row.id, {"state": State.STOPPED, "pid": None, "url": None, "fingerprint": None})

    def _choose_cores(self) -> list[int]:
        used = [core for engine in self._running.values() for core in engine.cores]
        return cores.choose(cores.usable_cores(), self._wanted, self._settings.engine_cores, used)

    def _write(self, row: UUID, values: dict[str, Any]) -> None:
        with session_scope(self._connections) as session:
            session.execute(
                update(EngineRow).where(EngineRow.id == row).values(**values, updated_at=func.now())
            )


def _add_missing_rows(session: Session) -> None:
    named = {policy for plan in current_plans(session).values() for policy in plan.policies}
    without = select(Policy.ref).where(
        Policy.ref.in_(named), ~select(EngineRow.id).where(EngineRow.policy == Policy.ref).exists()
    )
    session.add_all(_new_row(policy) for policy in session.scalars(without.order_by(Policy.number)))
    session.flush()


def _new_row(policy: str) -> EngineRow:
    return EngineRow(id=new_id(), policy=policy, managed=True, desired="up", state=State.WAITING.value)
