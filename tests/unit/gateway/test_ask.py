"""What a request may say: nothing that changes how we sample or where we connect."""

import ast
import contextlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ask import read_ask, read_document
from gateway.errors import ApiError
from gateway.fields import IGNORED, Kind

PATHS = {Kind.CHAT: "chat_completion", Kind.COMPLETION: "completion"}
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "m", "messages": HELLO}
COMPLETION = {"model": "m", "prompt": "Hello"}

FOREIGN = [
    "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "audio", "bad_words", "best_of",
    "cache_salt", "chat_template", "chat_template_kwargs", "continue_final_message", "documents",
    "ec_transfer_params", "function_call", "functions", "guided_choice", "guided_grammar", "guided_json",
    "guided_regex", "ignore_eos", "include_reasoning", "include_stop_str_in_output", "kv_transfer_params",
    "length_penalty", "logits_processors", "logprob_token_ids", "lora_request", "media_io_kwargs",
    "min_tokens", "mm_processor_kwargs", "priority", "prompt_embeds", "prompt_logprobs",
    "repetition_detection", "request_id", "return_token_ids", "return_tokens_as_token_ids", "session_id",
    "skip_special_tokens",
    "spaces_between_special_tokens", "stop_token_ids", "stream_interval", "structured_outputs", "suffix",
    "thinking_token_budget", "truncate_prompt_tokens", "use_beam_search", "vllm_xargs", "watermarking",
    "web_search_options",
]  # fmt: skip
"""Every field of vLLM 0.32's two requests that a client may not set, and some of OpenAI's."""


def refusal(kind: Kind, document: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        read_ask(kind, document)
    assert refused.value.status == 400
    return refused.value


@pytest.mark.parametrize("field", FOREIGN)
@pytest.mark.parametrize(("kind", "document"), [(Kind.CHAT, CHAT), (Kind.COMPLETION, COMPLETION)])
def test_a_field_that_would_change_the_sampling_is_refused_by_name(
    kind: Kind, document: dict[str, Any], field: str
) -> None:
    error = refusal(kind, {**document, field: True})
    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert field in str(error)


def fields_of_vllm(module: str, request: str) -> set[str]:
    """Fields of a request of the vLLM that is installed; its source is read, not imported."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    source = Path(found.origin).parent / "entrypoints/openai" / module / "protocol.py"
    classes = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)]
    body = next(node.body for node in classes if node.name == request)
    targets = [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name) and target.id[0] != "_"}


@pytest.mark.parametrize(
    ("kind", "document", "request_class", "own"),
    [
        (Kind.CHAT, CHAT, "ChatCompletionRequest",
         {"max_completion_tokens", "tools", "tool_choice", "parallel_tool_calls", "response_format",
          "top_logprobs", "reasoning_effort"}),
        (Kind.COMPLETION, COMPLETION, "CompletionRequest", {"echo"}),
    ],
)  # fmt: skip
def test_whatever_vllm_knows_and_we_do_not_is_refused(
    kind: Kind, document: dict[str, Any], request_class: str, own: set[str]
) -> None:
    known = fields_of_vllm(PATHS[kind], request_class)
    read = {"model", "stream", "stream_options", "user", *document}
    passed: set[str] = set()
    for name in known - read:
        try:
            read_ask(kind, {**document, name: object()})
            passed.add(name)
        except ApiError as error:
            if error.code != "unsupported_parameter":
                passed.add(name)
    assert passed == own | {
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "logit_bias", "max_tokens", "stop", "seed", "n", "logprobs",
    }  # fmt: skip


def test_fields_of_openais_service_are_ignored_and_named() -> None:
    document = {**CHAT, **dict.fromkeys(IGNORED, "x"), "metadata": {"team": "red"}}
    ask = read_ask(Kind.CHAT, document)
    assert ask.fields.ignored == tuple(sorted(IGNORED))
    assert ask.fields.values == {"metadata": {"team": "red"}}


def test_null_counts_as_absent() -> None:
    ask = read_ask(
        Kind.CHAT, {**CHAT, "temperature": None, "tools": None, "ignore_eos": None, "stream": None}
    )
    assert ask.fields.values == {}
    assert ask.stream is False


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "warm"), ("temperature", 2.5), ("temperature", True), ("top_p", -0.1), ("top_k", 1.5),
        ("max_tokens", 0), ("max_completion_tokens", "12"), ("stop", [""]), ("stop", ["a"] * 5), ("stop", 3),
        ("seed", 2**63), ("n", 0), ("n", 17), ("logit_bias", {"a": 1}), ("logit_bias", {"1": 101}),
        ("logit_bias", []), ("tools", []), ("tools", "f"), ("tool_choice", "maybe"),
        ("parallel_tool_calls", 1),
        ("response_format", {"type": "structural_tag"}), ("response_format", {"type": "json_schema"}),
        ("response_format", "json"), ("logprobs", 2), ("top_logprobs", 21), ("user", 7), ("user", "u" * 513),
        ("stream", "yes"), ("stream_options", {"include_usage": True}), ("metadata", "m"),
        ("modalities", ["audio"]), ("model", ""), ("model", None), ("messages", []), ("messages", "Hello"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_the_field(field: str, value: Any) -> None:
    assert refusal(Kind.CHAT, {**CHAT, field: value}).param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompt", ["a", "b"]), ("prompt", [1, 2]), ("prompt", ""), ("prompt", None), ("echo", True),
     ("suffix", "x"), ("logprobs", True)],
)  # fmt: skip
def test_completions_take_one_text_and_give_it_back_to_nobody(field: str, value: Any) -> None:
    assert refusal(Kind.COMPLETION, {**COMPLETION, field: value}).param == field


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Hello", "messages[0]"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
         "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "x", "prefix": True}, "messages[0].prefix"),
    ],
)  # fmt: skip
def test_messages_are_text_in_known_roles(message: Any, param: str) -> None:
    assert refusal(Kind.CHAT, {"model": "m", "messages": [message]}).param == param


def test_an_assistants_own_message_can_be_sent_back_as_it_came() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    came = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
            "function_call": None, "tool_calls": [call]}  # fmt: skip
    ask = read_ask(Kind.CHAT, {"model": "m", "messages": [*HELLO, came]})
    assert ask.messages[1] == {"role": "assistant", "content": None, "tool_calls": [call]}


def test_a_prompt_is_a_conversation_of_one_message() -> None:
    ask = read_ask(Kind.COMPLETION, {"model": "m", "prompt": ["Hello"]})
    assert ask.messages == HELLO
    assert ask.prompt == {"prompt": "Hello"}


def test_lone_surrogates_are_kept_for_the_record_and_replaced_for_the_engine() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a\ud800\x00b"}]}).encode()
    ask = read_ask(Kind.CHAT, read_document(body))
    assert ask.messages[0]["content"] == "a\ud800\x00b"
    assert ask.prompt == {"messages": [{"role": "user", "content": "a\ufffd\x00b"}]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff",
        b'{"a": NaN, "b": "\\ud800"}',
        b'{"a":"\\ud800","b":' + b"[" * 100_000,
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        read_document(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KNOWN = st.sampled_from(
    ["model", "messages", "prompt", "stream", "stream_options", "user", "tools", "tool_choice", "stop",
     "logit_bias", "response_format", "metadata", "n", "seed", "max_tokens", "top_k", "logprobs"]
)  # fmt: skip


@given(st.sampled_from(Kind), st.dictionaries(KNOWN | st.text(max_size=5), VALUES, max_size=5))
def test_no_document_breaks_the_reader(kind: Kind, changes: dict[str, Any]) -> None:
    base = CHAT if kind is Kind.CHAT else COMPLETION
    with contextlib.suppress(ApiError):
        read_ask(kind, {**base, **changes})
