"""The stock openai client through a real gateway: bodies, headers and rows agree."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import openai
import pytest
from openai import OpenAI

from ratchet.canonical import short
from ratchet.ids import time_of
from ratchet.plan import Enforcement
from tests.conftest import Database
from tests.support.gateway_process import (
    DECODE,
    GatewayProcess,
    Operator,
    operator_of,
    running_gateway,
    running_stub,
    wait_until,
)
from tests.support.stub_engine import StubEngine

HELLO: Any = [{"role": "user", "content": "Hello"}]
TEXT = "w0 w1 w2 w3 w4 w5 w6 w7 "
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@dataclass
class Stack:
    """One gateway with one stub behind it."""

    gateway: GatewayProcess
    operator: Operator
    engine: StubEngine
    client: OpenAI
    policy: str
    key: str

    def row(self, headers: Any) -> dict[str, Any]:
        return self.gateway.row(headers["x-ratchet-response-id"])

    def last_request(self) -> dict[str, Any]:
        return self.engine.state()["requests"][-1]


@pytest.fixture(scope="module")
def stack(module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with (
        operator_of(module_database) as operator,
        running_stub("m@000000000000") as engine,
        running_gateway(module_database, tmp_path_factory.mktemp("gateway")) as gateway,
    ):
        policy = operator.policy("m")
        operator.plan("m", policy)
        operator.plan("strict", policy, enforcement=Enforcement.REFUSE)
        operator.add_engine(policy, engine.url)
        key = operator.key()
        gateway.ready()
        with OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
            yield Stack(gateway, operator, engine, client, policy, key)


def test_an_answer_and_its_row(stack: Stack) -> None:
    raw = stack.client.chat.completions.with_raw_response.create(
        model="m",
        messages=HELLO,
        user="ada",
        extra_headers={
            "x-ratchet-session": "s-1",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        },
    )
    body, headers, row = raw.parse(), raw.headers, stack.row(raw.headers)
    response_id = UUID(headers["x-ratchet-response-id"])

    assert body.id == f"chatcmpl-{response_id}"
    assert body.model == headers["x-ratchet-policy"] == row["policy"] == stack.policy
    assert body.choices[0].message.content == row["output"] == TEXT
    assert body.system_fingerprint == row["fingerprint"] == "stub-1"
    assert body.usage is not None
    assert (body.usage.prompt_tokens, body.usage.completion_tokens) == (5, 8)
    assert headers["x-ratchet-decode"] == short(DECODE.digest)
    assert headers["x-ratchet-arm"] == "production"
    expected = {
        "id": response_id,
        "created_at": time_of(response_id),
        "kind": "chat",
        "status": "ok",
        "http_status": 200,
        "error": None,
        "model": "m",
        "pinned": False,
        "decode": DECODE.digest,
        "arm": "production",
        "stage": "production",
        "stamp": "verified",
        "user_id": "ada",
        "session_id": "s-1",
        "messages": HELLO,
        "output_sha256": hashlib.sha256(TEXT.encode()).hexdigest(),
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "output_tokens": 8,
        "stream": False,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "sanitized": False,
    }
    assert {name: row[name] for name in expected} == expected
    assert 0 < row["ttft_ms"] <= row["duration_ms"]
    assert row["queue_ms"] == 0
    assert row["gateway"].startswith("test-")


def test_a_stream_and_its_row(stack: Stack) -> None:
    with stack.client.chat.completions.with_streaming_response.create(
        model="m", messages=HELLO, stream=True
    ) as raw:
        chunks = list(raw.parse())
        row = stack.row(raw.headers)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == TEXT
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{row['id']}"}
    assert {chunk.model for chunk in chunks} == {stack.policy}
    assert [chunk.usage for chunk in chunks] == [None] * 9
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (chunks[-1].choices[0].finish_reason, chunks[-1].system_fingerprint) == ("stop", "stub-1")
    assert row["stream"] is True
    assert (row["status"], row["stamp"], row["output"], row["output_tokens"]) == ("ok", "verified", TEXT, 8)
    assert row["outputs"] == [{"index": 0, "text": TEXT, "finish_reason": "stop", "tool_calls": None}]
    assert 0 < row["itl_p50_ms"] <= row["itl_p99_ms"]
    assert 0 < row["ttft_ms"] <= row["duration_ms"]


def test_usage_comes_last_when_the_client_asks_for_it(stack: Stack) -> None:
    chunks = list(
        stack.client.chat.completions.create(
            model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * 9


def test_several_choices_stay_apart(stack: Stack) -> None:
    with stack.client.chat.completions.with_streaming_response.create(
        model="m", messages=HELLO, stream=True, n=2, max_tokens=3
    ) as raw:
        texts = {0: "", 1: ""}
        for chunk in raw.parse():
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        row = stack.row(raw.headers)
    assert texts == {0: "w0 w1 w2 ", 1: "w0 w1 w2 "}
    assert [(item["index"], item["text"], item["finish_reason"]) for item in row["outputs"]] == [
        (0, "w0 w1 w2 ", "length"),
        (1, "w0 w1 w2 ", "length"),
    ]
    assert row["output_tokens"] == 6


def test_plain_completions(stack: Stack) -> None:
    raw = stack.client.completions.with_raw_response.create(model="m", prompt="Once", max_tokens=2)
    row = stack.row(raw.headers)
    assert raw.parse().choices[0].text == row["output"] == "w0 w1 "
    assert raw.parse().id == f"cmpl-{row['id']}"
    assert (row["kind"], row["messages"]) == ("completion", [{"role": "user", "content": "Once"}])
    stream = stack.client.completions.create(model="m", prompt="Once", max_tokens=2, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "w0 w1 "


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools_are_recorded(stack: Stack, stream: bool) -> None:
    stack.engine.tell(tool_call=True)
    try:
        with stack.client.chat.completions.with_streaming_response.create(
            model="m", messages=HELLO, tools=TOOLS, tool_choice="auto", stream=stream, max_tokens=1
        ) as raw:
            raw.read()
            row = stack.row(raw.headers)
    finally:
        stack.engine.tell(tool_call=False)
    call = {"name": "weather", "arguments": '{"a": 1}'}
    assert row["outputs"][0]["tool_calls"] == [{"id": "call-1", "type": "function", "function": call}]
    assert (row["status"], row["output"]) == ("ok", "")


def test_the_engine_is_told_every_pinned_value_and_nothing_else(stack: Stack) -> None:
    raw = stack.client.chat.completions.with_raw_response.create(
        model="m", messages=HELLO, temperature=0.1, presence_penalty=1.0, max_completion_tokens=4,
        stop=["\n"], seed=3, store=True, metadata={"team": "red"}, user="ada", extra_body={"top_k": 5},
    )  # fmt: skip
    row = stack.row(raw.headers)
    sent = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_completion_tokens": 4,
        "stop": ["<end>", "\n"],
        "seed": 3,
    }
    engines_own = {
        "model": stack.policy,
        "messages": HELLO,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    assert stack.last_request() == {**engines_own, **sent}
    assert row["parameters_used"] == sent
    assert row["parameters_asked"]["temperature"] == 0.1
    assert row["parameters_asked"]["metadata"] == {"team": "red"}
    assert row["decode_overridden"] == ["presence_penalty", "temperature", "top_k"]
    assert raw.headers["x-ratchet-decode"] == (
        f"{short(DECODE.digest)}; ignored=store; overridden=presence_penalty,temperature,top_k"
    )


def test_a_plan_may_refuse_what_it_would_replace(stack: Stack) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        stack.client.chat.completions.create(model="strict", messages=HELLO, temperature=0.1)
    assert (refused.value.param, refused.value.code) == ("temperature", "decode_pinned")
    row = stack.row(refused.value.response.headers)
    assert (row["status"], row["http_status"], row["error_code"]) == ("rejected", 400, "decode_pinned")
    assert (row["policy"], row["output"], row["stamp"]) == (stack.policy, None, "unverified")
    stack.client.chat.completions.create(model="strict", messages=HELLO, temperature=0.7, max_tokens=2)


def test_the_clients_own_classes_of_errors(stack: Stack) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        stack.client.chat.completions.create(model="nobody", messages=HELLO)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert stack.row(unknown.value.response.headers)["status"] == "rejected"

    with pytest.raises(openai.BadRequestError) as foreign:
        stack.client.chat.completions.create(model="m", messages=HELLO, extra_body={"ignore_eos": True})
    assert foreign.value.param == "ignore_eos"

    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=f"{stack.gateway.url}/v1", api_key="rk-wrong", max_retries=0).models.list()

    rater = OpenAI(base_url=f"{stack.gateway.url}/v1", api_key=stack.operator.key("rater"), max_retries=0)
    wait_until(lambda: _knows(rater), "the key is known")
    with pytest.raises(openai.PermissionDeniedError):
        rater.chat.completions.create(model="m", messages=HELLO)


def _knows(client: OpenAI) -> bool:
    try:
        client.models.list()
    except openai.AuthenticationError:
        return False
    return True


def test_what_cannot_be_parsed_leaves_a_row_too(stack: Stack) -> None:
    status, body, headers = stack.gateway.post("/v1/chat/completions", b"{", stack.key)
    assert (status, body["error"]["code"]) == (400, "invalid_json")
    row = stack.row(headers)
    assert (row["status"], row["model"], row["messages"]) == ("rejected", None, None)

    status, body, headers = stack.gateway.post(
        "/v1/chat/completions", {"model": "m", "messages": "Hello", "stream": True}, stack.key
    )
    assert (status, body["error"]["param"]) == (400, "messages")
    assert stack.row(headers)["stream"] is True


def test_nul_and_lone_surrogates_are_served(stack: Stack) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a\x00b\ud800c"}]}).encode()
    status, _, headers = stack.gateway.post("/v1/chat/completions", body, stack.key)
    assert status == 200
    assert stack.last_request()["messages"][0]["content"] == "a\x00b\ufffdc"
    row = stack.row(headers)
    assert (row["messages"][0]["content"], row["sanitized"]) == ("a\ufffdb\ufffdc", True)


def test_an_engines_refusal_is_the_clients(stack: Stack) -> None:
    stack.engine.tell(status=400)
    try:
        with pytest.raises(openai.BadRequestError, match="told to fail") as refused:
            stack.client.chat.completions.create(model="m", messages=HELLO, stream=True)
    finally:
        stack.engine.tell(status=200)
    assert stack.row(refused.value.response.headers)["status"] == "rejected"


def test_a_version_can_be_asked_for(stack: Stack) -> None:
    raw = stack.client.chat.completions.with_raw_response.create(model=stack.policy, messages=HELLO)
    row = stack.row(raw.headers)
    assert (row["pinned"], row["arm"], row["policy"], row["model"]) == (
        True,
        "production",
        stack.policy,
        stack.policy,
    )


def test_the_list_of_models(stack: Stack) -> None:
    assert [model.id for model in stack.client.models.list()] == ["m", stack.policy, "strict"]
    assert stack.client.models.retrieve(stack.policy).owned_by == "ratchet"
    with pytest.raises(openai.NotFoundError):
        stack.client.models.retrieve("nobody")


def test_unknown_paths_and_methods_speak_json(stack: Stack) -> None:
    status, body, _ = stack.gateway.get("/v1/embeddings")
    assert (status, body["error"]["code"]) == (404, "unknown_url")
    status, body, headers = stack.gateway.get("/v1/chat/completions")
    assert (status, body["error"]["code"], headers["allow"]) == (405, "method_not_allowed", "POST")


def test_a_key_works_as_soon_as_it_is_made_and_not_after_it_is_revoked(stack: Stack) -> None:
    key = stack.operator.key("service")
    client = OpenAI(base_url=f"{stack.gateway.url}/v1", api_key=key, max_retries=0)

    def served() -> bool:
        try:
            client.chat.completions.create(model="m", messages=HELLO, max_tokens=1)
        except openai.AuthenticationError:
            return False
        return True

    wait_until(served, "the new key is known")
    stack.operator.revoke(key)
    wait_until(lambda: not served(), "the revoked key is refused")


def test_a_new_plan_moves_traffic_and_a_user_stays_where_it_was(stack: Stack) -> None:
    with running_stub("m@000000000001", weights=1, fingerprint="stub-2") as engine:
        canary = stack.operator.policy("m", weights=1)
        identity = stack.operator.add_engine(canary, engine.url)
        stack.operator.plan("both", stack.policy, canary=(canary, 0.5), stage="canary-50")

        def arm(user: str) -> str:
            raw = stack.client.chat.completions.with_raw_response.create(
                model="both", messages=HELLO, user=user, max_tokens=1
            )
            assert (
                raw.headers["x-ratchet-policy"]
                == {"canary": canary, "production": stack.policy}[raw.headers["x-ratchet-arm"]]
            )
            return raw.headers["x-ratchet-arm"]

        wait_until(lambda: stack.gateway.get("/readyz")[1]["models"].get("both"), "the plan is followed")
        wait_until(lambda: canary in [m.id for m in stack.client.models.list()], "the canary is listed")
        first = {user: arm(user) for user in map(str, range(12))}
        assert set(first.values()) == {"canary", "production"}
        assert {user: arm(user) for user in first} == first
        stack.operator.set_engine(identity, desired="down")


def test_feedback_on_an_answer_is_taken_from_the_key_it_was_given_to(stack: Stack) -> None:
    raw = stack.client.chat.completions.with_raw_response.create(model="m", messages=HELLO)
    thumb = {"response_id": raw.headers["x-ratchet-response-id"], "kind": "thumb", "value": "up"}
    status, body, _ = stack.gateway.post("/v1/feedback", thumb, stack.key)
    assert (status, body["status"], body["response_id"]) == (202, "accepted", thumb["response_id"])
    other = stack.operator.key()
    answer = wait_until(
        lambda: (got := stack.gateway.post("/v1/feedback", thumb, other))[0] != 401 and got,
        "the key is known",
    )
    assert (answer[0], answer[1]["error"]["code"]) == (404, "response_not_found")
    assert stack.gateway.post("/v1/feedback", thumb, "rk-wrong")[0] == 401


def test_metrics_count_what_happened(stack: Stack) -> None:
    before = stack.gateway.metric("ratchet_requests_total", ratchet_status="ok")
    refused = stack.gateway.metric("ratchet_requests_total", ratchet_status="unauthenticated")
    tokens = stack.gateway.metric("gen_ai_client_inference_usage_output_tokens_total")
    firsts = stack.gateway.metric("gen_ai_server_time_to_first_token_seconds_count")
    list(stack.client.chat.completions.create(model="m", messages=HELLO, stream=True))
    stack.gateway.post("/v1/chat/completions", {}, "rk-wrong")
    assert stack.gateway.metric("ratchet_requests_total", ratchet_status="ok") == before + 1
    assert stack.gateway.metric("ratchet_requests_total", ratchet_status="unauthenticated") == refused + 1
    assert stack.gateway.metric("gen_ai_client_inference_usage_output_tokens_total") == tokens + 8
    assert stack.gateway.metric("gen_ai_server_time_to_first_token_seconds_count") == firsts + 1
    assert stack.gateway.metric("ratchet_engine_state", ratchet_engine_state="proved") >= 1
    assert stack.gateway.metric("ratchet_requests_in_flight") == 0


def test_every_request_left_one_row_and_none_is_under_way(stack: Stack) -> None:
    status = wait_until(
        lambda: (
            (recorder := stack.gateway.get("/readyz")[1]["recorder"])["depth"] == 0
            and recorder["open"] == 0
            and recorder
        ),
        "everything is stored",
    )
    assert status["written"] == status["flushed"] == len(stack.gateway.rows())
    assert (status["lost"], status["rejected"]) == (0, 0)
