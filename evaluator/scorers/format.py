"""Is the answer in the form that was asked for?"""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from evaluator.scorers.outcome import TRUNCATED, Answer, Score

_FENCE = re.compile(r"^```(?:json|JSON)?[ \t]*\n(?P<body>.*?)\n?```$", re.DOTALL)
_MARKUP = re.compile(
    r"^#{1,6} |\*\*[^*\n]+\*\*|^\s*[-*] |^```|\[[^\]\n]+\]\([^)\n]+\)|^\|.*\|$", re.MULTILINE
)


class _Format(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class JsonObject(_Format):
    """One JSON object with at least these keys, in a code fence or without."""

    kind: Literal["json_object"]
    keys: list[str]

    def broken(self, text: str) -> str | None:
        """What is wrong with the answer's form; null where nothing is."""
        try:
            document = load_json(text)
        except ValueError as error:
            return f"no JSON: {error}"
        if not isinstance(document, dict):
            return "JSON, but no object"
        missing = [key for key in self.keys if key not in document]
        return f"keys missing: {', '.join(missing)}" if missing else None


class Pattern(_Format):
    """A regular expression that the stripped answer matches as a whole."""

    kind: Literal["pattern"]
    pattern: str

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        return pattern

    def broken(self, text: str) -> str | None:
        """What is wrong with the answer's form; null where nothing is."""
        return None if re.fullmatch(self.pattern, text.strip()) else f"does not match {self.pattern}"


class NoMarkup(_Format):
    """Plain text: no Markdown headings, emphasis, lists, links, tables or fences."""

    kind: Literal["no_markup"]

    def broken(self, text: str) -> str | None:
        """What is wrong with the answer's form; null where nothing is."""
        found = _MARKUP.search(text)
        return f"holds markup: {found.group()[:40]!r}" if found else None


Format = Annotated[JsonObject | Pattern | NoMarkup, Field(discriminator="kind")]


def score_format(answer: Answer, wanted: Format) -> Score:
    """Right where the answer has the form."""
    if answer.truncated:
        return TRUNCATED
    if not answer.text.strip():
        return Score.of(False, "the answer is empty")
    broken = wanted.broken(answer.text)
    return Score.of(broken is None, broken or "the form is right")


def load_json(text: str) -> Any:
    """The one JSON document that a text is, in a code fence or without.

    Raises:
        ValueError: It is none, or one that JSON forbids (NaN, infinity) or that is nested too deeply.
    """
    text = text.strip()
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced["body"] if fenced else text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def holds_json(text: str) -> bool:
    """Whether the text is one JSON document."""
    try:
        load_json(text)
    except ValueError:
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
