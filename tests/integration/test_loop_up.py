"""A turn of the loop on a whole stack as `ratchet up` runs it: asked for once, taken by the workers alone."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.home import Home
from ratchet.prompts import Split, hash_of_text, split
from ratchet.supervisor.database import embedded_at
from ratchet.supervisor.ports import free_port
from tests.support.evaluation import rows
from tests.support.feedback import put_comparisons, put_votes
from tests.support.stub_stack import Up, prepare

pytestmark = [pytest.mark.faults, pytest.mark.timeout(480)]

WORDS = """
name = "words"
description = "Names a ratchet."
skill = "words"
role = "in_distribution"
scorer = "instructions"
items = [
    { prompt = "What turns one way?", constraints = [{ kind = "mentions", phrase = "ratchet", times = 1 }] },
    { prompt = "What holds?", constraints = [{ kind = "mentions", phrase = "ratchet", times = 1 }] },
]
"""
SMALL = ("optim.steps=2", "optim.batch=4", "data.max_length=128", "optim.micro_tokens=256",
         "checkpoints.kl_prompts=2", "checkpoints.kl_tokens=8")  # fmt: skip


@pytest.fixture
def home() -> Iterator[Home]:
    """A data folder that the embedded PostgreSQL's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-test-loop-"))
    yield Home(folder / "home")
    shutil.rmtree(folder)


@pytest.fixture
def up(home: Home, tmp_path: Path) -> Iterator[Up]:
    prepare(home, tmp_path)
    started = Up.start(home, "--port", str(free_port()))
    started.until("a token can be generated")
    yield started
    started.process.send_signal(signal.SIGTERM)
    started.end()


def may_train(text: str) -> bool:
    return split(hash_of_text(text)) is not Split.HELDOUT


def test_the_workers_take_a_turn_to_its_end(up: Up, home: Home, tmp_path: Path) -> None:
    """Real training, real confinement; the stub engines say the same for every policy, so none is chosen."""
    owner = embedded_at(home).owner_url
    ((ref,),) = rows(owner, "SELECT ref FROM registry.policy")
    for text in filter(may_train, map("What is number {}?".format, range(40))):
        for item in put_comparisons(owner, 1, prompt=text, a_policy=ref, b_policy=ref):
            put_votes(owner, item, "a", "a")
    suite = tmp_path / "words.toml"
    suite.write_text(WORDS)
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.cli", "round", "start", "--method", "dpo", "--suite", str(suite),
         *(word for each in SMALL for word in ("--set", each)),
         "--release", "--plan", "small", "--wait", "--json", "--data-dir", str(home.root)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert [step["state"] for step in told["steps"]] == ["done", "done", "done", "skipped"], told["words"]
    assert told["words"].startswith("nothing is proposed: ")
    assert told["steps"][1]["detail"]["step"] == 2
    engines = rows(owner, "SELECT count(*) FROM registry.engine WHERE policy <> %s AND desired = 'up'", ref)
    assert engines == [(0,)]
