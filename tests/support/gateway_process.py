"""A real gateway process on a real database, with stub engines behind it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Engine, select

from ratchet.db.engine import libpq_url, open_engine, session_scope
from ratchet.db.models.registry import DecodeConfigRow, EngineRow, Policy
from ratchet.db.models.serving import ApiKey
from ratchet.db.roles import Role
from ratchet.decode import DecodeConfig
from ratchet.ids import new_id
from ratchet.keys import mint
from ratchet.plan import Arm, Enforcement, PlannedArm, publish
from tests.conftest import Database
from tests.support import stub_engine

ROOT = Path(__file__).resolve().parents[2]
READY_S = 90
DECODE = DecodeConfig(temperature=0.7, top_p=0.9, max_tokens=64, stop=("<end>",))


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(holds: Callable[[], Any], what: str, timeout_s: float = READY_S) -> Any:
    """Waits for another process, which tells nobody when it has done something; returns what holds."""
    deadline = time.monotonic() + timeout_s
    while not (result := holds()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
    return result


@dataclass
class Operator:
    """What an operator does, by rows."""

    engine: Engine

    def policy(self, name: str, *, weights: int = 0, decode: DecodeConfig = DECODE) -> str:
        """Registers a policy of the stub's kind and returns its ref."""
        version = f"{weights:012x}"
        ref = f"{name}@{version}"
        with session_scope(self.engine) as session:
            session.merge(DecodeConfigRow(digest=decode.digest, config=decode.content()))
            session.flush()
            session.add(
                Policy(
                    ref=ref,
                    name=name,
                    version=version,
                    digest=version,
                    weights_digest=str(weights),
                    tokenizer_digest="t",
                    template_digest="c",
                    decode_digest=decode.digest,
                    artifact="stub",
                    architecture={},
                    golden=stub_engine.golden(weights),
                    provenance={},
                )
            )
        return ref

    def add_engine(self, policy: str, url: str, fingerprint: str | None = None) -> UUID:
        """Wants an engine that is reached by its URL."""
        identity = new_id()
        with session_scope(self.engine) as session:
            session.add(
                EngineRow(
                    id=identity,
                    policy=policy,
                    managed=False,
                    desired="up",
                    state="up",
                    url=url,
                    fingerprint=fingerprint,
                )
            )
        return identity

    def set_engine(self, identity: UUID, **values: Any) -> None:
        """Changes an engine's row, as the supervisor does."""
        with session_scope(self.engine) as session:
            row = session.get_one(EngineRow, identity)
            for name, value in values.items():
                setattr(row, name, value)

    def dismiss(self, policy: str) -> None:
        """Wants no engine of a policy any more."""
        with session_scope(self.engine) as session:
            for row in session.scalars(select(EngineRow).where(EngineRow.policy == policy)):
                row.desired = "down"

    def plan(
        self,
        model: str,
        production: str,
        *,
        canary: tuple[str, float] | None = None,
        enforcement: Enforcement = Enforcement.REPLACE,
        stage: str = "production",
    ) -> int:
        """Publishes a traffic plan and returns its version."""
        share = canary[1] if canary else 0.0
        arms = [PlannedArm(Arm.PRODUCTION, production, 1 - share)]
        if canary:
            arms.append(PlannedArm(Arm.CANARY, canary[0], share))
        with session_scope(self.engine) as session:
            return publish(session, model=model, stage=stage, arms=tuple(arms), actor="test", reason="test",
                           enforcement=enforcement, salt="salt")  # fmt: skip

    def key(self, role: str = "client", **limits: int) -> str:
        """Mints an API key and returns its text."""
        minted = mint()
        with session_scope(self.engine) as session:
            session.add(
                ApiKey(
                    id=new_id(), name="test", role=role, prefix=minted.prefix, hash=minted.hash, limits=limits
                )
            )
        return minted.text

    def revoke(self, key: str) -> None:
        """Revokes a key."""
        with session_scope(self.engine) as session:
            connection = session.connection().connection.driver_connection
            assert isinstance(connection, psycopg.Connection)
            connection.execute("UPDATE serving.api_key SET revoked_at = now() WHERE prefix = %s", (key[:10],))


@dataclass
class GatewayProcess:
    """One gateway.

    Attributes:
        database: Where it reads and stores.
        folder: Where its spool lies.
        port: Where it listens.
        settings: Further settings, by lower-case name.
    """

    database: Database
    folder: Path
    port: int
    settings: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What it wrote."""
        return self.folder / "gateway.log"

    def start(self, *arguments: str) -> Self:
        """Starts the process and waits until it listens."""
        self.launch(*arguments)
        wait_until(lambda: self.process_ended() or self.get("/healthz")[0] == 200, "the gateway listens")
        assert not self.process_ended(), self.log.read_text()[-3000:]
        return self

    def launch(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts the process."""
        given = {
            "database_url": self.database.url(Role.GATEWAY),
            "spool_dir": self.folder / "spool",
            "engine_api_key": stub_engine.KEY,
            "plan_poll_s": 0.1,
            "instance": "test",
            **self.settings,
        }
        environment = {f"RATCHET_{name.upper()}": str(value) for name, value in given.items()}
        command = [sys.executable, "-m", "gateway", "--port", str(self.port), *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, "PYTHONTRACEMALLOC": "0", **environment}, stderr=log
            )
        return self.process

    def process_ended(self) -> bool:
        """Whether the process is over."""
        assert self.process is not None
        return self.process.poll() is not None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the process and returns its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)

    def get(self, path: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status (0: nobody listens), JSON or text, headers by lower-case name."""
        return self._open(urllib.request.Request(self.url + path, headers=headers))  # noqa: S310

    def post(self, path: str, body: Any, key: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """As `get`; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
        return self._open(urllib.request.Request(self.url + path, data=data, headers=sent))  # noqa: S310

    def ready(self) -> Self:
        """Waits until `/readyz` says 200."""
        wait_until(lambda: self.get("/readyz")[0] == 200, "the gateway is ready")
        return self

    def row(self, response_id: str) -> dict[str, Any]:
        """The row of a response, as soon as it is stored."""
        return wait_until(
            lambda: next(iter(self.rows("WHERE id = %s", response_id)), None), "the row is stored"
        )

    def rows(self, condition: str = "", *values: Any) -> list[dict[str, Any]]:
        """Rows of `serving.response`, oldest first."""
        return self.query(f"SELECT * FROM serving.response {condition} ORDER BY id", *values)  # noqa: S608

    def query(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Runs a query as the owner."""
        with psycopg.connect(libpq_url(self.database.owner_url), row_factory=dict_row) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the points of a metric that have these labels."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
            if found and all(f'{label}="{value}"' in (found[1] or "") for label, value in labels.items()):
                total += float(found[2])
        return total

    @staticmethod
    def _open(request: urllib.request.Request) -> tuple[int, Any, dict[str, str]]:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return answer.status, _content(answer), {k.lower(): v for k, v in answer.headers.items()}
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, _content(refused), {k.lower(): v for k, v in refused.headers.items()}
        except (urllib.error.URLError, ConnectionError):
            return 0, None, {}


def _content(answer: Any) -> Any:
    body = answer.read()
    return json.loads(body) if "json" in (answer.headers.get("content-type") or "") else body.decode()


@dataclass
class Scene:
    """One model of its own on a gateway that others may share, with one stub behind it.

    Attributes:
        gateway: The gateway.
        operator: Acts on its database.
        key: A client's key.
        engine: The stub, started; its row is made by `serve`.
        policy: The policy in production.
        engine_id: The stub's row.
    """

    gateway: GatewayProcess
    operator: Operator
    key: str
    engine: stub_engine.StubEngine
    policy: str
    engine_id: UUID | None = None

    @property
    def model(self) -> str:
        """Its name."""
        return self.policy.partition("@")[0]

    def want(self, fingerprint: str | None = None) -> Self:
        """Makes the stub's row, without waiting for its proof."""
        self.engine_id = self.operator.add_engine(self.policy, self.engine.url, fingerprint)
        return self

    def serve(self, fingerprint: str | None = None) -> Self:
        """Makes the stub's row and waits until it takes traffic."""
        return self.want(fingerprint).ready()

    def status(self) -> dict[str, Any]:
        """What `/readyz` says of this model."""
        return self.gateway.get("/readyz")[1]["models"].get(self.model) or {"ready": False, "engines": []}

    def ready(self, engines: int = 1) -> Self:
        """Waits until so many engines are proved."""
        wait_until(
            lambda: [engine["state"] for engine in self.status()["engines"]].count("proved") >= engines,
            "the engines are proved",
        )
        return self

    def ask(self, *, stream: bool = True, **fields: Any) -> tuple[int, Any, dict[str, str]]:
        """One chat request."""
        document = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Hello"}],
            "stream": stream,
            **fields,
        }
        return self.gateway.post("/v1/chat/completions", document, self.key)

    def row(self, headers: dict[str, str]) -> dict[str, Any]:
        """The row of an answer."""
        return self.gateway.row(headers["x-ratchet-response-id"])

    def proofs(self) -> list[dict[str, Any]]:
        """Proofs of this policy, oldest first."""
        return self.gateway.query(
            "SELECT * FROM registry.engine_proof WHERE policy = %s ORDER BY id", self.policy
        )

    def alarms(self, *, cleared: bool = False) -> list[dict[str, Any]]:
        """Alarms of the stub, standing or cleared."""
        return self.gateway.query(
            "SELECT * FROM operations.alarm WHERE subject = %s AND (cleared_at IS NOT NULL) = %s ORDER BY id",
            str(self.engine_id),
            cleared,
        )


@contextmanager
def scene_of(gateway: GatewayProcess, operator: Operator, key: str, model: str) -> Iterator[Scene]:
    """A model of its own; its plan stays, its engines are no longer wanted in the end."""
    policy = operator.policy(model)
    operator.plan(model, policy)
    with running_stub(policy) as engine:
        yield Scene(gateway, operator, key, engine, policy)
    operator.dismiss(policy)


@contextmanager
def operator_of(database: Database) -> Iterator[Operator]:
    """An operator of a database."""
    engine = open_engine(database.url(Role.OPERATOR), application="test-operator", pool_size=2)
    yield Operator(engine)
    engine.dispose()


@contextmanager
def running_gateway(database: Database, folder: Path, **settings: Any) -> Iterator[GatewayProcess]:
    """A gateway process, ended in the end."""
    gateway = GatewayProcess(database, folder, free_port(), settings)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


@contextmanager
def running_stub(model: str, **behaviour: Any) -> Iterator[stub_engine.StubEngine]:
    """A stub engine, killed in the end."""
    engine = stub_engine.StubEngine(stub_engine.Behaviour(model, **behaviour)).start()
    try:
        yield engine
    finally:
        engine.kill()
