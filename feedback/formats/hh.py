"""Transcripts as in Anthropic's HH data: `{"chosen": text, "rejected": text}`, pairs only.

A transcript is turns that each begin with an empty line and `Human:` or `Assistant:`. It is split at its last
assistant turn: that is the answer, what comes before is the prompt, which must be the same on both sides.
One space after the label belongs to the label, all else to the text, so that a transcript is written as it
was read. Provenance goes under the further key `ratchet`.
"""

import re
from typing import Any

from feedback.formats.documents import PROVENANCE_KEY, Document, PairProvenance, pair_row, provenance_of
from feedback.formats.lines import LineFormat, Malformed
from feedback.rows import DropReason, Kind, PreferenceRow, Prompt, Row, Turn
from ratchet.prompts import storable

_TURN = re.compile(r"\n\n(Human|Assistant): ?")
_ROLES = {"Human": "user", "Assistant": "assistant"}
_LABELS = {role: label for label, role in _ROLES.items()}


class _Line(Document):
    chosen: str
    rejected: str
    ratchet: PairProvenance | None = None


def parse(field: str, transcript: str) -> tuple[Prompt, str]:
    """The prompt and the answer of a transcript.

    Raises:
        Malformed: It does not begin with a turn, does not end with the assistant's, or has one turn only.
    """
    before, *parts = _TURN.split(transcript)
    if before.strip() or not parts:
        raise Malformed(f'{field}: a transcript begins with an empty line and "Human:" or "Assistant:"')
    turns = [Turn(_ROLES[label], storable(text)) for label, text in zip(parts[::2], parts[1::2], strict=True)]
    if turns[-1].role != "assistant":
        raise Malformed(f"{field}: the last turn is the human's, so there is no answer")
    if len(turns) == 1:
        raise Malformed(f"{field}: there is an answer but no prompt")
    return tuple(turns[:-1]), turns[-1].content


def transcript(prompt: Prompt, answer: str) -> str | None:
    """The transcript of a prompt and an answer; null where it would not be read back the same.

    That is so for roles that transcripts do not have, and for texts that hold what looks like a turn.
    """
    turns = (*prompt, Turn("assistant", answer))
    if any(turn.role not in _LABELS or _TURN.search(turn.content) for turn in turns):
        return None
    return "".join(f"\n\n{_LABELS[turn.role]}: {turn.content}" for turn in turns)


def _decode(record: dict[str, Any], name: str) -> PreferenceRow | DropReason:
    line = _Line.model_validate(record)
    prompt, chosen = parse("chosen", line.chosen)
    other, rejected = parse("rejected", line.rejected)
    if prompt != other:
        return DropReason.DIFFERENT_PROMPTS
    return pair_row(prompt, chosen, rejected, line.ratchet, name)


def _encode(row: Row, provenance: bool) -> dict[str, Any] | None:
    if not isinstance(row, PreferenceRow):
        return None
    chosen, rejected = transcript(row.prompt, row.chosen), transcript(row.prompt, row.rejected)
    if chosen is None or rejected is None:
        return None
    document = {"chosen": chosen, "rejected": rejected}
    return {**document, PROVENANCE_KEY: provenance_of(row)} if provenance else document


HH = LineFormat(decode={Kind.PAIRS: _decode}, encode={Kind.PAIRS: _encode})
