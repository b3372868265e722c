"""The stamp is proved: an engine that is not its policy gets no traffic, and no answer of it stands."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.conftest import Database
from tests.support.gateway_process import (
    GatewayProcess,
    Operator,
    Scene,
    operator_of,
    running_gateway,
    running_stub,
    scene_of,
    wait_until,
)

HELLO: Any = [{"role": "user", "content": "Hello"}]
NUMBERS = count()


@pytest.fixture(scope="module")
def operator(module_database: Database) -> Iterator[Operator]:
    with operator_of(module_database) as opened:
        yield opened


@pytest.fixture(scope="module")
def gateway(module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running_gateway(module_database, tmp_path_factory.mktemp("gateway")) as started:
        yield started


@pytest.fixture(scope="module")
def key(gateway: GatewayProcess, operator: Operator) -> str:
    made = operator.key()
    wait_until(
        lambda: gateway.get("/v1/models", Authorization=f"Bearer {made}")[0] == 200, "the key is known"
    )
    return made


@pytest.fixture
def scene(gateway: GatewayProcess, operator: Operator, key: str) -> Iterator[Scene]:
    with scene_of(gateway, operator, key, f"m{next(NUMBERS)}") as made:
        yield made


@pytest.fixture
def client(gateway: GatewayProcess, key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as opened:
        yield opened


def wait_for_alarm(scene: Scene) -> dict[str, Any]:
    [alarm] = wait_until(scene.alarms, "an alarm stands")
    assert alarm["kind"] == "stamp_mismatch"
    return alarm


def test_a_proof_is_written_down(scene: Scene) -> None:
    scene.serve("stub-1")
    [proof] = wait_until(scene.proofs, "the proof is stored")
    assert (proof["engine_id"], proof["policy"]) == (scene.engine_id, scene.policy)
    assert (proof["fingerprint"], proof["ok"]) == ("stub-1", True)
    assert (proof["max_abs_difference"], proof["tolerance"]) == (0.0, 0.02)
    assert scene.alarms() == []
    assert (scene.engine.state()["proofs"], scene.engine.state()["requests"]) == (2, [])


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ({"weights": 1}, "log-probabilities"),
        ({"model": "other@1"}, "serves other@1"),
        ({"fingerprint": "stub-9"}, "fingerprint is 'stub-9', not 'stub-1'"),
        ({"fingerprint": None}, "no system_fingerprint"),
        ({"template": "[{role}] {content}"}, "tokenizes golden prompt 2 differently"),
    ],
)
def test_an_engine_that_is_not_the_policy_is_refused(
    scene: Scene, client: OpenAI, behaviour: dict[str, Any], reason: str
) -> None:
    honest = {name: getattr(scene.engine.behaviour, name) for name in behaviour}
    scene.engine.tell(**behaviour)
    scene.want("stub-1")
    alarm = wait_for_alarm(scene)
    assert reason in alarm["detail"]["reason"]
    status, body, headers = scene.gateway.get("/readyz")
    assert (status, headers["retry-after"]) == (503, "2")
    assert reason in " ".join(body["reasons"])
    assert scene.status()["engines"][0]["state"] in ("suspended", "proving")
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model=scene.model, messages=HELLO)
    assert (refused.value.status_code, refused.value.code) == (503, "engine_unavailable")
    assert reason in refused.value.message
    assert "retry-after" in refused.value.response.headers
    assert scene.engine.state()["requests"] == []
    assert {proof["ok"] for proof in scene.proofs()} == {False}

    scene.engine.tell(**honest)
    scene.ready()
    assert wait_until(lambda: scene.alarms(cleared=True), "the alarm is cleared")[0]["id"] == alarm["id"]
    assert scene.alarms() == []


def test_swapped_weights_behind_the_right_name_and_fingerprint_are_found_out(
    scene: Scene, client: OpenAI
) -> None:
    scene.serve("stub-1")
    assert client.chat.completions.create(model=scene.model, messages=HELLO).system_fingerprint == "stub-1"
    scene.engine.restart(weights=1)
    assert "log-probabilities" in wait_for_alarm(scene)["detail"]["reason"]
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model=scene.model, messages=HELLO)
    assert refused.value.status_code == 503
    assert scene.engine.state()["requests"] == []


def test_a_restarted_engine_is_proved_again(scene: Scene) -> None:
    scene.serve("stub-1")
    scene.engine.kill()
    wait_until(lambda: not scene.status()["ready"], "the model is not ready")
    scene.engine.restart(fingerprint="stub-2")
    assert scene.engine_id is not None
    scene.operator.set_engine(scene.engine_id, fingerprint="stub-2")
    scene.ready()
    _, body, _ = scene.ask(stream=False)
    assert body["system_fingerprint"] == "stub-2"
    wait_until(
        lambda: [p["fingerprint"] for p in scene.proofs() if p["ok"]] == ["stub-1", "stub-2"], "two proofs"
    )


def test_another_fingerprint_withholds_the_answer(scene: Scene, client: OpenAI) -> None:
    scene.serve()
    scene.engine.tell(fingerprint="stub-9", weights=1)
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model=scene.model, messages=HELLO)
    assert (refused.value.status_code, refused.value.code) == (502, "stamp_mismatch")
    row = scene.row(dict(refused.value.response.headers))
    assert (row["status"], row["stamp"], row["fingerprint"]) == ("error", "mismatch", "stub-9")
    wait_for_alarm(scene)
    assert not scene.status()["ready"]
    assert scene.gateway.metric("ratchet_stamp_mismatches_total", gen_ai_response_model=scene.policy) == 1
    wait_until(lambda: [proof for proof in scene.proofs() if not proof["ok"]], "the failed proof is stored")


@pytest.mark.parametrize("fingerprint", ["stub-9", None])
def test_a_stream_with_another_fingerprint_ends_with_an_error_and_without_its_last_piece(
    scene: Scene, fingerprint: str | None
) -> None:
    scene.serve()
    scene.engine.tell(fingerprint=fingerprint, gap_s=0.05)
    status, body, headers = scene.ask()
    assert status == 200
    assert "[DONE]" not in body
    assert '"code":"stamp_mismatch"' in body.splitlines()[-2]
    assert "w6 " in body
    assert "w7 " not in body
    row = scene.row(headers)
    assert (row["status"], row["stamp"], row["fingerprint"]) == ("error", "mismatch", fingerprint)
    assert (row["http_status"], row["error_code"]) == (200, "stamp_mismatch")
    assert row["output"] == "w0 w1 w2 w3 w4 w5 w6 "


def test_the_openai_client_raises_in_the_middle_of_such_a_stream(scene: Scene, client: OpenAI) -> None:
    scene.serve()
    scene.engine.tell(fingerprint="stub-9", gap_s=0.05)
    stream = client.chat.completions.create(model=scene.model, messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="withheld"):
        list(stream)


def test_an_engine_by_url_may_come_back_with_a_fingerprint_of_its_own(scene: Scene) -> None:
    scene.serve()
    scene.engine.tell(fingerprint="stub-2")
    assert scene.ask(stream=False)[0] == 502
    scene.ready()
    assert scene.ask(stream=False)[1]["system_fingerprint"] == "stub-2"
    wait_until(lambda: scene.alarms(cleared=True), "the alarm is cleared")


def test_the_other_engine_of_the_policy_goes_on(scene: Scene) -> None:
    with running_stub(scene.policy, fingerprint="stub-b") as second:
        scene.want()
        scene.operator.add_engine(scene.policy, second.url)
        scene.ready(engines=2)
        scene.engine.tell(fingerprint="stub-9", weights=1)
        answers = [scene.ask(stream=False) for _ in range(6)]
    assert sum(status == 502 for status, _, _ in answers) <= 1
    assert {body["system_fingerprint"] for status, body, _ in answers if status == 200} == {"stub-b"}
    assert {status for status, _, _ in answers} <= {200, 502}
