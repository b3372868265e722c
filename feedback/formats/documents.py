"""What the formats have in common: chat messages, provenance, and the checks on what is read."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from feedback.formats.lines import Malformed
from feedback.rows import (
    IMPORT_PREFIX,
    DemonstrationRow,
    DropReason,
    PreferenceRow,
    Prompt,
    Row,
    Source,
    Turn,
    hash_of_prompt,
    record_of,
    turns_of,
    utc_text,
)
from feedback.rule import unusable_texts
from ratchet.prompts import storable

PROVENANCE_KEY = "ratchet"
"""Key of the provenance in formats that have no columns for it."""


class Document(BaseModel):
    """Types are taken to the letter: a number where text is asked is wrong, a text "1" stays text."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class ChatMessage(Document):
    """A chat message; what is neither role nor content is kept, to see whether it can be done without."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None


def _moment(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


class Whence(Document):
    """What both kinds of row tell about themselves."""

    source: Annotated[str, Field(min_length=1)]
    votes: Annotated[int, Field(ge=0)]
    weight: Annotated[float, Field(gt=0)]
    created_at: Annotated[AwareDatetime | None, BeforeValidator(_moment)]
    prompt_hash: str


class PairProvenance(Whence):
    """Where a preference pair came from."""

    chosen_response_id: str | None
    rejected_response_id: str | None
    chosen_policy: Annotated[str, Field(min_length=1)]
    rejected_policy: Annotated[str, Field(min_length=1)]
    chosen_decode: str | None
    rejected_decode: str | None


class DemonstrationProvenance(Whence):
    """Where a demonstration came from."""

    response_id: str | None
    policy: Annotated[str, Field(min_length=1)]
    decode: str | None


def pair_row(
    prompt: Prompt, chosen: str, rejected: str, provenance: PairProvenance | None, name: str
) -> PreferenceRow | DropReason:
    """The row of what was read, or why it can be none.

    Args:
        prompt: As read.
        chosen: As read.
        rejected: As read.
        provenance: As the file tells it; without it the row is an import of this name.
        name: The import's name.

    Raises:
        Malformed: The provenance is that of another prompt, or its source is unknown.
    """
    policy = f"{IMPORT_PREFIX}{name}"
    told = provenance or PairProvenance(
        **_untold(prompt),
        chosen_response_id=None,
        rejected_response_id=None,
        chosen_policy=policy,
        rejected_policy=policy,
        chosen_decode=None,
        rejected_decode=None,
    )
    row = PreferenceRow(
        prompt=prompt, chosen=storable(chosen), rejected=storable(rejected), **_columns(told, prompt)
    )
    return unusable_texts((row.chosen, row.rejected)) or row


def demonstration_row(
    prompt: Prompt, completion: str, provenance: DemonstrationProvenance | None, name: str
) -> DemonstrationRow | DropReason:
    """As `pair_row`, for a demonstration.

    Raises:
        Malformed: The provenance is that of another prompt, or its source is unknown.
    """
    told = provenance or DemonstrationProvenance(
        **_untold(prompt), response_id=None, policy=f"{IMPORT_PREFIX}{name}", decode=None
    )
    row = DemonstrationRow(prompt=prompt, completion=storable(completion), **_columns(told, prompt))
    return unusable_texts((row.completion,)) or row


def _untold(prompt: Prompt) -> dict[str, Any]:
    return {
        "source": Source.IMPORT.value,
        "votes": 0,
        "weight": 1.0,
        "created_at": None,
        "prompt_hash": hash_of_prompt(prompt),
    }


def _columns(told: Whence, prompt: Prompt) -> dict[str, Any]:
    actual = hash_of_prompt(prompt)
    if told.prompt_hash != actual:
        raise Malformed(f"prompt_hash: it is {told.prompt_hash}, but the prompt's is {actual}")
    if told.source not in {source.value for source in Source}:
        raise Malformed(f"source: {told.source!r} is none of {', '.join(Source)}")
    columns = told.model_dump()
    if told.created_at is not None:
        columns["created_at"] = told.created_at.astimezone(UTC)
    return columns


def provenance_of(row: Row) -> dict[str, Any]:
    """The row's columns but for its texts, in JSON types."""
    texts = {"prompt", "chosen", "rejected", "completion"}
    columns = {name: value for name, value in record_of(row).items() if name not in texts}
    return columns | {"created_at": None if row.created_at is None else utc_text(row.created_at)}


def prompt_from(messages: list[ChatMessage]) -> Prompt | DropReason:
    """The messages as a prompt; `UNSUPPORTED` where they hold more than text.

    Raises:
        Malformed: There is no message.
    """
    if not messages:
        raise Malformed("prompt: it has no message")
    return turns_of([message.model_dump() for message in messages]) or DropReason.UNSUPPORTED


def answer_from(field: str, messages: list[ChatMessage]) -> str | DropReason:
    """The text of an answer given as messages; `UNSUPPORTED` where it is more than one message of text.

    Raises:
        Malformed: There is no message, or the last is not the assistant's.
    """
    if not messages or messages[-1].role != "assistant":
        raise Malformed(f"{field}: its last message must be the assistant's")
    turns = turns_of([message.model_dump() for message in messages])
    if turns is None or len(turns) > 1:
        return DropReason.UNSUPPORTED
    return "".join(turn.content for turn in turns)


def user_prompt(text: str) -> Prompt:
    """A prompt of one user message."""
    return (Turn("user", storable(text)),)
