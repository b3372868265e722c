"""The whole stack on one machine: its start, from top to bottom, its life, and its stop."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic.util import CommandError
from sqlalchemy import text

from migrations.run import migrate, provision_logins
from ratchet.db.engine import open_engine, session_scope
from ratchet.db.roles import Role
from ratchet.errors import EnvironmentFault, PolicyRefused
from ratchet.home import Home
from ratchet.sealed import KEY_NAME
from ratchet.secrets_store import known_role_urls, save_role_urls, shared_key
from ratchet.supervisor import confinement, ports
from ratchet.supervisor.child import end_all, trim_log
from ratchet.supervisor.confinement import Confinement
from ratchet.supervisor.database import Database
from ratchet.supervisor.engines import ENGINE_KEY, Engines
from ratchet.supervisor.environment import inherited
from ratchet.supervisor.janitor import Janitor
from ratchet.supervisor.lock import hold
from ratchet.supervisor.policy import Served, settle
from ratchet.supervisor.ready import Readiness
from ratchet.supervisor.roster import Keys, Roster, roster
from ratchet.supervisor.service import Service
from ratchet.supervisor.settings import SupervisorSettings
from ratchet.supervisor.show import Show
from ratchet.supervisor.sole import Sole
from ratchet.supervisor.state import StateFile, sweep
from ratchet.supervisor.stop import Stop

TICK_S = 0.2
HOUSEKEEPING_EVERY_S = 60.0
MONTHS_AHEAD = 3


@dataclass(frozen=True)
class Wish:
    """What `ratchet up` was asked for.

    Attributes:
        data_dir: Data folder, or None for the default.
        host: Address the gateway listens on.
        port: Port of the gateway.
        model: Policy name, model folder, or None for what the traffic plans say.
        gateway_workers: Processes of the gateway.
    """

    data_dir: Path | None
    host: str
    port: int
    model: str | None
    gateway_workers: int


@dataclass(frozen=True)
class Parts:
    """What runs, once everything was started."""

    database: Database
    sole: Sole
    engines: Engines
    others: list[Service]
    gateway: Service
    janitor: Janitor
    served: Served
    roster: Roster


def run(
    wish: Wish, settings: SupervisorSettings, show: Show, when_ready: Callable[[dict[str, Any]], None]
) -> None:
    """Starts everything, keeps it running until a signal comes, and stops everything in the opposite order.

    So the gateway is stopped first, which lets its answers end and be recorded, and PostgreSQL last.

    Args:
        wish: The command's options.
        settings: The operator's settings.
        show: Where the story is told.
        when_ready: Called once, with the document that describes the stack, when a token can be generated.

    Raises:
        RatchetError: The stack cannot be started; what was started is stopped again.
        KeyboardInterrupt: A signal came before everything was started.
    """
    home = _made(Home.resolve(wish.data_dir))
    with Stop() as stop, hold(home) as lock:
        left = sweep(home)
        if left:
            show.done("cleaned up", f"ended what a killed stack left: {', '.join(left)}")
        ports.check(wish.host, wish.port)
        show.done("data folder", str(home.root))
        with Janitor(home, lock, inherited()) as janitor, ExitStack() as ending:
            try:
                parts = _start(wish, settings, show, home, janitor, stop, ending)
                stop.settle()
                _keep(parts, home, show, stop, when_ready)
            finally:
                stop.settle()
                show.end("stopping", "answers under way may end; once more to stop at once")
        show.end("stopped", f"everything; data stays in {home.root}")


def _start(
    wish: Wish,
    settings: SupervisorSettings,
    show: Show,
    home: Home,
    janitor: Janitor,
    stop: Stop,
    ending: ExitStack,
) -> Parts:
    database = Database(home, settings, show)
    state = StateFile(home, show, embedded=database.embedded is not None)
    ending.callback(state.remove)

    ending.callback(_stop_database, database, stop, show)
    began = time.monotonic()
    version = database.start()
    show.done("database", f"PostgreSQL {version} ({database.place}) after {time.monotonic() - began:.1f} s")

    sole = Sole(database.owner_url)
    ending.callback(sole.close)
    began = time.monotonic()
    _migrate(database.owner_url)
    urls = provision_logins(database.owner_url, known_role_urls(home))
    save_role_urls(home, urls)
    connections = open_engine(urls[Role.OPERATOR], application="ratchet-up", pool_size=1)
    ending.callback(connections.dispose)
    with session_scope(connections) as session:
        session.execute(text("SELECT serving.ensure_response_partitions(:ahead)"), {"ahead": MONTHS_AHEAD})
    show.done(
        "schema", f"newest revision, {len(urls)} roles with logins, after {time.monotonic() - began:.1f} s"
    )

    served = settle(connections, home, wish.model, show)
    engines = Engines(home, settings, connections, show, state.save)
    ending.callback(_stop_engines, engines, stop, show)
    engines.want(served.policies)

    keys = Keys(engine=shared_key(home, ENGINE_KEY), reward_store=shared_key(home, KEY_NAME))
    evaluator = _confinement(home, database, show)
    chosen = roster(home, urls, keys, evaluator, wish.host, wish.port, wish.gateway_workers)
    others = [Service(command, show, state.save) for command in chosen.others]
    ending.callback(_stop_services, "pages, workers", others, stop, show)
    gateway = Service(chosen.gateway, show, state.save)
    ending.callback(_stop_services, "gateway", [gateway], stop, show)

    state.describe(
        chosen.addresses,
        lambda: {
            **engines.children(),
            **{s.command.name: s.child for s in (gateway, *others) if s.child is not None},
        },
    )
    for service, address in chosen.addresses.items():
        show.wait(service, f"starting at {address}")
    return Parts(database, sole, engines, others, gateway, janitor, served, chosen)


def _confinement(home: Home, database: Database, show: Show) -> Confinement | None:
    obstacle = confinement.obstacle()
    if obstacle is not None:
        show.trouble("evaluator", f"not confined: {obstacle}; {confinement.LEFT}")
        return None
    show.done("evaluator", "confined: it sees no secret, no reward model, no training data")
    return confinement.of_evaluator(home, database.embedded.socket_dir if database.embedded else None)


def _made(home: Home) -> Home:
    try:
        return home.ensure()
    except OSError as error:
        raise EnvironmentFault(
            f"the data folder {home.root} cannot be made: {error.strerror}; give another --data-dir"
        ) from error


def _migrate(owner_url: str) -> None:
    try:
        migrate(owner_url)
    except CommandError as error:
        raise EnvironmentFault(
            f"the database cannot be migrated: {error}; it may be of a newer version of Ratchet: use that one"
        ) from error


def _keep(
    parts: Parts, home: Home, show: Show, stop: Stop, when_ready: Callable[[dict[str, Any]], None]
) -> None:
    began = time.monotonic()
    readiness = Readiness(parts.roster.addresses["gateway"], show)
    housekeeping_at = began + HOUSEKEEPING_EVERY_S
    while not stop.wait(TICK_S):
        parts.database.tick()
        parts.sole.tick()
        parts.engines.tick(stop.hurry)
        for service in (parts.gateway, *parts.others):
            service.tick()
        parts.janitor.keep()
        if readiness.tick():
            when_ready(_document(parts, home, show.seconds()))
        if not readiness.reached:
            _give_up_if_hopeless(parts)
        if time.monotonic() >= housekeeping_at:
            housekeeping_at = time.monotonic() + HOUSEKEEPING_EVERY_S
            for log in home.logs.glob("*.log"):
                trim_log(log)


def _give_up_if_hopeless(parts: Parts) -> None:
    refusal = parts.engines.refusal(parts.served.policies)
    if refusal is not None:
        raise PolicyRefused(f"the policy cannot be served: {refusal}")
    if parts.gateway.refusal is not None:
        raise EnvironmentFault(f"the gateway does not start: {parts.gateway.refusal}")


def _stop_services(name: str, services: list[Service], stop: Stop, show: Show) -> None:
    end_all([service.child for service in services if service.child is not None], stop.hurry)
    show.end(name, "stopped")


def _stop_engines(engines: Engines, stop: Stop, show: Show) -> None:
    engines.stop(stop.hurry)
    show.end("engines", "stopped")


def _stop_database(database: Database, stop: Stop, show: Show) -> None:
    database.stop(hurry=stop.hurry())
    show.end("database", "stopped" if database.embedded else "left as it is")


def _document(parts: Parts, home: Home, seconds: float) -> dict[str, Any]:
    return {
        "url": parts.roster.addresses["gateway"],
        "addresses": parts.roster.addresses,
        "models": parts.served.models,
        "data_dir": str(home.root),
        "logs": str(home.logs),
        "database": parts.database.place,
        "pid": os.getpid(),
        "ready_s": round(seconds, 1),
    }
