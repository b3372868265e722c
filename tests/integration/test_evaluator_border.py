"""Attacks from the evaluator's real environment, as `ratchet up` builds it, on what is the trainer's."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from sqlalchemy import make_url

from ratchet.canonical import digest_of_file
from ratchet.db.engine import open_engine, session_scope
from ratchet.db.models.training import RewardModel
from ratchet.db.roles import SERVICE_ROLES, Role
from ratchet.home import Home
from ratchet.sealed import KEY_NAME, KEY_VARIABLE, reward_store
from ratchet.secrets_store import role_url, shared_key
from ratchet.supervisor import confinement
from ratchet.supervisor.child import Command
from ratchet.supervisor.database import embedded_at
from ratchet.supervisor.engines import ENGINE_KEY
from ratchet.supervisor.ports import free_port
from ratchet.supervisor.roster import Keys, roster
from tests.support import border_attack
from tests.support.stub_stack import Up, prepare
from trainer.reward.drift import observe
from trainer.reward.statistics import Measured

ROOT = Path(__file__).parents[2]
OBSTACLE = confinement.obstacle()

pytestmark = [
    pytest.mark.faults,
    pytest.mark.postgres,
    pytest.mark.timeout(240),
    pytest.mark.skipif(OBSTACLE is not None, reason=f"this machine confines no process: {OBSTACLE}"),
]

WHAT_IS_NEEDED = """
import os
from pathlib import Path
import psycopg
from evaluator.sandbox import run_python

home = Path(os.environ["RATCHET_HOME"])
with psycopg.connect(os.environ["RATCHET_DATABASE_URL"]) as connection:
    (artifact,) = connection.execute("SELECT artifact FROM registry.policy").fetchone()
assert (home / "artifacts" / "policies" / artifact / "config.json").read_text()
own = (home / "artifacts" / "judges", home / "evaluation", home / "run" / "evaluator")
for folder in (*own, Path("/tmp"), Path.home()):
    (folder / "written").write_text("x")
    (folder / "written").unlink()
try:
    (home / "artifacts" / "policies" / "x").write_text("x")
except OSError as error:
    print(error.strerror)
print(run_python("print(6 * 7)").stdout.strip())
"""


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder that the embedded PostgreSQL's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-test-border-"))
    yield folder
    shutil.rmtree(folder)


def drifted(home: Home) -> None:
    """A reward model whose accuracy fell from 0.9 to 0.2, as the trainer notes it, alarm and all."""
    before = {"accuracy": asdict(Measured(0.9, 0.85, 0.95)), "pairs": 100}
    now = {"accuracy": asdict(Measured(0.2, 0.15, 0.25)), "pairs": 100}
    engine = open_engine(role_url(home, Role.TRAINER), application="test", pool_size=1)
    with session_scope(engine) as session:
        row = RewardModel(
            ref="tiny@0123456789ab", name="tiny", version="0123456789ab", digest="0123456789ab",
            artifact="a", snapshot="s", report=before, provenance={},
        )  # fmt: skip
        session.add(row)
        session.flush()
        assert observe(session, row, report=now, policy=None, snapshot="s").fallen
    engine.dispose()


@pytest.fixture(scope="module")
def up(scratch: Path) -> Iterator[Up]:
    """A stack that is ready, with a reward model in its store."""
    home = Home(scratch / "home")
    prepare(home, scratch)
    shared_key(home, KEY_NAME)
    (scratch / "score.safetensors").write_bytes(b"a value head")
    store = reward_store(home)
    store.put(scratch, {"score.safetensors": digest_of_file(scratch / "score.safetensors")})
    started = Up.start(home, "--port", str(free_port()))
    started.until("evaluator", "confined: it sees no secret")
    started.until("a token can be generated")
    drifted(home)
    yield started
    started.process.send_signal(signal.SIGTERM)
    started.end()


@pytest.fixture(scope="module")
def commands(up: Up) -> dict[str, Command]:
    """The commands of the stack's processes, built as the supervisor builds them."""
    home = up.home
    built = roster(
        home,
        {role: role_url(home, role) for role in SERVICE_ROLES},
        Keys(engine=shared_key(home, ENGINE_KEY), reward_store=shared_key(home, KEY_NAME)),
        confinement.of_evaluator(home, embedded_at(home).socket_dir),
        "127.0.0.1",
        free_port(),
        1,
    )
    return {command.name: command for command in built.others}


def run_as(command: Command, program: list[str], order: str = "") -> subprocess.CompletedProcess[str]:
    """Runs Python in a process's stead: in its environment, and behind what its command begins with."""
    begins = command.argv[: command.argv.index(sys.executable, 1)] if command.argv[1] == "-I" else ()
    return subprocess.run(
        [*begins, sys.executable, *program],
        env=dict(command.env), cwd=command.cwd, input=order,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def attack(up: Up, command: Command) -> dict[str, str]:
    """What came of each attack."""
    home = up.home
    urls = {role: role_url(home, role) for role in SERVICE_ROLES if role.service not in command.name}
    trainer = make_url(role_url(home, Role.TRAINER))
    own = next(url for name, url in command.env.items() if name == "RATCHET_DATABASE_URL")
    order = {
        "home": str(home.root),
        "programs": str(ROOT),
        "pids": {**up.pids(), "supervisor": up.process.pid},
        "passwords": [
            *(str(make_url(url).password) for url in urls.values() if url != own),
            shared_key(home, KEY_NAME),
            (home.secrets / "owner.password").read_text().strip(),
        ],
        "url_without_password": trainer.set(password=None).render_as_string(),
        "owner_without_password": trainer.set(password=None, username=Role.OWNER).render_as_string(),
    }
    done = run_as(command, [border_attack.__file__], json.dumps(order))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["evaluator-worker", "evaluator-web"])
def test_every_attack_from_the_evaluators_environment_fails(
    up: Up, commands: dict[str, Command], name: str
) -> None:
    said = attack(up, commands[name])
    assert {name: words for name, words in said.items() if not words.startswith("refused: ")} == {}
    assert len(said) >= 22 + 7 * 8


LEAD_NOWHERE = {
    "lift the cover", "lift the cover in another namespace", "bind the folder to another place",
    "log in as the trainer without a password", "log in as the owner without a password",
    "read figures of reward models in alarms", "become the trainer", "read files through the server",
}  # fmt: skip
"""Attacks on the cover itself, and on what PostgreSQL gives nobody; so is joining namespaces."""


def test_the_same_attacks_succeed_where_nothing_confines_them(up: Up, commands: dict[str, Command]) -> None:
    """Else the test above would prove nothing: from the trainer's environment everything lies open that is
    a file's, another process's or the trainer's in the database."""
    said = attack(up, commands["trainer-worker"])
    failed = {name for name, words in said.items() if not words.startswith("got: ")}
    assert {name for name in failed if not name.startswith("namespaces of ")} <= LEAD_NOWHERE


def test_the_running_evaluator_is_confined_and_the_others_are_not(up: Up) -> None:
    pids = up.pids()
    ours = {kind: Path(f"/proc/self/ns/{kind}").readlink() for kind in ("user", "mnt", "ipc")}
    for name, pid in pids.items():
        its = {kind: Path(f"/proc/{pid}/ns/{kind}").readlink() for kind in ours}
        shared = {kind for kind in ours if its[kind] == ours[kind]}
        assert shared == (set() if name.startswith("evaluator") else set(ours)), name


def test_the_evaluator_has_what_it_needs(commands: dict[str, Command]) -> None:
    done = run_as(commands["evaluator-worker"], ["-c", WHAT_IS_NEEDED])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Read-only file system", "42"]


def test_the_key_is_given_to_the_trainers_processes_alone(up: Up, commands: dict[str, Command]) -> None:
    key = shared_key(up.home, KEY_NAME)
    having = {name for name, command in commands.items() if key in command.env.values()}
    assert having == {"trainer-web", "trainer-worker"}
    assert all(commands[name].env[KEY_VARIABLE] == key for name in having)
    engines = shared_key(up.home, ENGINE_KEY)
    assert commands["evaluator-worker"].env["RATCHET_EVALUATOR_ENGINE_KEY"] == engines


def test_a_sealed_reward_model_is_no_use_without_the_key(up: Up, commands: dict[str, Command]) -> None:
    """Should its bytes get out all the same, as a backup does."""
    program = (
        "from pathlib import Path\n"
        "from ratchet.sealed import SealedStore\n"
        f"store = SealedStore(Path({str(up.home.artifacts / 'reward_models')!r}), 'a guess')\n"
        "with store.opened(store.list()[0].digest): pass\n"
    )
    done = run_as(commands["feedback-worker"], ["-c", program])
    assert done.returncode == 1
    assert "sealed with another key" in done.stderr
