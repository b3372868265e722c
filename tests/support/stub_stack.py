"""A data folder of tiny policies and stub engines: `ratchet up` in seconds, real but for vLLM."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from migrations.run import migrate, provision_logins
from ratchet.db.engine import open_engine, session_scope
from ratchet.db.roles import Role
from ratchet.home import Home
from ratchet.plan import Arm, PlannedArm, publish
from ratchet.registry import add_policy
from ratchet.secrets_store import save_role_urls, write_secret
from ratchet.supervisor.database import embedded_at
from ratchet.supervisor.engines import ENGINE_KEY
from ratchet.supervisor.state import load
from tests.support import stub_engine
from tests.support.tiny_model import make_tiny_model


@dataclass(frozen=True)
class StubPolicy:
    """A registered policy that a stub can serve.

    Attributes:
        ref: `name@version`.
        artifact: Its folder in the store.
    """

    ref: str
    artifact: Path


def register(connections: Engine, home: Home, scratch: Path, name: str, seed: int = 0) -> StubPolicy:
    """Registers a tiny policy whose golden entries are the stub's.

    Args:
        connections: To the database, as operator.
        home: The data folder.
        scratch: Where the model folder is made.
        name: The policy's name.
        seed: Decides its weights, and so its version.
    """
    folder = make_tiny_model(scratch / f"{name}-{seed}", seed)
    added = add_policy(connections, home, name=name, path=folder, golden=lambda *_: stub_engine.golden())
    return StubPolicy(added.policy.ref, home.artifacts / "policies" / added.policy.artifact)


def put_in_production(connections: Engine, policy: StubPolicy) -> None:
    """Publishes a plan by which the policy answers under its name."""
    with session_scope(connections) as session:
        arms = (PlannedArm(Arm.PRODUCTION, policy.ref, 1.0),)
        name = policy.ref.partition("@")[0]
        publish(session, model=name, stage="production", arms=arms, actor="test", reason="test")


def use_stub_key(home: Home) -> None:
    """Makes the stack's engine key the one that stubs ask for."""
    write_secret(home.secrets / f"{ENGINE_KEY}.key", stub_engine.KEY)


def stub_command() -> str:
    """`RATCHET_ENGINE_COMMAND` that starts a stub in vLLM's place."""
    behaviour = json.dumps({"model": "{served}", "fingerprint": "{fingerprint}", "gap_s": 0.02})
    behaviour = "{" + behaviour + "}"
    return shlex.join([sys.executable, stub_engine.__file__, "--port", "{port}", "--behaviour", behaviour])


def prepare(home: Home, scratch: Path) -> StubPolicy:
    """Makes a data folder with its database, in which a stub policy is in production; nothing runs then."""
    use_stub_key(home.ensure())
    server = embedded_at(home)
    server.start()
    try:
        migrate(server.owner_url)
        urls = provision_logins(server.owner_url, {})
        save_role_urls(home, urls)
        connections = open_engine(urls[Role.OPERATOR], application="test", pool_size=1)
        try:
            policy = register(connections, home, scratch, "tiny")
            put_in_production(connections, policy)
        finally:
            connections.dispose()
    finally:
        server.stop()
    return policy


@dataclass
class Up:
    """A running `ratchet up`, seen from outside.

    Attributes:
        process: The process; its stdout and stderr are pipes.
        home: Its data folder.
        said: Lines of its story read so far.
    """

    process: subprocess.Popen[str]
    home: Home
    said: list[str]

    @classmethod
    def start(cls, home: Home, *arguments: str, **variables: str) -> "Up":
        """Runs it with `--json`, so that its story is on stderr."""
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        environment["RATCHET_ENGINE_COMMAND"] = stub_command()
        process = subprocess.Popen(
            [sys.executable, "-m", "ratchet.cli", "up", "--json", "--data-dir", str(home.root), *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2], env={**environment, **variables},
        )  # fmt: skip
        return cls(process, home, [])

    def until(self, *words: str) -> str:
        """Reads its story up to a line that holds all the words; the test's timeout ends a wait in vain.

        Raises:
            AssertionError: It ended without saying so.
        """
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip())
            if all(word in line for word in words):
                return line
        raise AssertionError(f"{words} was never said:\n" + "\n".join(self.said))

    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout, when it is ready."""
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        return json.loads("".join(lines))

    def end(self) -> tuple[int, str]:
        """Waits for its end; returns its exit code and the rest of its story."""
        _, rest = self.process.communicate()
        return self.process.returncode, rest

    def pids(self) -> dict[str, int]:
        """Its processes by name, as its own state file says, PostgreSQL included."""
        state = load(self.home)
        assert state is not None
        postgres = embedded_at(self.home).pid()
        found = {name: identity.pid for name, identity in state.processes.items()}
        return found | ({"postgres": postgres} if postgres is not None else {})
