"""Selection and a judge's calibration on real engines: put up for the run, asked, and let go."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from ratchet.db.engine import libpq_url
from ratchet.db.roles import Role
from ratchet.demo.stack import RunningStack
from ratchet.home import Home
from ratchet.ids import new_id
from ratchet.secrets_store import role_url, shared_key
from ratchet.supervisor.engines import ENGINE_KEY
from tests.support.tiny_model import make_tiny_model

PAIRS = 300

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def execute(stack: RunningStack, role: Role, statement: str, *values: Any) -> list[dict[str, Any]]:
    address = libpq_url(role_url(Home(stack.data_dir), role))
    with psycopg.connect(address, row_factory=dict_row) as connection:
        done = connection.execute(statement.encode(), values)
        return done.fetchall() if done.description else []


def round_with(stack: RunningStack, production: str, candidate: str) -> str:
    """A round that is done and left one candidate, by the rows its own roles write."""
    round_id = new_id()
    execute(
        stack, Role.OPERATOR,
        "INSERT INTO training.training_round (id, method, config, config_digest, snapshot, policy, reference,"
        " asked_by, reason) VALUES (%s, 'dpo', '{}', 'd', 's', %s, %s, 'ann', 'test')",
        round_id, production, production,
    )  # fmt: skip
    execute(
        stack, Role.TRAINER,
        "UPDATE training.training_round SET state = 'done', ended_at = now(), summary = '{}' WHERE id = %s",
        round_id,
    )  # fmt: skip
    execute(
        stack, Role.TRAINER,
        "INSERT INTO training.checkpoint (id, round_id, step, kl_k1, kl_k3, reward, digest, policy, path)"
        " VALUES (%s, %s, 10, 1.5, 1.5, 2.0, 'd', %s, 'p')",
        new_id(), round_id, candidate,
    )  # fmt: skip
    return str(round_id)


def test_a_candidate_is_put_up_asked_under_its_pinned_decode_and_let_go(
    tiny_stack: RunningStack, tmp_path: Path
) -> None:
    [production] = [one["ref"] for one in tiny_stack.ratchet("policy", "list")]
    name = production.partition("@")[0]
    make_tiny_model(tmp_path / "other", seed=1)
    decode = tmp_path / "decode.toml"
    decode.write_text("temperature = 0.0\nmax_tokens = 12\n")
    added = tiny_stack.ratchet(
        "policy", "add", name, "--path", f"{tmp_path}/other", "--decode", str(decode), "--parent", production
    )
    candidate = added["ref"]
    round_id = round_with(tiny_stack, production, candidate)
    words = ("select", "--round", round_id, "--suite", "arithmetic", "--primary", "arithmetic")
    record = tiny_stack.ratchet(*words)
    assert record["baseline"] == production
    assert [one["policy"] for one in record["candidates"]] == [candidate]
    assert record["chosen"] is None
    answers = execute(
        tiny_stack, Role.OPERATOR,
        "SELECT policy, tokens, finish_reason, fingerprint FROM evaluation.answer ORDER BY policy, item",
    )  # fmt: skip
    ours = [answer for answer in answers if answer["policy"] == candidate]
    assert len(answers) == 48
    assert len(ours) == 24
    assert all(answer["tokens"] <= 12 for answer in ours)
    assert {answer["fingerprint"][:15] for answer in ours} == {f"rt-{candidate.partition('@')[2]}"}
    engines = execute(tiny_stack, Role.OPERATOR, "SELECT policy, desired FROM registry.engine")
    assert {engine["policy"]: engine["desired"] for engine in engines} == {
        production: "up",
        candidate: "down",
    }
    assert tiny_stack.ratchet(*words)["digest"] == record["digest"]
    report = tiny_stack.ratchet("evaluate", "report", round_id, "--out", f"{tmp_path}/selection.html")
    assert record["candidates"][0]["primary"] is None
    assert report["reward_hacking"] is None
    assert "No candidate is proposed" in (tmp_path / "selection.html").read_text()


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.timeout(3600)
def test_smollm2_is_refused_as_a_judge_on_public_pairs(
    smollm2_stack: RunningStack, shared_data: Path, tmp_path: Path
) -> None:
    home = Home(smollm2_stack.data_dir)
    [engine] = execute(smollm2_stack, Role.OPERATOR, "SELECT policy, url FROM registry.engine")
    address = {"url": f"{engine['url']}/v1", "key": shared_key(home, ENGINE_KEY), "concurrency": 32,
               "timeout_s": 600}  # fmt: skip
    environment = {
        **os.environ, "RATCHET_HOME": str(home.root), "RATCHET_EVALUATOR_JUDGES": json.dumps({"own": address})
    }  # fmt: skip
    origin = tmp_path / "origin.json"
    origin.write_text(json.dumps({"lineage": [engine["policy"]], "training_data": [], "labelling": []}))

    def judge(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ratchet.cli", "judge", *words, "--json"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    added = judge(
        "add", "smol", "--endpoint", "own", "--model", engine["policy"], "--provenance", str(origin),
        "--dimension", "safety", "--max-tokens", "64",
    )  # fmt: skip
    assert added.returncode == 0, added.stderr
    done = judge(
        "calibrate", "smol", "--dimension", "safety", "--repeats", "2", "--limit", str(PAIRS),
        "--labels", f"{shared_data}/hh-harmless-base-test.jsonl.gz",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["pairs"] == PAIRS
    assert not found["passed"]
    assert [each for each in found["shortcomings"] if each.startswith("accuracy")], found["shortcomings"]
    sys.stdout.write(json.dumps(found["figures"]))
