"""Reward models from the round that makes them to the commands that show them, on real parts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import torch
from sqlalchemy import Engine
from transformers import AutoTokenizer

from ratchet.broker import broker_url
from ratchet.cli import main
from ratchet.db.engine import open_engine, session_scope
from ratchet.db.models.training import RewardModel, TrainingRound
from ratchet.db.roles import Role
from ratchet.errors import EnvironmentFault
from ratchet.home import Home
from ratchet.plan import Arm, PlannedArm, publish
from ratchet.registry import add_policy
from ratchet.sealed import KEY_NAME, reward_store
from ratchet.secrets_store import save_role_urls, shared_key
from tests.conftest import Database
from tests.support.snapshots import BAD, GOOD, pairs_snapshot
from tests.support.tiny_model import make_tiny_model
from trainer.attention import BranchAttention
from trainer.config import Method, RoundConfig, parse
from trainer.data.branches import build_row
from trainer.data.examples import pair_examples
from trainer.data.render import Renderer
from trainer.data.rows import read_pairs
from trainer.data.truncate import Lengths
from trainer.reward.model import load_reward_model
from trainer.reward.pooling import scores
from trainer.reward.registry import find, measurements
from trainer.reward.serve import client, score
from trainer.reward.watch import Watch
from trainer.rounds.asking import ask_for, prepare
from trainer.rounds.conduct import Ended, carry_out
from trainer.rounds.start import launch

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, module_database: Database) -> Home:
    """A data folder whose stack was set up, with the key of the reward store."""
    home = Home(tmp_path_factory.mktemp("reward") / "home").ensure()
    save_role_urls(home, module_database.urls)
    shared_key(home, KEY_NAME)
    return home


@pytest.fixture(scope="module")
def engine(module_database: Database) -> Iterator[Engine]:
    """The database as the trainer."""
    engine = open_engine(module_database.url(Role.TRAINER), application="test", pool_size=2)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def snapshot(home: Home) -> Path:
    """Pairs in which one answer is always preferred."""
    return pairs_snapshot(home.snapshots, rows=64, validation=40)


@pytest.fixture(scope="module")
def trained(engine: Engine, home: Home, snapshot: Path) -> Ended:
    """A round of method rm, asked for and carried out."""
    folder = make_tiny_model(home.root / "tiny")
    policy = add_policy(engine, home, name="tiny", path=folder, golden=lambda *_: []).policy
    asked = {
        "method": "rm",
        "optim": {"lr": 1e-3, "batch": 16, "steps": 4, "warmup": 0.0},
        "data": {"max_length": 128},
        "checkpoints": {"measure_every": 0},
    }

    def build(given: dict[str, Any]) -> RoundConfig:
        return parse(asked | given, source="test")

    prepared = prepare(engine, home, Method.RM, build, policy=policy.ref, snapshot=str(snapshot))
    identity = ask_for(engine, home, prepared, by="ann", reason="to score answers")
    ended = carry_out(engine, home, identity, worker="test", launch=launch)
    assert ended is not None
    return ended


@pytest.fixture
def model(engine: Engine, trained: Ended) -> RewardModel:
    """The row of the reward model that the round left."""
    assert trained.state == "done", trained.error
    with session_scope(engine) as session:
        row = find(session, "tiny")
        session.expunge(row)
    return row


@pytest.fixture
def ratchet(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command on that data folder; gives exit code, stdout and stderr."""
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ratchet", "reward", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


def test_a_round_leaves_a_sealed_reward_model_with_its_report(
    engine: Engine, home: Home, trained: Ended, model: RewardModel, snapshot: Path
) -> None:
    assert trained.summary is not None
    (checkpoint,) = trained.summary["checkpoints"]
    assert (checkpoint["policy"], checkpoint["refused"]) == (model.ref, None)
    assert model.snapshot == snapshot.name
    assert model.round_id == trained.id
    assert model.report["pairs"] == 40
    assert model.report["accuracy"]["low"] > 0.9
    assert model.report["accuracy"]["value"] == checkpoint["accuracy"] == 1.0
    differences = model.report["difference_from_reference"]
    assert differences["chosen"]["mean"] > differences["rejected"]["mean"]
    with session_scope(engine) as session:
        row = session.get_one(TrainingRound, trained.id)
        assert model.parent == row.policy
        assert model.provenance["config_digest"] == row.config_digest
    sealed = home.artifacts / "reward_models" / model.artifact
    assert {path.name for path in sealed.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert b"LlamaForSequenceClassification" not in (sealed / "config.json").read_bytes()


def test_the_evaluator_has_no_access_to_any_of_it(module_database: Database, model: RewardModel) -> None:
    del model
    with psycopg.connect(module_database.url(Role.EVALUATOR), autocommit=True) as connection:
        for statement in (
            "SELECT ref FROM reward.reward_model",
            "SELECT report FROM reward.measurement",
            "SELECT reward FROM training.checkpoint",
            "SELECT value FROM training.metric",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_it_is_listed_and_shown(ratchet: Cli, model: RewardModel) -> None:
    code, listed, _ = ratchet("list", "--json")
    assert code == 0
    (line,) = json.loads(listed)
    assert (line["ref"], line["pairs"], line["accuracy"]) == (model.ref, 40, model.report["accuracy"])
    assert json.loads(ratchet("list", "other", "--json")[1]) == []
    shown = json.loads(ratchet("show", "tiny", "--json")[1])
    assert shown["report"] == model.report
    assert shown["measurements"] == []
    for arguments in (("list",), ("show", model.ref)):
        code, text, _ = ratchet(*arguments)
        assert code == 0
        assert model.ref in text


def test_what_is_not_there_is_one_line_and_code_2(ratchet: Cli, model: RewardModel) -> None:
    del model
    assert ratchet("show", "nobody")[::2] == (
        2, "ratchet: no reward model is called 'nobody'; `ratchet reward list` shows those that are\n",
    )  # fmt: skip
    code, out, said = ratchet("report", "tiny", "--snapshot", "0123456789")
    assert (code, out) == (2, "")
    assert "no snapshot begins" in said


def test_measured_again_on_like_pairs_nothing_is_alarmed_and_on_contrary_ones_it_is(
    ratchet: Cli,
    engine: Engine,
    home: Home,
    model: RewardModel,
    snapshot: Path,
    module_database: Database,
) -> None:
    code, same, _ = ratchet("report", "tiny", "--snapshot", str(snapshot), "--json")
    assert code == 0
    assert json.loads(same)["report"] == model.report
    assert json.loads(same)["drift"]["fallen"] is False
    assert json.loads(same)["policies"] == ["import:test"]
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM operations.alarm").scalar() == 0

    contrary = pairs_snapshot(
        home.snapshots, rows=4, validation=30, chosen=BAD, rejected=GOOD, policy="tiny@0"
    )
    code, fallen, _ = ratchet("report", model.ref, "--snapshot", str(contrary), "--json")
    assert code == 0
    document = json.loads(fallen)
    assert document["report"]["accuracy"]["value"] == 0.0
    assert document["drift"]["fallen"] is True
    with session_scope(engine) as session:
        (measured,) = [each for each in measurements(session, model.ref) if each.policy == "tiny@0"]
    with psycopg.connect(module_database.url(Role.REPORT)) as report:
        raised = report.execute("SELECT kind, subject, detail FROM operations.alarm WHERE cleared_at IS NULL")
        assert raised.fetchall() == [("reward-model-drift", model.name, {"measurement": str(measured.id)})]
    shown = json.loads(ratchet("show", "tiny", "--json")[1])
    assert [each["policy"] for each in shown["measurements"]] == ["import:test", "tiny@0"]
    assert "not fallen" not in ratchet("show", "tiny")[1]


def test_fresh_pairs_of_what_is_in_production_are_measured_on_once(
    engine: Engine,
    home: Home,
    model: RewardModel,
    module_database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pairs of another policy are no reason; those of the policy in production are, by another process."""
    url = module_database.url(Role.TRAINER)
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    monkeypatch.setenv("RATCHET_DATABASE_URL", url)
    monkeypatch.setenv("RATCHET_BROKER_URL", broker_url(url))
    watch = Watch()

    def begin() -> bool:
        with session_scope(engine) as session:
            return watch.begin(session)

    def freeze(policy: str) -> str:
        folder = pairs_snapshot(home.snapshots, rows=1, validation=8, policy=policy)
        with psycopg.connect(module_database.owner_url) as owner:
            owner.execute(
                "INSERT INTO feedback.dataset_snapshot (digest, kind, path, manifest) "
                "VALUES (%s, %s, %s, %s)",
                (folder.name, "pairs", str(folder), (folder / "manifest.json").read_text()),
            )
        return folder.name

    operator = open_engine(module_database.url(Role.OPERATOR), application="test", pool_size=1)
    with session_scope(operator) as session:
        arms = (PlannedArm(Arm.PRODUCTION, str(model.parent), 1.0),)
        publish(session, model="tiny", stage="production", arms=arms, actor="test", reason="test")
    operator.dispose()
    assert not begin()
    freeze("tiny@0")
    assert not begin()
    fresh = freeze(str(model.parent))
    assert begin()
    assert not begin()
    assert watch.process is not None
    assert watch.process.wait() == 0
    with session_scope(engine) as session:
        (found,) = [each for each in measurements(session, model.ref) if each.snapshot == fresh]
        assert (found.policy, found.report["pairs"]) == (model.parent, 8)
    assert not begin()


def test_without_the_key_nothing_is_measured_and_the_error_says_why(
    ratchet: Cli, model: RewardModel, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del model
    monkeypatch.setenv("RATCHET_REWARD_STORE_KEY", "another")
    code, out, said = ratchet("report", "tiny", "--snapshot", str(snapshot))
    assert (code, out) == (2, "")
    assert "was sealed with another key" in said.splitlines()[-1]


@pytest.mark.engine
def test_a_served_reward_model_scores_as_the_trainer_does(
    home: Home, model: RewardModel, snapshot: Path
) -> None:
    """By the command, as a process: its socket answers, and nothing plain is left when it was told to end."""
    store = reward_store(home)
    with store.opened(model.artifact) as folder:
        renderer = Renderer(AutoTokenizer.from_pretrained(folder))
        validation = read_pairs(snapshot / "validation.parquet")
        pairs = pair_examples("test", validation, renderer, Lengths.of(128))[:8]
        scorer = load_reward_model(folder)
        with torch.no_grad():
            expected = scores(scorer, build_row(pairs), BranchAttention(scorer)).tolist()
    serving = subprocess.Popen(
        [sys.executable, "-m", "ratchet.cli", "reward", "serve", "tiny", "--json"],
        env={**os.environ, "RATCHET_HOME": str(home.root)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert serving.stdout is not None
        document = json.loads("".join(iter(serving.stdout.readline, "}\n")) + "}")
        assert document["model"] == model.ref
        with client(Path(document["socket"])) as asking:
            found = score(asking, model.ref, [[*p.prompt, *answer] for p in pairs for answer in p.answers])
            with pytest.raises(EnvironmentFault, match="refused"):
                score(asking, "another", [[1]])
    finally:
        serving.send_signal(signal.SIGTERM)
        rest, _ = serving.communicate()
    assert (serving.returncode, rest) == (0, "")
    assert found == pytest.approx(expected, abs=1e-4)
    assert not Path(document["socket"]).exists()
    assert [path.name for path in store.root.iterdir()] == [model.artifact]
