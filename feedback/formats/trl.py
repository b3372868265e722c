"""TRL's conversational formats, with the prompt given apart.

A pair is `{"prompt": [messages], "chosen": [message], "rejected": [message]}`, a demonstration
`{"prompt": [messages], "completion": [message]}`; the row's other columns stand beside them under their own
names, where TRL passes over them. The prompt is always explicit: of a file without one TRL takes the common
beginning of both answers for the prompt, and "The sky is blue." and "The sky is black." share more than that.

Read are also TRL's plain-text form (the prompt becomes one user message), conversations without a prompt
(all but the last message must be the same on both sides) and, for demonstrations, `{"messages": [...]}`.
"""

from typing import Any

from feedback.formats.documents import (
    ChatMessage,
    DemonstrationProvenance,
    Document,
    PairProvenance,
    answer_from,
    demonstration_row,
    pair_row,
    prompt_from,
    provenance_of,
    user_prompt,
)
from feedback.formats.lines import LineFormat, Malformed
from feedback.rows import DemonstrationRow, DropReason, Kind, PreferenceRow, Prompt, Row, messages_of

Side = str | list[ChatMessage]


class _Line(Document):
    prompt: Side | None = None
    prompt_hash: str | None = None
    tools: Any = None
    image: Any = None
    images: Any = None

    def holds_more(self) -> bool:
        """Whether the model is to be given more than text."""
        return bool(self.tools or self.image or self.images)


class _PairLine(_Line):
    chosen: Side
    rejected: Side


class _DemonstrationLine(_Line):
    completion: Side | None = None
    messages: list[ChatMessage] | None = None


def pair_from(record: dict[str, Any], name: str) -> PreferenceRow | DropReason:
    """The pair of a record in any of the forms above; with a `prompt_hash` all its columns are read.

    Raises:
        ValidationError: A field has another type than the format says.
        Malformed: A part is missing or does not fit the others.
    """
    line = _PairLine.model_validate(record)
    prompt, chosen, rejected = _parts(line)
    if line.holds_more():
        return DropReason.UNSUPPORTED
    if isinstance(prompt, DropReason):
        return prompt
    if isinstance(chosen, DropReason):
        return chosen
    if isinstance(rejected, DropReason):
        return rejected
    provenance = None if line.prompt_hash is None else PairProvenance.model_validate(record)
    return pair_row(prompt, chosen, rejected, provenance, name)


Part = str | DropReason


def _parts(line: _PairLine) -> tuple[Prompt | DropReason, Part, Part]:
    if line.prompt is not None:
        return _prompt(line.prompt), _answer("chosen", line.chosen), _answer("rejected", line.rejected)
    if isinstance(line.chosen, str) or isinstance(line.rejected, str):
        raise Malformed("prompt: it is missing, and where it ends in plain text can only be guessed")
    chosen, rejected = answer_from("chosen", line.chosen[-1:]), answer_from("rejected", line.rejected[-1:])
    prompt = prompt_from(line.chosen[:-1])
    same = line.chosen[:-1] == line.rejected[:-1]
    return (prompt if same else DropReason.DIFFERENT_PROMPTS), chosen, rejected


def _prompt(side: Side) -> Prompt | DropReason:
    return user_prompt(side) if isinstance(side, str) else prompt_from(side)


def _answer(field: str, side: Side) -> Part:
    return side if isinstance(side, str) else answer_from(field, side)


def demonstration_from(record: dict[str, Any], name: str) -> DemonstrationRow | DropReason:
    """As `pair_from`, for a demonstration.

    Raises:
        ValidationError: A field has another type than the format says.
        Malformed: A part is missing or does not fit the others.
    """
    line = _DemonstrationLine.model_validate(record)
    if line.prompt is not None and line.completion is not None:
        prompt, completion = _prompt(line.prompt), _answer("completion", line.completion)
    elif line.messages is not None:
        prompt, completion = prompt_from(line.messages[:-1]), answer_from("messages", line.messages[-1:])
    else:
        raise Malformed("neither prompt and completion nor messages are there")
    if line.holds_more():
        return DropReason.UNSUPPORTED
    if isinstance(prompt, DropReason):
        return prompt
    if isinstance(completion, DropReason):
        return completion
    provenance = None if line.prompt_hash is None else DemonstrationProvenance.model_validate(record)
    return demonstration_row(prompt, completion, provenance, name)


def _encode(row: Row, provenance: bool) -> dict[str, Any]:
    texts = (
        {"chosen": row.chosen, "rejected": row.rejected}
        if isinstance(row, PreferenceRow)
        else {"completion": row.completion}
    )
    sides = {field: [{"role": "assistant", "content": text}] for field, text in texts.items()}
    document = {"prompt": messages_of(row.prompt), **sides}
    return {**document, **provenance_of(row)} if provenance else document


TRL = LineFormat(
    decode={Kind.PAIRS: pair_from, Kind.DEMONSTRATIONS: demonstration_from},
    encode={Kind.PAIRS: _encode, Kind.DEMONSTRATIONS: _encode},
)
