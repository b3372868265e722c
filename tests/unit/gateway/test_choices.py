"""What is put together from an engine's chunks and bodies."""

from typing import Any

import pytest

from gateway.choices import Choices, Piece
from gateway.fields import Kind
from gateway.timing import Stopwatch, quantile


def delta(index: int = 0, *, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "finish_reason": reason}


def test_pieces_of_several_choices_are_kept_apart() -> None:
    choices = Choices(Kind.CHAT)
    assert choices.take_piece(delta(role="assistant", content="")) == Piece(0, "", False, False)
    assert choices.take_piece(delta(1, content="b")) == Piece(1, "b", True, False)
    assert choices.take_piece(delta(0, content="a", reason="stop")) == Piece(0, "a", True, True)
    choices.count({"prompt_tokens": 5, "completion_tokens": 2}, 0)
    choices.count({"prompt_tokens": 5, "completion_tokens": 3}, 1)
    assert (choices.prompt_tokens, choices.output_tokens, choices.finish_reason) == (5, 5, "stop")
    choices.count({"prompt_tokens": 5, "completion_tokens": 6})
    assert choices.output_tokens == 6
    assert choices.outputs() == [
        {"index": 0, "text": "", "finish_reason": "stop", "tool_calls": None},
        {"index": 1, "text": "", "finish_reason": None, "tool_calls": None},
    ]


def test_a_call_is_put_together_from_its_parts() -> None:
    choices = Choices(Kind.CHAT)
    begun = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert choices.take_piece(delta(tool_calls=[begun])).has_content
    choices.take_piece(delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]))
    choices.take_piece(
        delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}], reason="tool_calls")
    )
    assert choices.outputs()[0]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]


@pytest.mark.parametrize(
    "choice", [None, "x", {}, {"index": "0"}, {"index": 0}, {"index": 0, "delta": {"content": 7}}]
)
def test_what_is_no_choice_is_refused(choice: Any) -> None:
    with pytest.raises(ValueError, match="choice"):
        Choices(Kind.CHAT).take_piece(choice)


def test_quantiles_by_hand() -> None:
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.99) == 4.0
    assert quantile([7.0], 0.5) == 7.0
    assert quantile([float(value) for value in range(1, 101)], 0.99) == 99.0


def test_gaps_are_taken_within_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choice 0 at 1, 3 and 4 s, choice 1 at 2 and 4.5 s: gaps of 2, 1 and 2.5 s."""
    moments = iter([0.0, 1.0, 2.0, 3.0, 4.0, 4.5])
    monkeypatch.setattr("gateway.timing.time.perf_counter", lambda: next(moments))
    watch = Stopwatch()
    for index in (0, 1, 0, 0, 1):
        watch.piece(index)
    assert watch.ttft_ms == 1000
    assert (watch.gap_ms(0.5), watch.gap_ms(0.99)) == (2000, 2500)


def test_without_pieces_there_are_no_times() -> None:
    watch = Stopwatch()
    assert (watch.ttft_ms, watch.gap_ms(0.5)) == (None, None)
    assert watch.duration_ms >= 0
