"""Rounds over HTTP: an operator's key asks, looks, stops and resumes; any other is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from fastapi.testclient import TestClient
from psycopg.types.json import Jsonb

from ratchet.broker import broker_url
from ratchet.db.roles import Role
from ratchet.home import Home
from ratchet.ids import new_id
from ratchet.keys import hash_key
from ratchet.registry import PolicyVersion
from tests.conftest import Database
from tests.support.feedback import serve_policy
from trainer.app import create_app
from trainer.data.snapshot import MANIFEST

BODY = {"method": "dpo", "policy": "current", "config": {"loss": {"beta": 0.2}}, "reason": "weekly"}


@pytest.fixture
def client(database: Database, home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    with psycopg.connect(database.owner_url) as owner:
        for key, role in (("rk-op", "operator"), ("rk-client", "client")):
            owner.execute(
                "INSERT INTO serving.api_key (id, name, role, prefix, hash) VALUES (%s, %s, %s, 'rk-', %s)",
                (new_id(), f"{role} key", role, hash_key(key)),
            )
    monkeypatch.setenv("RATCHET_DATABASE_URL", database.url(Role.TRAINER))
    monkeypatch.setenv("RATCHET_BROKER_URL", broker_url(database.url(Role.TRAINER)))
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    with TestClient(create_app(), headers={"Authorization": "Bearer rk-op"}) as opened:
        yield opened


def put_snapshot(database: Database, folder: Path) -> str:
    """Registers a snapshot as the feedback worker does; returns its digest."""
    manifest = json.loads((folder / MANIFEST).read_text())
    with psycopg.connect(database.owner_url) as owner:
        owner.execute(
            "INSERT INTO feedback.dataset_snapshot (digest, kind, path, manifest) VALUES (%s, %s, %s, %s)",
            (manifest["digest"], manifest["kind"], str(folder), Jsonb(manifest)),
        )
    return str(manifest["digest"])


@pytest.mark.parametrize("key", [None, "Bearer rk-client", "Bearer ", "Bearer rk-unknown"])
def test_only_an_operators_key_is_heard(client: TestClient, key: str | None) -> None:
    del client.headers["Authorization"]
    headers = {} if key is None else {"Authorization": key}
    for answer in (
        client.get("/admin/rounds", headers=headers),
        client.post("/admin/rounds", json=BODY, headers=headers),
        client.post(f"/admin/rounds/{uuid4()}/stop", json={"reason": "no"}, headers=headers),
    ):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_round_is_asked_for_looked_at_stopped_and_resumed(
    client: TestClient, database: Database, parent: PolicyVersion, snapshot: Path
) -> None:
    serve_policy(database.owner_url, "tiny", parent.ref)
    digest = put_snapshot(database, snapshot)
    asked = client.post("/admin/rounds", json={**BODY, "snapshot": digest[:16]})
    assert asked.status_code == 202, asked.text
    shown = asked.json()
    assert (shown["state"], shown["policy"], shown["reference"]) == ("asked", parent.ref, parent.ref)
    assert (shown["asked_by"], shown["reason"]) == ("operator key", "weekly")
    assert (shown["config"]["loss"]["beta"], shown["config"]["optim"]["batch"]) == (0.2, 32)
    assert [each["id"] for each in client.get("/admin/rounds").json()] == [shown["id"]]

    stopped = client.post(f"/admin/rounds/{shown['id'][-8:]}/stop", json={"reason": "not today"}).json()
    assert (stopped["state"], stopped["control"][0]["who"]) == ("stopped", "operator key")
    again = client.post("/admin/rounds/last/stop", json={"reason": "twice"})
    assert (again.status_code, "is stopped already" in again.json()["error"]) == (422, True)
    resumed = client.post("/admin/rounds/last/resume", json={"reason": "now"}).json()
    assert (resumed["state"], [each["word"] for each in resumed["control"]]) == ("asked", ["stop", "ok"])


@pytest.mark.parametrize("key", ["model", "reference", "snapshot", "cache"])
def test_no_request_names_a_folder_of_this_machine(
    client: TestClient, database: Database, parent: PolicyVersion, snapshot: Path, key: str
) -> None:
    serve_policy(database.owner_url, "tiny", parent.ref)
    put_snapshot(database, snapshot)
    named = client.post("/admin/rounds", json={**BODY, "config": {key: str(snapshot)}})
    assert (named.status_code, f"{key} cannot be given over HTTP" in named.json()["error"]) == (422, True)
    by_path = client.post("/admin/rounds", json={**BODY, "snapshot": str(snapshot)})
    assert (by_path.status_code, "no snapshot begins" in by_path.json()["error"]) == (404, True)
    assert client.get("/admin/rounds").json() == []


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"policy": "nobody"}, 404, "no policy is called 'nobody'"),
        ({"policy": "current"}, 404, "models served: none"),
        ({"snapshot": "latest"}, 404, "no snapshot of pairs"),
        ({"snapshot": "abcdef"}, 404, "no snapshot begins"),
        ({"config": {"loss": {"beta": -1}}}, 422, "loss.beta"),
        ({"config": {"los": {}}}, 422, "los"),
        ({"method": "ppo"}, 422, "method"),
        ({"reason": ""}, 422, "reason"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_with_the_reason(
    client: TestClient,
    database: Database,
    parent: PolicyVersion,
    snapshot: Path,
    changed: dict[str, object],
    status: int,
    said: str,
) -> None:
    digest = put_snapshot(database, snapshot) if "snapshot" not in changed else ""
    body = {**BODY, "policy": parent.ref, "snapshot": digest, **changed}
    answer = client.post("/admin/rounds", json=body)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert client.get("/admin/rounds").json() == []


def test_a_round_that_is_not_there_is_not_found(client: TestClient) -> None:
    for name in ("last", str(uuid4()), "abc"):
        answer = client.get(f"/admin/rounds/{name}")
        assert (answer.status_code, "ratchet round list" in answer.json()["error"]) == (404, True)
