"""A whole answer from an engine's stream: every field in its place, whatever the pieces were."""

from typing import Any

import orjson
import pytest

from gateway.choices import Choices
from gateway.errors import ApiError
from gateway.fields import Kind
from gateway.timing import Stopwatch
from gateway.whole import WholeAnswer


class Trail:
    """The part of a request's trail that a whole answer speaks to."""

    def __init__(self, kind: Kind) -> None:
        self.choices = Choices(kind)
        self.stopwatch = Stopwatch()
        self.engines: list[Any] = []

    def answered_by(self, engine: Any) -> None:
        self.engines.append(engine)


def whole(kind: Kind, *chunks: Any) -> tuple[WholeAnswer, Trail]:
    trail = Trail(kind)
    answer = WholeAnswer(kind, trail)  # type: ignore[arg-type]
    answer.begins("a")  # type: ignore[arg-type]
    answer.take([chunk if isinstance(chunk, bytes) else orjson.dumps(chunk) for chunk in chunks])
    return answer, trail


def said(index: int, reason: str | None = None, /, **delta: Any) -> dict[str, Any]:
    return {"id": "e", "created": 7, "choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
END = {"choices": [], "usage": USAGE, "system_fingerprint": "f"}


def test_two_choices_whose_pieces_alternate() -> None:
    answer, trail = whole(
        Kind.CHAT,
        said(0, role="assistant", content=""),
        said(1, role="assistant", content=""),
        said(1, content="no"),
        said(0, content="y"),
        said(0, "stop", content="es"),
        said(1, "length", content="pe"),
        END,
        b"[DONE]",
    )
    assert (answer.done, answer.fingerprint, trail.engines) == (True, "f", ["a"])
    assert answer.document() == {
        "id": "e",
        "created": 7,
        "object": "chat.completion",
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
            }
            for index, text, reason in ((0, "yes", "stop"), (1, "nope", "length"))
        ],
        "usage": USAGE,
        "system_fingerprint": "f",
    }
    assert trail.choices.outputs()[1] == {
        "index": 1, "text": "nope", "finish_reason": "length", "tool_calls": None
    }  # fmt: skip
    assert trail.choices.output_tokens == 4


def test_a_call_of_a_tool_stands_where_the_text_would() -> None:
    calls = [
        [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a":'}}],
        [{"index": 0, "function": {"arguments": " 1}"}}],
    ]
    answer, _ = whole(
        Kind.CHAT, *(said(0, tool_calls=call) for call in calls), said(0, "tool_calls"), b"[DONE]"
    )
    [choice] = answer.document()["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    assert choice["finish_reason"] == "tool_calls"


def test_log_probabilities_and_the_stop_that_was_hit() -> None:
    def piece(text: str, number: int, **more: Any) -> dict[str, Any]:
        logprobs = {"tokens": [text], "token_logprobs": [-number], "text_offset": [number]}
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": None, **more}
        return {"id": "e", "created": 7, "choices": [choice]}

    answer, _ = whole(
        Kind.COMPLETION, piece("a", 0), piece("b", 1, finish_reason="stop", stop_reason="!"), END, b"[DONE]"
    )
    document = answer.document()
    assert document["object"] == "text_completion"
    assert document["choices"] == [
        {
            "index": 0,
            "text": "ab",
            "logprobs": {"tokens": ["a", "b"], "token_logprobs": [0, -1], "text_offset": [0, 1]},
            "finish_reason": "stop",
            "stop_reason": "!",
        }
    ]


def test_of_an_engine_that_failed_nothing_is_left() -> None:
    answer, trail = whole(Kind.CHAT, said(0, content="half"))
    assert trail.choices.outputs()[0]["text"] == "half"
    answer.begins("b")  # type: ignore[arg-type]
    assert trail.choices.outputs() == []
    answer.take([orjson.dumps(said(0, "stop", content="whole")), b"[DONE]"])
    assert answer.document()["choices"][0]["message"]["content"] == "whole"
    assert answer.fingerprint is None
    assert trail.engines == ["a", "b"]


@pytest.mark.parametrize("event", [b"{", b"[]", b'{"error": {"message": "dead"}}', b'{"choices": [7]}'])
def test_what_is_no_chunk_is_the_engines_fault(event: bytes) -> None:
    with pytest.raises(ApiError) as failure:
        whole(Kind.CHAT, event)
    assert (failure.value.status, failure.value.code) == (502, "engine_failed")


def test_an_answer_without_choices_is_none() -> None:
    answer, _ = whole(Kind.CHAT, b"[DONE]")
    with pytest.raises(ApiError, match="no choices"):
        answer.document()
