"""The processes of a stack that are not engines. Each is given its own role's address and no other.

The trainer's alone are given the key of the reward store, and the evaluator's run confined. Releases are
walked and shown by a process of its own, as the operator: no gateway can write the plan that it serves by.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.broker import broker_url
from ratchet.db.roles import Role
from ratchet.home import Home
from ratchet.sealed import KEY_VARIABLE
from ratchet.settings import GatewaySettings, Process, WorkerSettings
from ratchet.supervisor import ports
from ratchet.supervisor.child import Command
from ratchet.supervisor.confinement import Confinement
from ratchet.supervisor.environment import of_service

SUBSYSTEMS = (Role.FEEDBACK, Role.TRAINER, Role.EVALUATOR)
RELEASES = "releases"
LOCAL = "127.0.0.1"
GATEWAY_GRACE_S = 6.0
WEB_GRACE_S = 2.0
WORKER_GRACE_S = 6.0
_CODE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Roster:
    """The commands, in the order in which they are started.

    Attributes:
        gateway: Stopped first, so that answers under way can end and be recorded.
        others: Web applications and workers.
        addresses: Service to the address people use.
    """

    gateway: Command
    others: tuple[Command, ...]
    addresses: dict[str, str]


@dataclass(frozen=True)
class Keys:
    """Secrets of the stack that some of its processes are given.

    Attributes:
        engine: Key the engines ask for: the gateway's and the evaluator's.
        reward_store: Key of the reward store: the trainer's.
    """

    engine: str
    reward_store: str


def roster(
    home: Home,
    urls: Mapping[Role, str],
    keys: Keys,
    evaluator: Confinement | None,
    host: str,
    port: int,
    gateway_workers: int,
) -> Roster:
    """Everything beside PostgreSQL and the engines.

    Args:
        home: The data folder.
        urls: Address of each role.
        keys: Secrets for those who may have them.
        evaluator: What the evaluator's processes see; None where this machine confines none.
        host: Address the gateway and the rating page listen on; what only operators look at stays local.
        port: Port of the gateway; web applications take the next four, or free ones where those are taken.
        gateway_workers: Processes of the gateway.
    """
    addresses = {"gateway": _address(host, port)}
    taken = {port}
    others: list[Command] = []
    for offset, role in enumerate(SUBSYSTEMS, start=1):
        place = host if role is Role.FEEDBACK else LOCAL
        chosen = ports.near(place, port + offset, taken)
        taken.add(chosen)
        addresses[role.service] = _address(place, chosen)
        pair = (
            _web(home, role, urls[role], keys, place, chosen),
            _worker(home, role, urls[role], keys),
        )
        if role is Role.EVALUATOR and evaluator is not None:
            others += [replace(command, argv=(*evaluator.words(), *command.argv)) for command in pair]
        else:
            others += pair
    chosen = ports.near(LOCAL, port + len(SUBSYSTEMS) + 1, taken)
    addresses[RELEASES] = _address(LOCAL, chosen)
    others.append(_releases(home, urls[Role.OPERATOR], addresses["gateway"], chosen))
    return Roster(
        _gateway(home, urls[Role.GATEWAY], keys.engine, host, port, gateway_workers), tuple(others), addresses
    )


def _gateway(home: Home, url: str, engine_key: str, host: str, port: int, workers: int) -> Command:
    return Command(
        name="gateway",
        argv=(
            sys.executable, "-m", "gateway", "--host", host, "--port", str(port), "--workers", str(workers),
        ),
        env=of_service(
            "gateway",
            GatewaySettings,
            {
                "RATCHET_SPOOL_DIR": str(home.spool),
                "RATCHET_SWITCH_DIR": str(home.switch),
                "RATCHET_INSTANCE": "gateway",
            },
            {"RATCHET_DATABASE_URL": url, "RATCHET_ENGINE_API_KEY": engine_key},
        ),
        cwd=_CODE,
        log=home.logs / "gateway.log",
        grace_s=GATEWAY_GRACE_S,
    )  # fmt: skip


def _releases(home: Home, url: str, gateway_url: str, port: int) -> Command:
    return Command(
        name=RELEASES,
        argv=(
            sys.executable, "-m", "uvicorn", "gateway.releases.app:create_app", "--factory",
            "--host", LOCAL, "--port", str(port), "--no-access-log", "--log-level", "warning",
            "--timeout-graceful-shutdown", "1",
        ),
        env=of_service(
            "release",
            Process,
            {"RATCHET_RELEASE_GATEWAY_URL": gateway_url, "RATCHET_INSTANCE": RELEASES},
            {"RATCHET_DATABASE_URL": url},
        ),
        cwd=_CODE,
        log=home.logs / f"{RELEASES}.log",
        grace_s=WEB_GRACE_S,
    )  # fmt: skip


def _web(home: Home, role: Role, url: str, keys: Keys, host: str, port: int) -> Command:
    service = role.service
    return Command(
        name=f"{service}-web",
        argv=(
            sys.executable, "-m", "uvicorn", f"{service}.app:create_app", "--factory",
            "--host", host, "--port", str(port), "--no-access-log", "--log-level", "warning",
            "--timeout-graceful-shutdown", "1",
        ),
        env=_subsystem_environment(home, role, url, keys, "web"),
        cwd=_CODE,
        log=home.logs / f"{service}-web.log",
        grace_s=WEB_GRACE_S,
    )  # fmt: skip


def _worker(home: Home, role: Role, url: str, keys: Keys) -> Command:
    service = role.service
    (home.run / service).mkdir(parents=True, exist_ok=True)
    return Command(
        name=f"{service}-worker",
        argv=(
            sys.executable, "-m", "celery", "-A", f"{service}.worker", "worker",
            "--queues", service, "--beat", "--schedule", str(home.run / service / "beat"),
            "--pool", "solo", "--hostname", f"{service}@%h", "--loglevel", "INFO",
            "--without-gossip", "--without-mingle", "--without-heartbeat",
        ),
        env=_subsystem_environment(home, role, url, keys, "worker"),
        cwd=_CODE,
        log=home.logs / f"{service}-worker.log",
        grace_s=WORKER_GRACE_S,
    )  # fmt: skip


def _subsystem_environment(home: Home, role: Role, url: str, keys: Keys, kind: str) -> dict[str, str]:
    given = {"RATCHET_HOME": str(home.root), "RATCHET_INSTANCE": f"{role.service}-{kind}"}
    secrets = {"RATCHET_DATABASE_URL": url, "RATCHET_BROKER_URL": broker_url(url)}
    if role is Role.TRAINER:
        secrets[KEY_VARIABLE] = keys.reward_store
    if role is Role.EVALUATOR:
        given["HOME"] = str(home.evaluation)
        secrets["RATCHET_EVALUATOR_ENGINE_KEY"] = keys.engine
    return of_service(role.service, WorkerSettings, given, secrets)


def _address(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"
