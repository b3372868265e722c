"""A release on a whole stack as `ratchet up` runs it, steered by the command line alone."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.db.engine import open_engine
from ratchet.db.roles import Role
from ratchet.home import Home
from ratchet.secrets_store import role_url
from ratchet.supervisor.ports import free_port
from tests.support.gateway_process import wait_until
from tests.support.stub_stack import Up, prepare, register

pytestmark = [pytest.mark.faults, pytest.mark.timeout(480)]

PLAN = """
name = "quick"
look_seconds = 0.5
drill_max_age_days = 1

[[stages]]
name = "shadow"
kind = "shadow"
share = 1.0
users = 3

[[stages]]
name = "half"
kind = "canary"
share = 0.5
users = 5

[metrics.errors]
measure = "share"
worse = "higher"
margin = 0.3
harm = 0.3
users = 3
"""


@pytest.fixture
def home() -> Iterator[Home]:
    """A data folder that the embedded PostgreSQL's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-test-release-"))
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


def test_a_release_on_a_whole_stack(up: Up, home: Home, tmp_path: Path) -> None:
    document = up.document()
    url = document["url"]

    def ratchet(*words: str, codes: tuple[int, ...] = (0,)) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "ratchet.cli", *words, "--json", "--data-dir", str(home.root)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in codes, done.stderr
        return json.loads(done.stdout)

    connections = open_engine(role_url(home, Role.OPERATOR), application="test", pool_size=1)
    new = register(connections, home, tmp_path, "tiny", seed=1).ref
    connections.dispose()
    key = ratchet("keys", "create", "--role", "client")["key"]
    plan = tmp_path / "quick.toml"
    plan.write_text(PLAN)

    def ask(user: str) -> str:
        body = {"model": "tiny", "user": user, "messages": [{"role": "user", "content": "x"}]}
        request = urllib.request.Request(  # noqa: S310
            f"{url}/v1/chat/completions", data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.headers["x-ratchet-policy"]

    wait_until(lambda: ask("u"), "the key is known")
    wait_until(
        lambda: ratchet("release", "drill", "tiny", "--switches", "2", codes=(0, 1))["state"] == "good",
        "a drill finds the switch as quick as a plan asks, on a machine that may be busy",
    )
    assert ratchet("release", "start", new, "--plan", str(plan), "--override")["state"] == "preparing"

    def promoted() -> bool:
        for number in range(40):
            ask(f"u{number}")
        return bool(ratchet("release", "status", "tiny")["state"] == "promoted")

    wait_until(promoted, "the release reaches production", 240)
    wait_until(lambda: ask("u") == new, "everyone has it")
    assert ratchet("release", "abort", "tiny", "--reason", "enough")["state"] == "aborted"
    wait_until(lambda: ask("u") != new, "everyone is back")
    [told] = ratchet("release", "history", "tiny")
    assert [(event["kind"], event["actor"]) for event in told["events"][1:4]] == [
        ("advanced", "walker"), ("advanced", "walker"), ("promoted", "walker")
    ]  # fmt: skip
