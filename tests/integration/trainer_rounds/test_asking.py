"""What a round starts from: data and model of one chat template."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine

from ratchet.db.engine import session_scope
from ratchet.home import Home
from ratchet.registry import PolicyVersion
from tests.support.snapshots import pairs_snapshot
from trainer.config import Method, RoundConfig, parse
from trainer.errors import TemplateMismatch
from trainer.rounds import repository
from trainer.rounds.asking import ask_for, prepare


def asked(engine: Engine, home: Home, policy: PolicyVersion, data: Path) -> UUID:
    def build(given: dict[str, Any]) -> RoundConfig:
        return parse({"method": "dpo", **given}, source="test")

    prepared = prepare(engine, home, Method.DPO, build, policy=policy.ref, snapshot=str(data))
    return ask_for(engine, home, prepared, by="ann", reason="weekly")


def template_of(engine: Engine, identity: UUID) -> str | None:
    with session_scope(engine) as session:
        return repository.find_round(session, str(identity)).config["data"]["template_digest"]


def test_answers_served_with_another_chat_template_are_refused(
    engine: Engine, home: Home, parent: PolicyVersion, foreign: PolicyVersion
) -> None:
    """What the answers were served with is written into the round; of imports nothing is known."""
    of_foreign = pairs_snapshot(home.snapshots, rows=6, policy=foreign.ref)
    with pytest.raises(TemplateMismatch, match=f"answers of {foreign.ref} was made for the chat template"):
        asked(engine, home, parent, of_foreign)
    assert template_of(engine, asked(engine, home, foreign, of_foreign)) == foreign.template_digest
    assert foreign.template_digest != parent.template_digest
    imported = pairs_snapshot(home.snapshots, rows=6)
    assert template_of(engine, asked(engine, home, parent, imported)) is None
