"""What a judge's reply says. A reply that cannot be read is unscored: never a tie, never a loss."""

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

Choice = Literal["first", "second", "tie"]

CHOICES: dict[str, Choice] = {"a": "first", "b": "second", "c": "tie", "tie": "tie"}

_VERDICT = re.compile(r"\[\[([^\[\]]*)\]\]")
_PHRASES = "|".join(re.escape(status.phrase) for status in HTTPStatus if status >= HTTPStatus.BAD_REQUEST)
_ERROR = re.compile(
    rf"\s*(?:(?:http/\S+|error(?: code)?:?|status(?: code)?:?)\s+)?[45]\d\d\W+(?:{_PHRASES}|error)\b"
    r'|\s*\{\s*"(?:error|detail)"\s*:|\s*<(?:!doctype html|html)\b|\s*(?:internal server|server|api) error\b',
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back from the judge's endpoint."""

    text: str | None
    """Null where the call failed."""
    finish_reason: str | None = "stop"
    error: str | None = None
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The choice that a reply makes; null where it makes none, with the reason."""

    choice: Choice | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rating:
    """The grade that a reply gives; null where it gives none, with the reason."""

    value: float | None
    reason: str = ""


def read_choice(reply: Reply) -> Reading:
    """The last verdict `[[A]]`, `[[B]]`, `[[C]]` or `[[tie]]`; what is said before it does not count."""
    verdict, reason = _final(reply)
    if verdict is None:
        return Reading(None, reason)
    choice = CHOICES.get(verdict.casefold())
    return Reading(choice, "" if choice else f"the final verdict [[{verdict[:20]}]] is none of A, B and C")


def read_rating(reply: Reply, low: float, high: float) -> Rating:
    """The last number in double brackets, on a scale from `low` to `high`; off the scale it is unscored."""
    verdict, reason = _final(reply)
    if verdict is None:
        return Rating(None, reason)
    if not _NUMBER.fullmatch(verdict):
        return Rating(None, f"the final grade [[{verdict[:20]}]] is no number")
    value = float(verdict)
    if not low <= value <= high:
        return Rating(None, f"the final grade {verdict} is not on the scale from {low:g} to {high:g}")
    return Rating(value)


def _final(reply: Reply) -> tuple[str | None, str]:
    if reply.text is None:
        return None, reply.error or "the judge did not answer"
    if reply.finish_reason == "length":
        return None, "the judge was cut off before it was done"
    if _ERROR.match(reply.text):
        return None, f"the judge answered with an error: {reply.text.strip()[:80]!r}"
    verdicts = _VERDICT.findall(reply.text)
    if not verdicts:
        return None, "the judge's reply holds no verdict in double brackets"
    return verdicts[-1].strip(), ""
