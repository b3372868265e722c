"""The commands for models, policies, keys, lineage and database addresses, as another shell runs them."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine

from ratchet.canonical import digest_of
from ratchet.cli import main
from ratchet.db.engine import session_scope
from ratchet.db.models.registry import EngineProof, EngineRow
from ratchet.db.models.serving import Response
from ratchet.db.roles import Role
from ratchet.decode import DecodeConfig
from ratchet.home import Home
from ratchet.ids import floor_of, id_beside, new_id
from ratchet.keys import hash_key
from ratchet.plan import Arm, PlannedArm, publish
from ratchet.registry import PolicyVersion, add_policy
from ratchet.secrets_store import save_role_urls
from tests.conftest import Database
from tests.support.tiny_model import make_tiny_model

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
GOLDEN = [{"kind": "text", "text": "ab", "token_ids": [5, 6], "logprobs": [None, -1.5]}]


@pytest.fixture
def home(tmp_path: Path, database: Database) -> Home:
    """The data folder of a stack that was set up."""
    home = Home(tmp_path / "home").ensure()
    save_role_urls(home, database.urls)
    return home


@pytest.fixture
def ratchet(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command on that data folder; gives exit code, stdout and stderr."""
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ratchet", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def json_of(ratchet: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """Runs a command that must succeed, and reads its one document."""

    def run(*arguments: str) -> Any:
        code, stdout, stderr = ratchet(*arguments, "--json")
        assert code == 0, stderr
        return json.loads(stdout)

    return run


@pytest.fixture
def refused(ratchet: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs a command that must fail with code 2, and gives its last line."""

    def run(*arguments: str) -> str:
        code, stdout, stderr = ratchet(*arguments)
        assert (code, stdout) == (2, ""), stderr
        return stderr.splitlines()[-1]

    return run


def test_a_policy_is_added_listed_and_shown(
    tmp_path: Path, home: Home, policies: list[PolicyVersion], json_of: Callable[..., Any]
):
    decode = tmp_path / "decode.toml"
    decode.write_text("temperature = 0.7\nmax_tokens = 64\n")
    provenance = tmp_path / "provenance.json"
    provenance.write_text('{"trained on": "nothing"}')
    arguments = (
        "policy", "add", "tiny", "--path", str(make_tiny_model(tmp_path / "tiny")), "--decode", str(decode),
        "--provenance", str(provenance), "--parent", policies[0].ref,
    )  # fmt: skip
    added, again = (json_of(*arguments) for _ in range(2))
    assert [document.pop("created") for document in (added, again)] == [True, False]
    assert added == again
    assert added["ref"] == f"tiny@{added['digest'][:12]}"
    assert added["decode"] == DecodeConfig(temperature=0.7, max_tokens=64).content()
    assert added["decode_digest"] == digest_of(added["decode"])
    assert (added["parent"], added["provenance"]) == (policies[0].ref, {"trained on": "nothing"})
    assert json_of("policy", "list", "tiny")[0] == added
    assert [policy["number"] for policy in json_of("policy", "list")] == [3, 2, 1]
    assert json_of("policy", "list", "other") == []
    shown = json_of("policy", "show", "tiny")
    golden = shown.pop("golden")
    assert shown == {**added, "folder": str(home.artifacts / "policies" / added["artifact"])}
    assert [entry["kind"] for entry in golden] == ["text", "text", "chat", "chat"]
    assert all(len(entry["token_ids"]) == len(entry["logprobs"]) for entry in golden)


def test_without_json_people_read_the_same(
    ratchet: Callable[..., tuple[int, str, str]], policies: list[PolicyVersion]
):
    _, listed, _ = ratchet("policy", "list")
    _, shown, _ = ratchet("policy", "show", policies[0].ref)
    _, lineage, _ = ratchet("lineage", policies[1].ref)
    assert all(policy.ref in listed for policy in policies)
    assert policies[0].weights_digest in shown
    assert policies[0].ref in lineage


def test_bad_input_is_one_line_and_code_2(tmp_path: Path, refused: Callable[..., str]):
    folder = str(make_tiny_model(tmp_path / "tiny"))
    bad = tmp_path / "bad.json"
    bad.write_text('{"temperature": 9}')
    listed = tmp_path / "list.json"
    listed.write_text("[]")
    add = ("policy", "add", "tiny", "--path")
    assert "has no config.json" in refused(*add, str(tmp_path))
    assert "bad.json: temperature: Input should be less than" in refused(*add, folder, "--decode", str(bad))
    assert "holds one JSON object" in refused(*add, folder, "--provenance", str(listed))
    assert "no policy is called 'x'" in refused(*add, folder, "--parent", "x")
    assert "no policy is called 'x'" in refused("policy", "show", "x")
    assert "is no response id, no policy, and no user" in refused("lineage", "x")
    assert "no response" in refused("lineage", str(new_id()), "--as", "response")
    assert "is no response id" in refused("lineage", "x", "--as", "response")
    assert "no such key" in refused("keys", "revoke", "rk-0123456")
    assert "no database role is called 'root'" in refused("db", "url", "--role", "root")
    assert "no model is called 'gpt9'" in refused("model", "fetch", "gpt9")


def test_a_data_folder_without_a_stack_is_told(tmp_path: Path, refused: Callable[..., str]):
    elsewhere = tmp_path / "elsewhere"
    assert f"ratchet up --data-dir {elsewhere}" in refused("policy", "list", "--data-dir", str(elsewhere))


def test_a_key_is_printed_once_and_stored_as_its_hash(
    ratchet: Callable[..., tuple[int, str, str]], json_of: Callable[..., Any], database: Database
):
    limits = ("--rpm", "60", "--concurrency", "4")
    made = json_of("keys", "create", "--role", "client", "--name", "Anna", *limits)
    plain = ratchet("keys", "create", "--role", "rater")[1].strip()
    assert made["key"].startswith(made["prefix"])
    assert made["limits"] == {"rpm": 60, "concurrency": 4}
    with psycopg.connect(database.url(Role.OPERATOR)) as connection:
        hashes = {row[0] for row in connection.execute("SELECT hash FROM serving.api_key")}
    assert hashes == {hash_key(made["key"]), hash_key(plain)}
    listed = json_of("keys", "list")
    assert [(key["name"], key["role"]) for key in listed] == [("rater", "rater"), ("Anna", "client")]
    assert made["key"] not in json.dumps(listed)


@pytest.mark.parametrize("field", ["id", "prefix", "key"])
def test_a_key_is_revoked_by_id_prefix_or_itself_and_keeps_its_time(json_of: Callable[..., Any], field: str):
    made, other = (json_of("keys", "create", "--role", "service") for _ in range(2))
    revoked = json_of("keys", "revoke", made[field])
    assert revoked["id"] == made["id"]
    assert json_of("keys", "revoke", made[field])["revoked_at"] == revoked["revoked_at"] is not None
    standing = {key["id"]: key["revoked_at"] for key in json_of("keys", "list")}
    assert standing == {made["id"]: revoked["revoked_at"], other["id"]: None}


def test_the_address_of_a_role_opens_the_database_as_that_role(json_of: Callable[..., Any]):
    for arguments, user in (((), "ratchet_operator"), (("--role", "report"), "ratchet_report")):
        document = json_of("db", "url", *arguments)
        with psycopg.connect(document["url"]) as connection:
            assert connection.execute("SELECT current_user").fetchone() == (user,)


def test_models_in_the_data_folder_are_listed(home: Home, json_of: Callable[..., Any]):
    assert json_of("model", "list") == []
    folder = make_tiny_model(home.models / "tiny")
    (home.models / "no model").mkdir()
    (model,) = json_of("model", "list")
    assert (model["name"], model["path"], model["source"]) == ("tiny", str(folder), None)
    assert model["bytes"] == sum(file.stat().st_size for file in folder.iterdir())


@pytest.fixture
def policies(tmp_path: Path, home: Home, engine_of: Callable[[Role], Engine]) -> list[PolicyVersion]:
    """A policy, and one trained from it."""
    found: list[PolicyVersion] = []
    for seed in range(2):
        added = add_policy(
            engine_of(Role.OPERATOR),
            home,
            name="tiny",
            path=make_tiny_model(tmp_path / "source", seed),
            parent=found[0].ref if found else None,
            provenance={"seed": seed},
            golden=lambda *_: GOLDEN,
        )
        found.append(added.policy)
    return found


def answer(policy: PolicyVersion, number: int, **fields: Any) -> Response:
    """The row of a response."""
    values: dict[str, Any] = {
        "id": id_beside(floor_of(NOON), str(number)),
        "created_at": NOON,
        "kind": "chat",
        "status": "ok",
        "http_status": 200,
        "model": "tiny",
        "policy": policy.ref,
        "pinned": False,
        "decode": policy.decode_digest,
        "decode_overridden": [],
        "arm": "production",
        "stage": "production",
        "stamp": "verified",
        "user_id": "anna",
        "conversation_id": f"c{number % 2}",
        "parameters_asked": {},
        "parameters_used": {"temperature": 1.0},
        "outputs": [],
        "stream": False,
        "gateway": "gateway-1",
        "labels": {},
        "verdicts": {},
        "sanitized": False,
    }
    return Response(**{**values, **fields})


@pytest.fixture
def served(policies: list[PolicyVersion], engine_of: Callable[[Role], Engine]) -> dict[str, Any]:
    """The first policy in production, proved, with three answers; the second gave one."""
    base, child = policies
    engine, proof = new_id(), new_id()
    with session_scope(engine_of(Role.OWNER)) as session:
        version = publish(
            session,
            model="tiny",
            stage="canary 25%",
            arms=(PlannedArm(Arm.PRODUCTION, base.ref, 0.75), PlannedArm(Arm.CANARY, child.ref, 0.25)),
            actor="test",
            reason="a try",
        )
        session.add(EngineRow(id=engine, policy=base.ref, managed=True, desired="up", state="up", restarts=0))
        session.flush()
        for identity, hour, ok in ((new_id(), 10, False), (proof, 11, True), (new_id(), 13, False)):
            session.add(
                EngineProof(
                    id=identity, engine_id=engine, policy=base.ref, gateway="gateway-1", ok=ok,
                    max_abs_difference=0.001, tolerance=0.02, created_at=NOON.replace(hour=hour),
                )
            )  # fmt: skip
        made = {"plan_version": version, "engine_id": engine, "fingerprint": "f"}
        rows = [answer(base, number, **made) for number in range(3)]
        rows[2].status = "cancelled"
        rows.append(answer(child, 3, plan_version=version, arm="canary"))
        session.add_all(rows)
        identity = rows[0].id
    return {"response": identity, "engine": engine, "proof": proof, "plan": version}


def test_the_lineage_of_a_response(
    served: dict[str, Any], policies: list[PolicyVersion], json_of: Callable[..., Any]
):
    found = json_of("lineage", str(served["response"]))
    assert found["kind"] == "response"
    assert UUID(found["response"]["id"]) == served["response"]
    assert found["policy"]["ref"] == policies[0].ref
    assert found["policy"]["artifact"] == policies[0].artifact
    assert found["policy"]["provenance"] == {"seed": 0}
    assert found["ancestors"] == []
    assert found["decode"] == policies[0].decode.content()
    assert (found["plan"]["version"], found["plan"]["stage"]) == (served["plan"], "canary 25%")
    assert UUID(found["engine"]["id"]) == served["engine"]
    assert UUID(found["proof"]["id"]) == served["proof"]


def test_the_lineage_of_a_policy(
    served: dict[str, Any], policies: list[PolicyVersion], json_of: Callable[..., Any]
):
    base, child = (json_of("lineage", policy.ref) for policy in policies)
    assert json_of("lineage", "tiny") == child
    assert (base["ancestors"], base["children"]) == ([], [policies[1].ref])
    assert ([policy["ref"] for policy in child["ancestors"]], child["children"]) == ([policies[0].ref], [])
    assert [plan["arm"] for plan in base["plans"]] == [
        {"arm": "production", "policy": policies[0].ref, "share": 0.75}
    ]
    assert [plan["arm"]["arm"] for plan in child["plans"]] == ["canary"]
    assert [proof["ok"] for proof in base["engines"][0]["proofs"]] == [False, True, False]
    assert child["engines"] == []
    assert {(row["status"], row["count"]) for row in base["responses"]} == {("ok", 2), ("cancelled", 1)}


def test_the_lineage_of_a_user(
    served: dict[str, Any], policies: list[PolicyVersion], json_of: Callable[..., Any]
):
    found = json_of("lineage", "anna")
    assert (found["kind"], found["user"], found["conversations"]) == ("user", "anna", 2)
    counted = {(row["policy"], row["arm"], row["status"]): row["count"] for row in found["responses"]}
    assert counted == {
        (policies[0].ref, "production", "ok"): 2,
        (policies[0].ref, "production", "cancelled"): 1,
        (policies[1].ref, "canary", "ok"): 1,
    }
    assert {policy["ref"] for policy in found["policies"]} == {policy.ref for policy in policies}


def test_a_user_whose_name_is_a_uuid_is_found(
    policies: list[PolicyVersion], engine_of: Callable[[Role], Engine], json_of: Callable[..., Any]
):
    name = "7a3c1d0e-9b0f-4a53-8a53-1c2d3e4f5a6b"
    with session_scope(engine_of(Role.OWNER)) as session:
        session.add(answer(policies[0], 0, user_id=name))
    assert json_of("lineage", name)["user"] == name


def test_another_shell_lists_policies_without_loading_torch(home: Home, policies: list[PolicyVersion]):
    code = (
        "import sys; from ratchet.cli import build; "
        "build('policy')(['policy', 'list', '--json', *sys.argv[1:]], standalone_mode=False); "
        "sys.exit(sorted({'torch', 'transformers', 'vllm', 'numpy'} & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", code, "--data-dir", str(home.root)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert [policy["ref"] for policy in json.loads(result.stdout)] == [
        policy.ref for policy in policies[::-1]
    ]
