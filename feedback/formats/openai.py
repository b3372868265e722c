"""OpenAI's fine-tuning formats.

A pair is `{"input": {"messages": [...], "tools": [], "parallel_tool_calls": true}, "preferred_output":
[message], "non_preferred_output": [message]}`, a demonstration `{"messages": [..., message]}`, in which
earlier assistant messages carry `"weight": 0` so that only the last is learned. Provenance goes under the
further key `ratchet`; leave it out for a service that takes no further keys.
"""

from typing import Annotated, Any

from pydantic import Field

from feedback.formats.documents import (
    PROVENANCE_KEY,
    ChatMessage,
    DemonstrationProvenance,
    Document,
    PairProvenance,
    answer_from,
    demonstration_row,
    pair_row,
    prompt_from,
    provenance_of,
)
from feedback.formats.lines import LineFormat, Malformed
from feedback.rows import DemonstrationRow, DropReason, Kind, PreferenceRow, Prompt, Row, messages_of


class _Input(Document):
    messages: list[ChatMessage]
    tools: list[Any] | None = None


class _PairLine(Document):
    input: _Input
    preferred_output: list[ChatMessage]
    non_preferred_output: list[ChatMessage]
    ratchet: PairProvenance | None = None


class _WeightedMessage(ChatMessage):
    weight: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, exclude=True)


class _ChatLine(Document):
    messages: list[_WeightedMessage]
    tools: list[Any] | None = None
    ratchet: DemonstrationProvenance | None = None


def _decode_pair(record: dict[str, Any], name: str) -> PreferenceRow | DropReason:
    line = _PairLine.model_validate(record)
    prompt = prompt_from(line.input.messages)
    chosen = answer_from("preferred_output", line.preferred_output)
    rejected = answer_from("non_preferred_output", line.non_preferred_output)
    if isinstance(prompt, DropReason) or line.input.tools:
        return DropReason.UNSUPPORTED
    if isinstance(chosen, DropReason):
        return chosen
    if isinstance(rejected, DropReason):
        return rejected
    return pair_row(prompt, chosen, rejected, line.ratchet, name)


def _decode_demonstration(record: dict[str, Any], name: str) -> DemonstrationRow | DropReason:
    line = _ChatLine.model_validate(record)
    prompt = prompt_from([*line.messages[:-1]])
    completion = answer_from("messages", [*line.messages[-1:]])
    if line.messages[-1].weight == 0:
        raise Malformed("messages: the last has weight 0, so there is nothing to learn")
    if isinstance(prompt, DropReason) or line.tools:
        return DropReason.UNSUPPORTED
    if isinstance(completion, DropReason):
        return completion
    return demonstration_row(prompt, completion, line.ratchet, name)


def _encode(row: Row, provenance: bool) -> dict[str, Any]:
    document = _pair(row) if isinstance(row, PreferenceRow) else _chat(row.prompt, row.completion)
    return {**document, PROVENANCE_KEY: provenance_of(row)} if provenance else document


def _pair(row: PreferenceRow) -> dict[str, Any]:
    return {
        "input": {"messages": messages_of(row.prompt), "tools": [], "parallel_tool_calls": True},
        "preferred_output": [{"role": "assistant", "content": row.chosen}],
        "non_preferred_output": [{"role": "assistant", "content": row.rejected}],
    }


def _chat(prompt: Prompt, completion: str) -> dict[str, Any]:
    earlier: list[dict[str, Any]] = [
        {**message, "weight": 0} if message["role"] == "assistant" else {**message}
        for message in messages_of(prompt)
    ]
    return {"messages": [*earlier, {"role": "assistant", "content": completion}]}


OPENAI = LineFormat(
    decode={Kind.PAIRS: _decode_pair, Kind.DEMONSTRATIONS: _decode_demonstration},
    encode={Kind.PAIRS: _encode, Kind.DEMONSTRATIONS: _encode},
)
