"""A real model on a real engine, asked through the stock openai client: bodies, headers and rows agree."""

import hashlib
import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
import openai
import psycopg
import pytest
from openai import OpenAI

from ratchet.db.engine import libpq_url
from ratchet.db.roles import Role
from ratchet.demo.serving import wait_for_rows
from ratchet.demo.stack import RunningStack
from ratchet.home import Home
from ratchet.ids import time_of
from ratchet.secrets_store import role_url, shared_key

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

QUESTION = "Name three things found in a harbour."


@pytest.fixture(scope="module")
def client(smollm2_stack: RunningStack) -> Iterator[OpenAI]:
    key = smollm2_stack.ratchet("keys", "create", "--role", "client", "--name", "e2e")["key"]
    with OpenAI(base_url=f"{smollm2_stack.base_url}/v1", api_key=key, max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def policy(smollm2_stack: RunningStack) -> dict[str, Any]:
    [only] = smollm2_stack.ratchet("policy", "list")
    return only


def row_of(stack: RunningStack, response_id: str) -> dict[str, Any]:
    assert wait_for_rows(stack, {response_id}), f"{response_id} was not stored"
    return stack.ratchet("responses", "show", response_id)


def test_an_answer_is_stamped_and_stored_as_it_was_delivered(
    smollm2_stack: RunningStack, client: OpenAI, policy: dict[str, Any]
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="smollm2", messages=[{"role": "user", "content": QUESTION}], max_tokens=24, user="ada"
    )
    body = raw.parse()
    headers = raw.headers
    row = row_of(smollm2_stack, headers["x-ratchet-response-id"])

    assert body.id == f"chatcmpl-{headers['x-ratchet-response-id']}"
    assert body.model == headers["x-ratchet-policy"] == row["policy"] == policy["ref"]
    assert headers["x-ratchet-decode"].startswith(row["decode"][:12])
    assert (headers["x-ratchet-arm"], row["arm"], row["stage"]) == ("production",) * 3
    assert row["output"] == body.choices[0].message.content != ""
    assert row["output_sha256"] == hashlib.sha256(row["output"].encode()).hexdigest()
    assert row["finish_reason"] == body.choices[0].finish_reason
    assert body.usage is not None
    assert (row["prompt_tokens"], row["output_tokens"]) == (
        body.usage.prompt_tokens,
        body.usage.completion_tokens,
    )
    assert row["stamp"] == "verified"
    assert row["fingerprint"] == body.system_fingerprint
    assert row["user_id"] == "ada"
    assert row["status"] == "ok"
    assert row["messages"] == [{"role": "user", "content": QUESTION}]
    assert 0 < row["ttft_ms"] <= row["duration_ms"]


def test_a_whole_answer_is_the_one_its_engine_gives_at_once(
    smollm2_stack: RunningStack, client: OpenAI, policy: dict[str, Any]
) -> None:
    home = Home.resolve(smollm2_stack.data_dir)
    with psycopg.connect(libpq_url(role_url(home, Role.OPERATOR))) as connection:
        found = connection.execute("SELECT url FROM registry.engine WHERE state = 'up'").fetchone()
    assert found is not None
    asked: list[tuple[str, dict[str, Any]]] = [
        ("chat/completions", {"messages": [{"role": "user", "content": QUESTION}], "logprobs": True,
                              "top_logprobs": 2, "n": 2}),
        ("completions", {"prompt": "Once upon a time", "logprobs": 2, "stop": [" a"]}),
    ]  # fmt: skip
    with OpenAI(base_url=f"{found[0]}/v1", api_key=shared_key(home, "engine"), max_retries=0) as engine:
        for path, body in asked:
            body |= {"max_tokens": 12, "seed": 7}
            ours = client.post(f"/{path}", cast_to=httpx.Response, body={"model": "smollm2", **body})
            row = row_of(smollm2_stack, ours.headers["x-ratchet-response-id"])
            theirs = engine.post(
                f"/{path}",
                cast_to=httpx.Response,
                body={**body, **row["parameters_used"], "model": policy["ref"]},
            )
            assert _said(ours) == _said(theirs)


def _said(answer: httpx.Response) -> dict[str, Any]:
    """What an answer says, without its name and moment, fields that hold nothing, and the last digits."""
    document = _full(json.loads(answer.text, parse_float=lambda digits: round(float(digits), 3)))
    return {name: document[name] for name in ("object", "choices", "usage", "system_fingerprint")}


def _full(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _full(item) for name, item in value.items() if item is not None and item != []}
    return [_full(item) for item in value] if isinstance(value, list) else value


def test_a_stream_is_stored_as_its_chunks_added_up(smollm2_stack: RunningStack, client: OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="smollm2",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=24,
        stream=True,
        extra_headers={"x-ratchet-session": "session-1"},
    ) as raw:
        chunks = list(raw.parse())
        response_id = raw.headers["x-ratchet-response-id"]
    row = row_of(smollm2_stack, response_id)

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{response_id}"}
    assert row["output"] == text != ""
    assert row["session_id"] == "session-1"
    assert row["stream"] is True
    assert row["finish_reason"] == chunks[-1].choices[0].finish_reason
    assert row["output_tokens"] <= 24
    assert row["itl_p50_ms"] <= row["itl_p99_ms"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_is_sent_when_the_client_asks(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= 5


def test_plain_completions_work_too(smollm2_stack: RunningStack, client: OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model="smollm2", prompt="Once upon a time", max_tokens=8
    )
    row = row_of(smollm2_stack, raw.headers["x-ratchet-response-id"])
    assert row["kind"] == "completion"
    assert row["output"] == raw.parse().choices[0].text


def test_the_pinned_decode_config_is_what_the_engine_gets(
    smollm2_stack: RunningStack, client: OpenAI, policy: dict[str, Any]
) -> None:
    pinned = smollm2_stack.ratchet("policy", "show", policy["ref"])["decode"]
    raw = client.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0.01,
        presence_penalty=1.5,
        max_tokens=4,
    )
    row = row_of(smollm2_stack, raw.headers["x-ratchet-response-id"])
    assert row["parameters_asked"]["temperature"] == 0.01
    assert row["parameters_used"]["temperature"] == pinned["temperature"]
    assert row["parameters_used"]["presence_penalty"] == pinned["presence_penalty"]
    assert sorted(row["decode_overridden"]) == ["presence_penalty", "temperature"]
    assert raw.headers["x-ratchet-decode"].endswith("overridden=presence_penalty,temperature")


def test_a_pinned_version_is_served_by_name_and_version(client: OpenAI, policy: dict[str, Any]) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=policy["ref"], messages=[{"role": "user", "content": "Hi"}], max_tokens=2
    )
    assert raw.headers["x-ratchet-policy"] == policy["ref"]
    assert policy["ref"] in {model.id for model in client.models.list()}


def test_turns_of_one_conversation_share_its_id(smollm2_stack: RunningStack, client: OpenAI) -> None:
    first = [{"role": "user", "content": "My cat is called Minka."}]
    later = [
        *first,
        {"role": "assistant", "content": "Lovely."},
        {"role": "user", "content": "Who is Minka?"},
    ]
    ids = []
    for messages in (first, later):
        raw = client.chat.completions.with_raw_response.create(
            model="smollm2",
            messages=messages,
            max_tokens=2,
            user="bo",  # type: ignore[arg-type]
        )
        ids.append(raw.headers["x-ratchet-response-id"])
    rows = [row_of(smollm2_stack, response_id) for response_id in ids]
    assert rows[0]["conversation_id"] == rows[1]["conversation_id"] is not None
    assert rows[0]["history_hash"] != rows[1]["history_hash"]
    assert rows[0]["prompt_hash"] == rows[1]["prompt_hash"]


def test_bad_requests_get_the_clients_own_error_classes(smollm2_stack: RunningStack, client: OpenAI) -> None:
    hello: Any = [{"role": "user", "content": "Hello"}]
    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=client.base_url, api_key="rk-wrong", max_retries=0).models.list()
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=hello)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="smollm2", messages=hello, extra_body={"ignore_eos": True})
    assert refused.value.param == "ignore_eos"
    rejected = refused.value.response.headers["x-ratchet-response-id"]
    assert row_of(smollm2_stack, rejected)["status"] == "rejected"


def test_nul_bytes_and_lone_surrogates_are_served_and_stored(
    smollm2_stack: RunningStack, client: OpenAI
) -> None:
    body = json.dumps(
        {"model": "smollm2", "messages": [{"role": "user", "content": "a\x00b\ud800c"}], "max_tokens": 2}
    )
    request = urllib.request.Request(  # noqa: S310
        f"{smollm2_stack.base_url}/v1/chat/completions",
        data=body.encode(),
        headers={"Authorization": f"Bearer {client.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        response_id = answer.headers["x-ratchet-response-id"]
    row = row_of(smollm2_stack, response_id)
    assert row["messages"][0]["content"] == "a\ufffdb\ufffdc"
    assert row["sanitized"] is True


def test_ids_carry_their_time_and_lineage_leads_to_the_policy(
    smollm2_stack: RunningStack, client: OpenAI, policy: dict[str, Any]
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="smollm2", messages=[{"role": "user", "content": "Hi"}], max_tokens=2
    )
    response_id = raw.headers["x-ratchet-response-id"]
    row = row_of(smollm2_stack, response_id)
    assert row["created_at"][:19].replace("T", " ") == str(time_of(UUID(response_id)))[:19]
    lineage = smollm2_stack.ratchet("lineage", response_id)
    assert policy["ref"] in json.dumps(lineage)
    assert policy["weights_digest"] in json.dumps(lineage)
