"""A row of a data set: a preference pair or a demonstration, with where it came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from ratchet.canonical import canonical_json
from ratchet.prompts import Message, message_text, prompt_hash, storable

HUMAN_EDIT = "human:edit"
"""Stands in place of a policy where a person wrote the text."""

IMPORT_PREFIX = "import:"
"""Starts the name that stands in place of a policy where the text came from a file."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class Kind(StrEnum):
    """What a data set holds."""

    PAIRS = "pairs"
    DEMONSTRATIONS = "demonstrations"


class Source(StrEnum):
    """What a row's preference or text rests on."""

    COMPARISON = "comparison"
    """Votes of raters who saw both answers, blind."""
    EDIT = "edit"
    """A person corrected the answer: the corrected text over the original."""
    THUMB = "thumb"
    """Thumb up on one answer, thumb down on the other."""
    RATING = "rating"
    """Both answers rated, one higher."""
    COPY = "copy"
    """One answer copied, the other not."""
    ESCALATE = "escalate"
    """One answer led to an escalation, the other did not."""
    REGENERATE = "regenerate"
    """The user asked for another answer and kept it."""
    RETRY = "retry"
    """The user sent the same prompt again and kept the new answer."""
    IMPORT = "import"
    """Read from a file."""


class DropReason(StrEnum):
    """Why something did not become a row; of several, the first in this order is counted."""

    HELD_OUT = "held_out"
    """The prompt belongs to the held-out split or to a held-out suite."""
    PROBE = "probe"
    """We asked this ourselves, to watch a policy."""
    GOLD = "gold"
    """A comparison with a known outcome, there to test raters."""
    UNSUPPORTED = "unsupported"
    """The prompt or an answer holds more than text: tool calls, pictures, named speakers."""
    DIFFERENT_PROMPTS = "different_prompts"
    """The two answers do not answer the same history."""
    ERRORED = "errored"
    """An answer failed or was cut off by its client."""
    BLOCKED = "blocked"
    """A guardrail blocked or changed an answer."""
    EMPTY = "empty"
    """An answer has no text."""
    IDENTICAL = "identical"
    """The two texts are the same but for white space at their ends."""
    UNKNOWN_RESPONSE = "unknown_response"
    """A signal about a response that is not there."""
    NOT_A_PREFERENCE = "not_a_preference"
    """A comment, an outcome or a metric: it orders no two answers."""
    NO_COUNTERPART = "no_counterpart"
    """No other answer that was shown to the same user at the same point to set against this one."""
    CONFLICTING_SIGNALS = "conflicting_signals"
    """Signals of one user point both ways."""
    EVALUATION_RATER = "evaluation_rater"
    """Only raters whose verdicts judge candidates voted: those never train."""
    FLAGGED_RATER = "flagged_rater"
    """Enough votes, but too many by raters who failed gold items."""
    TOO_FEW_VOTES = "too_few_votes"
    """Fewer votes than asked for."""
    BOTH_BAD = "both_bad"
    """Half or more of the votes found both answers bad."""
    TIE = "tie"
    """Half or more of the votes were ties, or both answers won equally often."""
    DISAGREEMENT = "disagreement"
    """The winner's share of the votes is below the bound."""
    SOURCE_EXCLUDED = "source_excluded"
    """The filter leaves this source out."""
    OUTSIDE_WINDOW = "outside_window"
    """Voted or signalled before or after the time asked for."""
    STALE_POLICY = "stale_policy"
    """A side was spoken by a policy version the filter leaves out."""
    SUPERSEDED = "superseded"
    """The same two answers are already paired by a more trusted source, or a later edit replaced this one."""
    DUPLICATE = "duplicate"
    """The very same row is there already."""
    USER_CAP = "user_cap"
    """This user already gave as many rows as one person may."""


class Turn(NamedTuple):
    """One message of a prompt."""

    role: str
    content: str


Prompt = tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class PreferenceRow:
    """One preference pair: `chosen` over `rejected` as the answer to `prompt`.

    Ids are null where no response was served (an edit's corrected text, an import). `created_at` is the time
    of the last vote or signal, null where a file does not say.
    """

    prompt: Prompt
    chosen: str
    rejected: str
    chosen_response_id: str | None
    rejected_response_id: str | None
    chosen_policy: str
    rejected_policy: str
    chosen_decode: str | None
    rejected_decode: str | None
    source: str
    votes: int
    weight: float
    created_at: datetime | None
    prompt_hash: str


@dataclass(frozen=True, slots=True)
class DemonstrationRow:
    """One demonstration: `completion` as the answer to `prompt`.

    `response_id` is the response whose text was corrected, null for an import; `policy` is who wrote the
    completion, and `decode` how, where it was a policy.
    """

    prompt: Prompt
    completion: str
    response_id: str | None
    policy: str
    decode: str | None
    source: str
    votes: int
    weight: float
    created_at: datetime | None
    prompt_hash: str


Row = PreferenceRow | DemonstrationRow


def kind_of(row: Row) -> Kind:
    """Which kind of data set the row belongs to."""
    return Kind.PAIRS if isinstance(row, PreferenceRow) else Kind.DEMONSTRATIONS


def row_type(kind: Kind) -> type[PreferenceRow] | type[DemonstrationRow]:
    """The row class of a kind of data set."""
    return PreferenceRow if kind is Kind.PAIRS else DemonstrationRow


def turns_of(messages: Sequence[Message]) -> Prompt | None:
    """The messages as turns of plain text, or null where that would lose something a model was given."""
    turns = [_turn_of(message) for message in messages]
    plain = tuple(turn for turn in turns if turn is not None)
    return plain if plain and len(plain) == len(turns) else None


def _turn_of(message: Message) -> Turn | None:
    role: Any = message.get("role")
    content: Any = message.get("content")
    parts: list[Any] = [] if isinstance(content, str) else content or []
    others = [name for name, value in message.items() if name not in {"role", "content"} and value]
    if role not in ROLES or content is None or others:
        return None
    if any(not isinstance(part, str) and part.get("type") != "text" for part in parts):
        return None
    return Turn(role, storable(message_text(message)))


def messages_of(prompt: Prompt) -> list[dict[str, str]]:
    """The turns as chat messages."""
    return [{"role": turn.role, "content": turn.content} for turn in prompt]


def hash_of_prompt(prompt: Prompt) -> str:
    """The prompt's identity, as everywhere (`ratchet.prompts.prompt_hash`)."""
    return prompt_hash(messages_of(prompt))


def record_of(row: Row) -> dict[str, Any]:
    """The row as a record of plain types, its columns in the snapshot's order; times stay `datetime`."""
    record: dict[str, Any] = {name: getattr(row, name) for name in type(row).__slots__}
    return {**record, "prompt": messages_of(row.prompt)}


def canonical(row: Row) -> str:
    """The row's canonical JSON: equal rows have equal text on every machine. Times are UTC, in microseconds.

    Raises:
        ValueError: The weight is not finite, or the time has no zone.
    """
    record = record_of(row)
    record["weight"] = float(row.weight)
    record["created_at"] = None if row.created_at is None else utc_text(row.created_at)
    return canonical_json(record)


def utc_text(moment: datetime) -> str:
    """ISO 8601 in UTC with microseconds, such as `2026-03-01T12:00:00.000000Z`.

    Raises:
        ValueError: The time has no zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def row_from(kind: Kind, record: Mapping[str, Any]) -> Row:
    """The row of a record as `record_of` or `canonical` made it; `created_at` may be text.

    Raises:
        KeyError: A column is missing.
    """
    created: Any = record["created_at"]
    values: dict[str, Any] = {name: record[name] for name in row_type(kind).__slots__}
    values["prompt"] = tuple(Turn(message["role"], message["content"]) for message in record["prompt"])
    values["created_at"] = datetime.fromisoformat(created) if isinstance(created, str) else created
    return row_type(kind)(**values)
