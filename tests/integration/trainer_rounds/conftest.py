"""What tests of rounds begin with: a policy of a tiny model, a snapshot, a round that was asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine

from ratchet.db.models.training import TrainingRound
from ratchet.db.roles import Role
from ratchet.decode import DecodeConfig
from ratchet.home import Home
from ratchet.registry import PolicyVersion, add_policy
from tests.support.snapshots import pairs_snapshot
from tests.support.tiny_model import make_tiny_model
from trainer.config import Method, RoundConfig, parse
from trainer.rounds.asking import ask_for, prepare
from trainer.rounds.candidates import Publish, register

DECODE = DecodeConfig(temperature=0.7, max_tokens=64)


def unproved(folder: Path, report: object) -> list[dict[str, Any]]:
    """Golden entries of a model that nobody asks."""
    return []


@pytest.fixture
def publisher() -> Callable[[TrainingRound], Publish]:
    """Registers candidates without asking their weights, which takes a process with torch each time."""
    return lambda _: lambda engine, home, row, record: register(engine, home, row, record, golden=unproved)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").ensure()


@pytest.fixture
def engine(engine_of: Callable[[Role], Engine]) -> Engine:
    return engine_of(Role.TRAINER)


@pytest.fixture
def parent(engine: Engine, home: Home, tmp_path: Path) -> PolicyVersion:
    folder = make_tiny_model(tmp_path / "tiny")
    return add_policy(engine, home, name="tiny", path=folder, decode=DECODE, golden=unproved).policy


@pytest.fixture
def foreign(engine: Engine, home: Home, tmp_path: Path) -> PolicyVersion:
    """A policy of the same weights that is served with another chat template."""
    folder = make_tiny_model(tmp_path / "foreign")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|assistant|>", "<|user|>"))
    return add_policy(engine, home, name="foreign", path=folder, decode=DECODE, golden=unproved).policy


@pytest.fixture
def snapshot(home: Home) -> Path:
    return pairs_snapshot(home.snapshots, rows=6)


@pytest.fixture
def ask(engine: Engine, home: Home, parent: PolicyVersion, snapshot: Path) -> Callable[[], UUID]:
    """Asks for a DPO round of the tiny policy."""

    def ask_again() -> UUID:
        def build(given: dict[str, Any]) -> RoundConfig:
            return parse({"method": "dpo", **given}, source="test")

        prepared = prepare(engine, home, Method.DPO, build, policy=parent.ref, snapshot=str(snapshot))
        return ask_for(engine, home, prepared, by="ann", reason="to see it learn")

    return ask_again
