"""A data folder of tiny policies and stub engines: `ratchet up` in seconds, real but for vLLM."""

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from ratchet.db.engine import session_scope
from ratchet.home import Home
from ratchet.plan import Arm, PlannedArm, publish
from ratchet.registry import add_policy
from ratchet.secrets_store import write_secret
from ratchet.supervisor.engines import ENGINE_KEY
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
