"""A suite as its TOML file has it, strictly: an unknown key or wrong type is an error with its place."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError, model_validator

from evaluator.scorers.format import Format
from evaluator.scorers.instructions import Constraint
from evaluator.scorers.overlong import DEFAULT_WORDS
from ratchet.errors import ConfigError

BUILT_IN = Path(__file__).parent

Role = Literal["in_distribution", "harder", "regression", "conduct"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FileSource(_Strict):
    """Prompts from a data file of a known format."""

    format: Literal["gsm8k", "xstest"]
    path: str
    """Relative to the folder that the run names."""
    limit: PositiveInt | None = None
    """A seeded sample of so many."""
    seed: int = 0


class HeldOutSource(_Strict):
    """Prompts from the held-out table."""

    table: Literal["heldout"]
    suite: str | None = None
    """Those held out under this name; none: all that were added as prompts, not those of other suites."""
    limit: PositiveInt
    seed: int = 0


class TrafficSource(_Strict):
    """Prompts sampled from production traffic on the held-out side."""

    traffic: Literal["production"]
    days: PositiveInt
    limit: PositiveInt
    seed: int = 0


class MathItem(_Strict):
    """A question with one final value."""

    prompt: str = Field(min_length=1)
    expected: str = Field(min_length=1)


class MatchItem(_Strict):
    """A question with accepted answers."""

    prompt: str = Field(min_length=1)
    accepted: list[str] = Field(min_length=1)


class InstructionItem(_Strict):
    """A task with constraints."""

    prompt: str = Field(min_length=1)
    constraints: list[Constraint] = Field(min_length=1)


class FormatItem(_Strict):
    """A task whose answer has a form."""

    prompt: str = Field(min_length=1)
    form: Format


class OverlongItem(_Strict):
    """A trivial question."""

    prompt: str = Field(min_length=1)
    at_most_words: PositiveInt = DEFAULT_WORDS


class SycophancyItem(_Strict):
    """A question asked neutrally and with a false claim asserted."""

    neutral: str = Field(min_length=1)
    asserted: str = Field(min_length=1)
    truth: list[str] = Field(min_length=1)
    claim: list[str] = Field(min_length=1)


class RefusalItem(_Strict):
    """A benign prompt or a harmful one."""

    prompt: str = Field(min_length=1)
    kind: Literal["benign", "harmful"]


class ToolItem(_Strict):
    """A task for one tool call."""

    prompt: str = Field(min_length=1)
    tool: str
    result: str


class CodeCase(_Strict):
    """One call and what it must give."""

    call: str = Field(min_length=1)
    expected: Any


class CodeItem(_Strict):
    """A function to write."""

    prompt: str = Field(min_length=1)
    cases: list[CodeCase] = Field(min_length=1)


class _Suite(_Strict):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    description: str
    skill: str
    """What it measures; suites of one skill are read together."""
    role: Role
    """Of a trained skill: its own distribution or a harder disjoint one; of others: regression or conduct."""
    floor: float | None = Field(default=None, ge=0, le=1)
    """The score below which no candidate is proposed."""
    margin: float | None = Field(default=None, ge=0, le=1)
    """How much worse than production a candidate may be shown to be; none: it is reported, not held."""
    source: FileSource | HeldOutSource | TrafficSource | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        items: list[Any] = getattr(self, "items", [])
        if bool(items) == (self.source is not None):
            raise ValueError("a suite has either items or a source")
        if self.role == "regression" and self.floor is None:
            raise ValueError("a regression suite has a floor")
        return self


class MathSuite(_Suite):
    """Scored by `math_answers`."""

    scorer: Literal["math"]
    items: list[MathItem] = []


class MatchSuite(_Suite):
    """Scored by `match`."""

    scorer: Literal["exact", "normalised"]
    items: list[MatchItem] = []


class InstructionSuite(_Suite):
    """Scored by `instructions`."""

    scorer: Literal["instructions"]
    items: list[InstructionItem] = []
    constraints: list[Constraint] = []
    """Of every prompt of the source."""

    @model_validator(mode="after")
    def _checks_something(self) -> Self:
        if bool(self.constraints) != (self.source is not None):
            raise ValueError("constraints of the suite go with a source, those of an item with items")
        return self


class FormatSuite(_Suite):
    """Scored by `format`."""

    scorer: Literal["format"]
    items: list[FormatItem] = []
    form: Format | None = None
    """Of every answer to a prompt of the source."""

    @model_validator(mode="after")
    def _checks_something(self) -> Self:
        if (self.form is not None) != (self.source is not None):
            raise ValueError("the form of the suite goes with a source, that of an item with items")
        return self


class OverlongSuite(_Suite):
    """Scored by `overlong`."""

    scorer: Literal["overlong"]
    items: list[OverlongItem] = []


class SycophancySuite(_Suite):
    """Scored by `sycophancy`."""

    scorer: Literal["sycophancy"]
    items: list[SycophancyItem] = []


class RefusalSuite(_Suite):
    """Scored by whether answers refuse, benign and harmful prompts apart."""

    scorer: Literal["refusal"]
    items: list[RefusalItem] = []


class ToolSuite(_Suite):
    """Scored by `tool_calls`."""

    scorer: Literal["tool_call"]
    items: list[ToolItem] = []


class CodeSuite(_Suite):
    """Scored by `code`."""

    scorer: Literal["code"]
    items: list[CodeItem] = []


class JudgedSuite(_Suite):
    """Scored by a judge or raters, pair by pair; without items of its own."""

    scorer: Literal["judge"]
    dimension: str = Field(min_length=1)


Suite = Annotated[
    MathSuite
    | MatchSuite
    | InstructionSuite
    | FormatSuite
    | OverlongSuite
    | SycophancySuite
    | RefusalSuite
    | ToolSuite
    | CodeSuite
    | JudgedSuite,
    Field(discriminator="scorer"),
]
_SUITE: TypeAdapter[Suite] = TypeAdapter(Suite)


def load_suite(path: Path) -> Suite:
    """Reads a suite.

    Raises:
        ConfigError: The file cannot be read or is no suite; the message names the file and the place in it.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    return parse_suite(text, str(path))


def parse_suite(text: str, source: str) -> Suite:
    """A suite from the text of its file.

    Args:
        text: TOML.
        source: What messages call it.

    Raises:
        ConfigError: It is no suite; the message names the source and the place in it.
    """
    try:
        return _SUITE.validate_python(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is no TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the suite"
        raise ConfigError(f"{source}: {place}: {first['msg']}") from error


def built_in_suites() -> list[Suite]:
    """The small suites that come with Ratchet, by name."""
    return [load_suite(path) for path in sorted(BUILT_IN.glob("*.toml"))]
