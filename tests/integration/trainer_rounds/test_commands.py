"""`ratchet round` and `ratchet train plan`, as typed, on rows that a scripted round left."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine

from ratchet.cli import main
from ratchet.db.models.training import TrainingRound
from ratchet.db.roles import Role
from ratchet.home import Home
from ratchet.prompts import hash_of_text
from ratchet.registry import PolicyVersion
from tests.conftest import Database
from tests.support.feedback import TRAIN_PROMPT, serve_policy
from tests.support.scripted_round import scripted
from tests.support.snapshots import demonstrations_snapshot, pairs_snapshot
from trainer.commands.follow import follow
from trainer.rounds.candidates import Publish
from trainer.rounds.conduct import carry_out

Run = Callable[..., Any]

TOML = """
method = "dpo"
model = "tiny"
snapshot = "{snapshot}"
[data]
max_length = 128
[optim]
batch = 4
micro_tokens = 256
[checkpoints]
kl_prompts = 2
kl_tokens = 8
"""


@pytest.fixture
def run(
    database: Database, home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs `ratchet ...`; gives the JSON document, or exit code and standard error."""
    for role in (Role.TRAINER, Role.OPERATOR):
        monkeypatch.setenv(f"RATCHET_{role.service.upper()}_DATABASE_URL", database.url(role))
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    monkeypatch.setenv("LOGNAME", "ann")

    def typed(*words: str, plain: bool = False) -> Any:
        monkeypatch.setattr("sys.argv", ["ratchet", *words, *(() if plain else ("--json",))])
        try:
            main()
        except SystemExit as end:
            out, errors = capsys.readouterr()
            if end.code:
                return end.code, errors, out
            return out if plain else json.loads(out)
        raise AssertionError("a command ends with an exit code")

    return typed


@pytest.fixture
def done(
    engine: Engine, home: Home, ask: Callable[[], UUID], publisher: Callable[[TrainingRound], Publish]
) -> UUID:
    """A round that ended, with two candidates."""
    identity = ask()
    script = scripted(steps=4, checkpoints=[2, 4])
    ended = carry_out(engine, home, identity, worker="w", launch=script, publisher=publisher)
    assert ended is not None
    assert ended.state == "done"
    return identity


def test_a_round_is_listed_shown_exported_and_part_of_the_lineage(
    run: Run,
    done: UUID,
    parent: PolicyVersion,
    engine: Engine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (listed,) = run("round", "list")
    assert (listed["id"], listed["state"], listed["step"]) == (str(done), "done", 4)
    shown = run("round", "show", "last")
    assert [each["step"] for each in shown["checkpoints"]] == [2, 4]
    assert shown["series"]["accuracy"] == [[1, 0.25], [2, 0.5], [3, 0.75], [4, 1.0]]
    candidate = shown["checkpoints"][1]["policy"]
    printed = run("round", "show", str(done), "--plot", str(tmp_path / "round.png"), plain=True)
    assert candidate in printed
    assert "█" in printed
    assert (tmp_path / "round.png").stat().st_size > 1_000
    assert str(done)[-12:] in run("round", "list", plain=True)

    written = run(
        "round", "export", "last", "--csv", str(tmp_path / "r.csv"), "--tensorboard", str(tmp_path / "tb")
    )
    assert (written["csv"]["steps"], written["tensorboard"]["values"]) == (4, 16)
    with (tmp_path / "r.csv").open() as file:
        assert [line["loss"] for line in csv.DictReader(file)][::3] == ["1.0", "0.25"]
    assert run("round", "export", "last")[:2] == (
        2,
        "ratchet: say where to: --csv FILE, --tensorboard FOLDER, or both\n",
    )

    follow(engine, done)
    assert "checkpoint at step 4: KL 2.000 ± 0.050, accuracy 0.540, reward +0.400" in capsys.readouterr().err

    policy = run("lineage", candidate)
    assert policy["ancestors"][0]["ref"] == parent.ref
    assert [(each["id"], each["step"]) for each in policy["trained_by"]] == [(str(done), 4)]
    assert run("lineage", parent.ref)["rounds"][0]["id"] == str(done)
    of_round = run("lineage", str(done))
    assert (of_round["kind"], of_round["policy"]["ref"]) == ("round", parent.ref)
    assert [each["policy"] for each in of_round["candidates"]][1] == candidate


def test_a_round_is_started_by_rows_compared_stopped_and_resumed(
    run: Run, database: Database, done: UUID, parent: PolicyVersion, snapshot: Path, tmp_path: Path
) -> None:
    serve_policy(database.owner_url, "tiny", parent.ref)
    config = tmp_path / "dpo.toml"
    config.write_text(TOML.format(snapshot=snapshot))
    started = run(
        "round", "start", "--config", str(config), "--snapshot", str(snapshot), "--set", "loss.beta=0.2",
        "--reason", "weekly",
    )  # fmt: skip
    assert (started["state"], started["policy"], started["asked_by"]) == ("asked", parent.ref, "ann")
    found = run("round", "diff", str(done), "last")
    assert found["config"]["loss.beta"] == [0.1, 0.2]
    assert found["outcome"]["state"] == ["done", "asked"]
    assert "loss.beta" in run("round", "diff", str(done), "last", plain=True)
    assert run("round", "stop", "last", "--reason", "no")["state"] == "stopped"
    assert run("round", "resume", "last", "--reason", "yes")["state"] == "asked"
    code, errors, _ = run("round", "resume", str(done), "--reason", "more")
    assert (code, "only one that failed or was stopped" in errors) == (2, True)
    assert run("round", "start", "--method", "ppo")[:2] == (
        2,
        "ratchet: --method is sft, rm or dpo, not 'ppo'\n",
    )
    assert run("round", "show", "nobody")[0] == 2


def test_a_dry_run_checks_everything_and_trains_nothing(
    run: Run, parent: PolicyVersion, snapshot: Path, tmp_path: Path
) -> None:
    config = tmp_path / "dpo.toml"
    config.write_text(TOML.format(snapshot=snapshot))
    found = run("train", "dpo", "--config", str(config), "--dry-run", "--set", "loss.beta=0.3")
    assert found["data"]["train"] == {"usable": 6, "dropped": {}}
    assert (found["policy"], found["config"]["loss"]["beta"]) == (None, 0.3)
    assert found["memory"]["peak"] == max(found["memory"]["phases"].values())
    assert "nothing was trained" in run("train", "dpo", "--config", str(config), "--dry-run", plain=True)
    assert run("round", "list") == []
    code, errors, _ = run("train", "sft", "--config", str(config), "--snapshot", str(snapshot), "--dry-run")
    assert (code, "demonstrations" in errors) == (2, True)
    code, errors, _ = run("train", "dpo", "--config", str(config), "--set", "loss.gamma=1", "--dry-run")
    assert (code, "loss.gamma" in errors) == (2, True)
    code, errors, _ = run("train", "rm", "--config", str(config), "--dry-run")
    assert (code, "run `ratchet train dpo`" in errors) == (2, True)


def test_a_dry_run_refuses_answers_of_another_chat_template(
    run: Run, parent: PolicyVersion, foreign: PolicyVersion, home: Home, tmp_path: Path
) -> None:
    data = pairs_snapshot(home.snapshots, rows=6, policy=foreign.ref)
    config = tmp_path / "dpo.toml"
    config.write_text(TOML.format(snapshot=data))
    for chosen in ((), ("--policy", parent.ref)):
        code, errors, _ = run("train", "dpo", "--config", str(config), "--dry-run", *chosen)
        assert (code, f"its answers of {foreign.ref} was made for the chat template" in errors) == (2, True)
    found = run("train", "dpo", "--config", str(config), "--dry-run", "--policy", foreign.ref)
    assert found["config"]["data"]["template_digest"] == foreign.template_digest


def store_snapshot(database: Database, digest: str, kind: str, path: Path) -> None:
    with psycopg.connect(database.owner_url) as owner:
        owner.execute(
            "INSERT INTO feedback.dataset_snapshot (digest, kind, path, manifest) VALUES (%s, %s, %s, %s)",
            (digest, kind, str(path), (path / "manifest.json").read_text()),
        )


def test_the_plan_counts_labels_by_distance_and_refuses_what_does_not_fit(
    run: Run, database: Database, parent: PolicyVersion, snapshot: Path, home: Home
) -> None:
    serve_policy(database.owner_url, "tiny", parent.ref)
    store_snapshot(database, snapshot.name, "pairs", snapshot)
    demonstrations = demonstrations_snapshot(home.snapshots, rows=5)
    store_snapshot(database, demonstrations.name, "demonstrations", demonstrations)
    with psycopg.connect(database.owner_url) as owner:
        for position in range(250):
            spoke = parent.ref if position < 220 else "import:hh"
            owner.execute(
                "INSERT INTO feedback.preference_pair (snapshot, position, split, prompt_hash, chosen_policy,"
                " rejected_policy, source, votes, weight, raters)"
                " VALUES (%s, %s, 'train', %s, %s, %s, 'import', 1, 1, '{}')",
                (snapshot.name, position, hash_of_text(TRAIN_PROMPT), spoke, spoke),
            )
    found = run("train", "plan", "--memory", "8GiB", "--cpu")
    assert found["labels"]["pairs_by_distance"] == {"0": 220, "unknown": 30}
    assert found["recommendation"]["method"] == "dpo"
    assert found["memory"]["fits"]
    assert found["memory"]["examples"]["answers"] == 2
    checked = run("train", "plan", "--memory", "8GiB", "--cpu", "--verifier", "sums=2")
    assert checked["recommendation"]["method"] == "rl"
    assert "recommended: dpo" in run("train", "plan", "--memory", "8GiB", plain=True)
    code, errors, out = run("train", "plan", "--memory", "300MiB", "--cpu")
    assert (code, "no room now" in errors, json.loads(out)["memory"]["fits"]) == (2, True, False)
    assert run("train", "plan", "--verifier", "sums")[0] == 2
    assert run("train", "plan", "--memory", "many")[0] == 2
