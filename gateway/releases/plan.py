"""A release plan as its TOML file has it; an unknown key or wrong type is an error with its place."""

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, PositiveInt, ValidationError, model_validator

from ratchet.errors import ConfigError

HOLDBACK = "holdback"
TASK_PREFIX = "task:"


class Source(StrEnum):
    """Where a metric's measurements come from, one for each answer (or each answer that was judged)."""

    ERRORS = "errors"
    """1 where the answer failed, timeouts included."""
    TIMEOUTS = "timeouts"
    ABANDONED = "abandoned"
    """1 where the client left before the answer was whole."""
    FIRST_TOKEN = "first_token"  # noqa: S105
    """Seconds until the first token."""
    INTER_TOKEN = "inter_token"  # noqa: S105
    """Mean seconds between tokens of an answer."""
    LATENCY = "latency"
    """Seconds of the whole answer."""
    COST = "cost"
    LENGTH = "length"
    """Tokens of the answer."""
    TRUNCATION = "truncation"
    REPETITION = "repetition"
    GUARDRAIL = "guardrail"
    """1 where a guardrail's verdict was against the answer."""
    REFUSAL = "refusal"
    """On users' own prompts."""
    REFUSAL_BENIGN = "refusal_benign"
    """On benign probes."""
    REFUSAL_HARMFUL = "refusal_harmful"
    """On harmful probes, where fewer refusals are worse."""
    SENTINEL = "sentinel"
    """1 where a probe's sentinel for a known hack went off."""
    THUMBS = "thumbs"
    """1 for a thumb up, 0 for one down."""
    RATING = "rating"
    """Stars, brought to [0, 1]."""
    RETRIES = "retries"
    REGENERATIONS = "regenerations"
    ESCALATIONS = "escalations"


PROBED = frozenset({Source.REFUSAL_BENIGN, Source.REFUSAL_HARMFUL, Source.SENTINEL})
"""Sources whose unit is a probe, which both arms answer, in place of a user."""
ENDED = frozenset({Source.ERRORS, Source.TIMEOUTS, Source.ABANDONED})
"""How answers ended: a shadow gets copies of good ones only, so production counts all of its own."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _is_source(text: str) -> bool:
    return text in list(Source) or (text.startswith(TASK_PREFIX) and len(text) > len(TASK_PREFIX))


class _Metric(_Strict):
    source: str | None = None
    """A `Source`, or `task:NAME` for a task metric posted as feedback; where left out, the metric's name."""
    worse: Literal["higher", "lower"]
    """Which direction harms."""
    margin: Annotated[float, Field(gt=0, le=10)]
    """The largest worsening that promotion accepts: points of a share (0.01 is one point), parts of
    production's figure for a ratio or quantile (0.2 is a fifth)."""
    harm: Annotated[float, Field(ge=0, le=10)]
    """A worsening shown to be larger than this aborts at once, in the same units; at most `margin`."""
    goal: Literal["non_inferior", "superior", "no_harm"] = "non_inferior"
    """What the last step asks for; `no_harm` is for what is too rare to be shown within a margin."""
    users: PositiveInt = 20
    """Measured users that each arm needs before the metric counts as alive."""
    optional: bool = False
    """Where an arm has fewer measured users, the metric holds nothing up; harm that is shown still aborts."""
    stages: tuple[str, ...] = ()
    """Names of the stages that look at it; all of them where empty."""
    weight: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Its part of the budget for false aborts, relative to the others."""

    @model_validator(mode="after")
    def _harm_within_margin(self) -> Self:
        if self.harm > self.margin:
            raise ValueError(
                f"harm {self.harm:g} is above margin {self.margin:g}: what is shown to be worse than the "
                "margin can never be promoted, so it must abort"
            )
        return self


class ShareMetric(_Metric):
    """A measurement in [0, 1] for each answer; arms are compared by the difference of the users' means."""

    measure: Literal["share"]
    limit: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Abort too where the arm's own share is shown to be beyond this, whatever production does."""


class RatioMetric(_Metric):
    """A measurement of at least 0; arms are compared by the ratio of the users' means."""

    measure: Literal["ratio"]
    cap: Annotated[float, Field(gt=0)]
    """Measurements above are counted as this; what the statistics take as the upper bound."""


class QuantileMetric(_Metric):
    """A measurement of at least 0; arms are compared by the ratio of one quantile."""

    measure: Literal["quantile"]
    quantile: Annotated[float, Field(gt=0, lt=1)]


Metric = Annotated[ShareMetric | RatioMetric | QuantileMetric, Field(discriminator="measure")]


class Stage(_Strict):
    """One step of the walk."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]
    kind: Literal["shadow", "canary"]
    share: Annotated[float, Field(gt=0, le=1)]
    """Of a canary: its share of users, at most a half, so that production is measured no worse than the
    canary. Of a shadow: the share of requests that are copied."""
    users: PositiveInt
    """Users the candidate must have answered in this stage before it may advance."""
    hours: Annotated[float, Field(ge=0)] = 0.0
    """Time the stage lasts at least."""

    @model_validator(mode="after")
    def _canary_up_to_half(self) -> Self:
        if self.kind == "canary" and self.share > 0.5:
            raise ValueError("a canary's share is at most 0.5; what follows the last stage is production")
        return self


class Holdback(_Strict):
    """After promotion the previous policy keeps some users, and the analysis goes on."""

    share: Annotated[float, Field(gt=0, le=0.5)]
    """Of users, that stay with the previous policy."""
    days: Annotated[float, Field(gt=0)]


class Budget(_Strict):
    """How often a release may go wrong by chance, over all stages, metrics and looks together."""

    false_abort: Annotated[float, Field(gt=0, le=0.2)] = 0.05
    """Chance that a candidate which harms nowhere is stopped."""
    false_promotion: Annotated[float, Field(gt=0, le=0.2)] = 0.05
    """Chance that a candidate which is worse by a whole margin somewhere is promoted."""
    ratio_mismatch: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Part of `false_abort` that goes to the checks of the users' ratio."""


class ReleasePlan(_Strict):
    """Stages, metrics and bounds of a release."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    look_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Time between two looks at the metrics."""
    drill_max_age_days: Annotated[float, Field(gt=0)]
    """A release starts only where the last good drill is younger."""
    max_failed: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Where a larger part of an arm's measurements failed, the metric is dead and the stage holds."""
    webhook: HttpUrl | None = None
    """Called on automatic abort and hold."""
    budget: Budget = Budget()
    holdback: Holdback | None = None
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    metrics: Annotated[dict[str, Metric], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names) or {HOLDBACK, "production"} & set(names):
            raise ValueError("stages need names of their own, and not 'production' or 'holdback'")
        kinds = [stage.kind for stage in self.stages]
        shares = [stage.share for stage in self.stages if stage.kind == "canary"]
        if kinds != sorted(kinds, reverse=True):
            raise ValueError("shadow stages come before canary stages")
        if not shares or shares != sorted(shares) or len(set(shares)) != len(shares):
            raise ValueError("canary stages are needed, each with a larger share than the one before")
        for name, metric in self.metrics.items():
            if not _is_source(self.source_of(name)):
                raise ValueError(
                    f"metrics.{name}: no source is named {self.source_of(name)!r}; known are "
                    f"{', '.join(Source)} and {TASK_PREFIX}NAME"
                )
            unknown = set(metric.stages) - set(names) - {HOLDBACK}
            if unknown:
                raise ValueError(f"metrics.{name}: no stage is named {', '.join(sorted(unknown))}")
        if not any(self.looks_at(metric, names[-1]) for metric in self.metrics.values()):
            raise ValueError(f"no metric is looked at in {names[-1]!r}, so nothing could be promoted")
        return self

    def source_of(self, metric: str) -> str:
        """Where a metric's measurements come from: a `Source`, or `task:NAME`."""
        return self.metrics[metric].source or metric

    @staticmethod
    def looks_at(metric: _Metric, stage: str) -> bool:
        """Whether a metric counts in a stage (or in `holdback`)."""
        return not metric.stages or stage in metric.stages

    def metrics_of(self, stage: str) -> dict[str, Metric]:
        """The metrics that count in a stage (or in `holdback`), by name."""
        return {name: metric for name, metric in self.metrics.items() if self.looks_at(metric, stage)}

    @property
    def gates(self) -> tuple[str, ...]:
        """The names of everything that is analysed: the stages, and `holdback` where there is one."""
        return (*(stage.name for stage in self.stages), *((HOLDBACK,) if self.holdback else ()))

    def stage(self, name: str) -> Stage:
        """A stage by its name.

        Raises:
            ConfigError: The plan has none.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise ConfigError(f"the plan {self.name!r} has no stage {name!r}")

    def following(self, name: str) -> Stage | None:
        """The stage after this one; None after the last, where production follows."""
        place = self.stages.index(self.stage(name))
        return self.stages[place + 1] if place + 1 < len(self.stages) else None

    @classmethod
    def parse(cls, values: dict[str, Any], *, source: str) -> Self:
        """Checks values from a file or a row.

        Args:
            values: As TOML or JSON has them.
            source: Named in the error.

        Raises:
            ConfigError: Names the place of the first thing wrong.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the plan"
            raise ConfigError(f"{source}: {place}: {first['msg']}") from error


def load_release_plan(path: Path) -> ReleasePlan:
    """Reads a release plan.

    Args:
        path: A TOML file.

    Raises:
        ConfigError: It cannot be read, is no TOML, or is no plan.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    return parse_release_plan(text, str(path))


def parse_release_plan(text: str, source: str) -> ReleasePlan:
    """A release plan from the text of its file.

    Args:
        text: TOML.
        source: What messages call it.

    Raises:
        ConfigError: It is no TOML, or is no plan.
    """
    try:
        return ReleasePlan.parse(tomllib.loads(text), source=source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is no TOML: {error}") from error
