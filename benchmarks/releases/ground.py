"""What the measurements of releases stand on: a real PostgreSQL, real gateway processes, two stub engines."""

import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from migrations.run import migrate, provision_logins
from ratchet.db.engine import session_scope
from ratchet.embedded import EmbeddedPostgres
from ratchet.plan import PlannedArm, publish
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess, Operator, operator_of, running_gateway, running_stub
from tests.support.stub_engine import StubEngine

MODEL = "m"
CHAT = "/v1/chat/completions"
READY_S = 60


@dataclass(frozen=True)
class Ground:
    """Everything that runs.

    Attributes:
        operator: Acts on the database.
        gateways: The processes, each with a port of its own.
        key: A client's key.
        old: Policy in production.
        new: The candidate.
        new_engine: Its stub.
    """

    operator: Operator
    gateways: list[GatewayProcess]
    key: str
    old: str
    new: str
    new_engine: StubEngine

    def plan(self, *arms: PlannedArm, cut: bool = False) -> int:
        """Publishes a plan, as a release does."""
        with session_scope(self.operator.engine) as session:
            return publish(
                session, model=MODEL, stage="measured", arms=arms, actor="benchmark", reason="benchmark",
                salt="salt", cut=cut,
            )  # fmt: skip

    def session(self) -> aiohttp.ClientSession:
        """A client."""
        return aiohttp.ClientSession(headers={"Authorization": f"Bearer {self.key}"})


@contextmanager
def standing_ground(processes: int, gap_s: float, tokens: int) -> Generator[Ground]:
    """Starts everything, and ends it.

    Args:
        processes: Gateway processes.
        gap_s: Seconds between an engine's tokens.
        tokens: Of an answer.
    """
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-benchmark-")))
        server = EmbeddedPostgres(folder / "postgres", folder / "password")
        server.start()
        ending.callback(server.stop, immediate=True)
        migrate(server.owner_url)
        database = Database(server.owner_url, provision_logins(server.owner_url, {}))
        operator = ending.enter_context(operator_of(database))
        old, new = operator.policy(MODEL), operator.policy(MODEL, weights=1)
        operator.plan(MODEL, old)
        behaviour = {"tokens": tokens, "gap_s": gap_s}
        engines = [
            ending.enter_context(
                running_stub(policy, weights=weights, fingerprint=f"stub-{weights}", **behaviour)
            )
            for weights, policy in enumerate((old, new))
        ]
        for policy, engine in zip((old, new), engines, strict=True):
            operator.add_engine(policy, engine.url)
        gateways: list[GatewayProcess] = []
        for number in range(processes):
            place = folder / f"gateway-{number}"
            place.mkdir()
            gateways.append(ending.enter_context(running_gateway(database, place, plan_poll_s=2)))
        key = operator.key()
        for gateway in gateways:
            for policy in (old, new):
                _until(lambda gateway=gateway, policy=policy: _answers(gateway, policy, key))
        yield Ground(operator, gateways, key, old, new, engines[1])


def _answers(gateway: GatewayProcess, policy: str, key: str) -> bool:
    document = {"model": policy, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    return gateway.post(CHAT, document, key)[0] == 200


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready within {READY_S} s")
        time.sleep(0.1)
