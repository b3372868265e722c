"""From opening, deltas and closing to the row, by hand; and whatever a client sends, it can be stored."""

import hashlib
import json
import math
import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.jsonable import MAX_DEPTH, TOO_DEEP, dumps, loads, storable_dumps
from gateway.records import Closing, Opening
from gateway.rows import COLUMNS, Row, encode, row_of
from tests.support.recording import closing, opening

ID = UUID("01989d1c-2f00-7000-8000-000000000001")
AT = datetime.fromtimestamp(0x01989D1C2F00 / 1000, tz=UTC)

texts = st.text(st.characters(exclude_categories=()), max_size=20)
joined_texts = texts.map(
    lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
)
"""In JSON two surrogates in a row are one character."""
exact_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | joined_texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(joined_texts, inner, max_size=4),
    max_leaves=8,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def row(asked: Opening, texts: dict[int, str], ending: Closing | None) -> Row:
    """The row after both have been through the spool's JSON."""
    return row_of(loads(encode(asked)), texts, None if ending is None else loads(encode(ending)))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def nested(depth: int) -> Any:
    value: Any = "core"
    for _ in range(depth):
        value = [value]
    return value


def test_the_row_of_a_stream_by_hand() -> None:
    engine = UUID(int=9)
    ending = closing(engine_id=engine, labels={"refusal": False}, verdicts={"in": "pass"})
    assert row(opening(ID), {0: "Blue."}, ending) == {
        "id": str(ID),
        "created_at": AT,
        "kind": "chat",
        "status": "ok",
        "http_status": 200,
        "error": None,
        "error_code": None,
        "model": "smollm2",
        "policy": "smollm2@0123456789ab",
        "pinned": False,
        "decode": "d" * 64,
        "decode_overridden": '["temperature"]',
        "arm": "production",
        "stage": "production",
        "plan_version": 7,
        "engine_id": str(engine),
        "fingerprint": "0123456789ab",
        "stamp": "verified",
        "key_id": str(UUID(int=5)),
        "user_id": "ann",
        "session_id": "s1",
        "conversation_id": "c" * 32,
        "history_hash": "h" * 64,
        "prompt_hash": "p" * 64,
        "messages": '[{"role":"user","content":"Why is the sky blue?"}]',
        "parameters_asked": '{"temperature":1.5}',
        "parameters_used": '{"temperature":0.7,"max_tokens":64}',
        "output": "Blue.",
        "outputs": '[{"index":0,"finish_reason":null,"tool_calls":null,"text":"Blue."}]',
        "output_sha256": sha256("Blue."),
        "finish_reason": "stop",
        "prompt_tokens": 6,
        "output_tokens": 3,
        "stream": True,
        "ttft_ms": 12.5,
        "itl_p50_ms": 7.0,
        "itl_p99_ms": 9.0,
        "queue_ms": 0.25,
        "duration_ms": 40.0,
        "trace_id": "t" * 32,
        "gateway": "gateway-1",
        "pair_of": None,
        "probe": None,
        "labels": '{"refusal":false}',
        "verdicts": '{"in":"pass"}',
        "sanitized": False,
    }


def test_every_column_has_a_value() -> None:
    assert set(row(opening(ID), {}, None)) == set(COLUMNS)


def test_deltas_are_merged_with_what_the_closing_says_of_each_choice() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    told = [
        {"index": 1, "text": "not what was delivered", "finish_reason": "length"},
        {"index": 0, "text": None, "finish_reason": "tool_calls", "tool_calls": calls},
    ]
    stored = row(opening(ID), {1: "second", 2: "third"}, closing(outputs=told, finish_reason=None))
    assert json.loads(stored["outputs"]) == [
        {"index": 0, "text": None, "finish_reason": "tool_calls", "tool_calls": calls},
        {"index": 1, "text": "second", "finish_reason": "length", "tool_calls": None},
        {"index": 2, "text": "third", "finish_reason": None, "tool_calls": None},
    ]
    assert (stored["output"], stored["output_sha256"], stored["finish_reason"]) == (None, None, "tool_calls")


def test_the_output_of_an_answer_without_deltas_is_its_first_choices_text() -> None:
    told = [{"index": 0, "text": "", "finish_reason": "stop", "tool_calls": None}]
    stored = row(opening(ID, stream=False), {}, closing(outputs=told))
    assert (stored["output"], stored["output_sha256"]) == ("", sha256(""))


def test_without_a_choice_there_is_no_output() -> None:
    stored = row(opening(ID), {}, closing(status="rejected", http_status=400, finish_reason=None))
    assert (stored["output"], stored["outputs"], stored["output_sha256"]) == (None, "[]", None)


def test_a_request_without_a_closing_is_lost_with_its_text_so_far() -> None:
    stored = row(opening(ID), {0: "Because "}, None)
    told = {name: stored[name] for name in ("status", "http_status", "stamp", "error_code", "output")}
    assert told == {
        "status": "lost",
        "http_status": 0,
        "stamp": "unverified",
        "error_code": "gateway_lost",
        "output": "Because ",
    }
    assert (stored["finish_reason"], stored["duration_ms"], stored["sanitized"]) == (None, None, False)


def test_nul_and_lone_surrogates_are_replaced_everywhere_and_the_digest_is_of_the_exact_text() -> None:
    asked = opening(
        ID,
        user_id="a\x00b",
        session_id="\ud800",
        messages=[{"role": "user", "content": "x\x00y", "na\udfffme": "\\u0000 as written"}],
        parameters_asked={"stop": ["\x00"]},
    )
    stored = row(asked, {0: "one\x00two\ud83d"}, closing(error="\x00"))
    assert (stored["user_id"], stored["session_id"], stored["error"]) == ("a\ufffdb", "\ufffd", "\ufffd")
    assert json.loads(stored["messages"]) == [
        {"role": "user", "content": "x\ufffdy", "na\ufffdme": "\\u0000 as written"}
    ]
    assert json.loads(stored["parameters_asked"]) == {"stop": ["\ufffd"]}
    assert json.loads(stored["outputs"])[0]["text"] == stored["output"] == "one\ufffdtwo\ufffd"
    assert stored["output_sha256"] == sha256("one\x00two\ud83d")
    assert stored["sanitized"] is True


def test_a_backslash_before_u0000_is_no_nul() -> None:
    assert storable_dumps({"a": "\\u0000"}) == ('{"a":"\\\\u0000"}', False)
    assert storable_dumps("\\\x00") == ('"\\\\\ufffd"', True)


def test_deep_json_is_kept_to_a_depth() -> None:
    whole = row(opening(ID, parameters_asked={"x": nested(100)}), {}, closing())
    assert (json.loads(whole["parameters_asked"]), whole["sanitized"]) == ({"x": nested(100)}, False)
    cut = row(opening(ID, parameters_asked={"x": nested(5000)}), {}, closing())
    assert cut["sanitized"] is True
    found = json.loads(cut["parameters_asked"])["x"]
    depth = 0
    while isinstance(found, list):
        (found,) = found
        depth += 1
    assert (found, depth) == (TOO_DEEP, MAX_DEPTH - 2)


def test_numbers_that_json_does_not_have_are_null_and_large_integers_are_read_as_floats() -> None:
    asked = opening(ID, parameters_asked={"a": math.inf, "b": 1 << 80, "c": 1 << 5000}, queue_ms=math.nan)
    stored = row(asked, {}, closing(ttft_ms=-math.inf))
    assert json.loads(stored["parameters_asked"]) == {"a": None, "b": float(1 << 80), "c": None}
    assert (stored["queue_ms"], stored["ttft_ms"], stored["sanitized"]) == (None, None, True)


def test_a_users_name_too_long_for_an_index_keeps_its_beginning_and_a_digest() -> None:
    name = "é" * 600
    stored = row(opening(ID, user_id=name), {}, closing())["user_id"]
    assert stored == "é" * 499 + "…" + sha256(name)[:12]
    assert len(stored) == 512
    assert row(opening(ID, user_id="é" * 512), {}, closing())["user_id"] == "é" * 512


def test_an_id_without_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="only version 7"):
        row(opening(UUID(int=1)), {}, closing())


@given(values, texts, texts, texts)
def test_whatever_comes_the_row_is_storable_and_its_digest_exact(
    value: Any, user: str, output: str, reason: str
) -> None:
    asked = opening(ID, messages=[value], parameters_asked={"x": value}, user_id=user)
    stored = row(asked, {0: output}, closing(error=reason, labels={"x": value}))
    for name in COLUMNS:
        if isinstance(stored[name], str):
            stored[name].encode()
            assert "\x00" not in stored[name]
    for name in ("messages", "parameters_asked", "outputs", "labels"):
        json.loads(stored[name], parse_constant=pytest.fail)
        assert re.search(r"(?<!\\)(\\\\)*\\u(0000|d[89a-f])", stored[name]) is None
    assert stored["output_sha256"] == sha256(output)
    clean = not re.search("[\x00\ud800-\udfff]", user + output + reason)
    assert stored["output"] == re.sub("[\x00\ud800-\udfff]", "\ufffd", output)
    assert stored["sanitized"] or clean


@given(exact_values)
def test_the_spools_json_keeps_every_text_exactly(value: Any) -> None:
    encoded, cut = dumps(value)
    assert (loads(encoded), cut) == (value, False)
