"""From outcomes and verdicts to what a selection reads: primary figures, changes, floors, and flags.

Pure. A dimension is a metric of a suite, or a judged suite. What a candidate gains in a metric is the paired
difference on the same prompts; only prompts that are right or wrong on both sides count. How many are is a
figure of its own, since a policy that is cut off on whatever is hard would gain by it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evaluator.scorers.outcome import Outcome, Tally, tally
from evaluator.scoring import Scored, metrics_of
from evaluator.selection import Candidate, Change, Floor, Primary
from evaluator.statistics.buckets import by_length_ratio
from evaluator.statistics.interval import UNDEFINED, Interval
from evaluator.statistics.length_controlled import LengthedVerdict, length_controlled
from evaluator.statistics.multiple import flip_test
from evaluator.statistics.wilson import wilson
from evaluator.statistics.winrate import WinRate, paired_difference, win_rate
from evaluator.suites.model import Suite
from ratchet.errors import ConfigError

TOLD_MARGIN = 0.05
"""How much more of the answers may be truncated or unscored, where a suite has no margin."""

_VALUE = {Outcome.RIGHT: 1.0, Outcome.WRONG: 0.0}


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdicts of one candidate on one judged suite, against one other policy."""

    suite: str
    other: str
    source: str
    """`judge` or `raters`."""
    verdicts: tuple[LengthedVerdict, ...]
    unscored: int
    disagreements: int
    """Of the orders."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One policy as a run saw it."""

    policy: str
    scored: Mapping[str, Sequence[Scored]]
    """By metric."""
    judged: tuple[Judged, ...] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """Where a candidate stands."""

    policy: str
    step: int
    kl: float


def primary_suite(suites: Sequence[Suite], has_verdicts: bool, wanted: str | None = None) -> Suite:
    """What candidates are ranked by: the first judged suite where there are verdicts, else the first suite of
    a trained skill.

    Raises:
        ConfigError: There is none, or the wanted one cannot rank.
    """
    able = [suite for suite in suites if has_verdicts or suite.scorer != "judge"]
    if wanted is not None:
        found = next((suite for suite in able if suite.name == wanted), None)
        if found is None or found.scorer == "refusal":
            raise ConfigError(
                f"{wanted!r} cannot rank candidates: name a suite of this run with one metric"
                f" ({', '.join(suite.name for suite in able if suite.scorer != 'refusal')})"
            )
        return found
    judged = next((suite for suite in able if suite.scorer == "judge"), None)
    skilled = next((suite for suite in able if suite.role == "in_distribution"), None)
    chosen = judged or skilled
    if chosen is None:
        raise ConfigError(
            "nothing ranks the candidates: give a suite with role in_distribution, or a judged suite and a"
            " judge, or --primary SUITE"
        )
    return chosen


def candidates_of(
    axes: Sequence[Axis],
    measured: Mapping[str, Measured],
    baseline: str,
    suites: Sequence[Suite],
    primary: Suite,
    *,
    seed: int,
) -> list[Candidate]:
    """The candidates as `evaluator.selection` reads them.

    Args:
        axes: Their places on the KL axis.
        measured: Of each candidate and the baseline.
        baseline: What is in production.
        suites: Of the run.
        primary: The suite that ranks.
        seed: Of bootstraps and flips.
    """
    base = measured[baseline]
    firsts = _primaries(axes, measured, baseline, primary, seed)
    return [
        Candidate(
            axis.policy,
            axis.step,
            axis.kl,
            firsts[axis.policy],
            tuple(_changes(measured[axis.policy], base, suites, primary, seed)),
            tuple(floors_of(measured[axis.policy], suites)),
            tuple(_told(measured[axis.policy], base, suites, seed)),
        )
        for axis in axes
    ]


def gain(candidate: Sequence[Scored], base: Sequence[Scored], seed: int) -> Interval:
    """The candidate's share of right answers minus the baseline's, on prompts told on both sides."""
    mine, theirs, clusters = _paired(candidate, base)
    if not clusters:
        return UNDEFINED
    return paired_difference(np.array(mine), np.array(theirs), clusters, seed)


def accuracy(scored: Sequence[Scored]) -> Tally:
    """Counts of a metric, truncated and unscored apart."""
    return tally(one.score for one in scored)


def told_share(scored: Sequence[Scored]) -> float:
    """Share of a metric's answers that are right or wrong; 0 without any."""
    return sum(one.score.outcome in _VALUE for one in scored) / max(1, len(scored))


def floors_of(measured: Measured, suites: Sequence[Suite]) -> list[Floor]:
    """The floors of suites, with what a policy shows on each."""
    return [
        Floor(name, accuracy(measured.scored[name]).accuracy, suite.floor, told_share(measured.scored[name]))
        for suite in suites
        if suite.floor is not None
        for name in metrics_of(suite)
    ]


def rates(judged: Judged, seed: int) -> dict[str, Any]:
    """What verdicts say: win rate, length-controlled win rate, by length bucket; in JSON types."""
    if not judged.verdicts:
        return {"win_rate": asdict(UNDEFINED), "length_controlled": asdict(UNDEFINED), "buckets": [],
                "wins": 0, "ties": 0, "losses": 0, **_health(judged)}  # fmt: skip
    found = win_rate(judged.verdicts, seed=seed)
    controlled = length_controlled(judged.verdicts, seed=seed)
    return {
        "win_rate": asdict(found.rate),
        "wins": found.wins,
        "ties": found.ties,
        "losses": found.losses,
        "length_controlled": asdict(controlled.rate),
        "length_controlled_reason": controlled.reason,
        "buckets": [
            {"low": one.low, "high": one.high, "prompts": 0 if one.result is None else one.result.prompts,
             "win_rate": asdict(UNDEFINED if one.result is None else one.result.rate)}
            for one in by_length_ratio(judged.verdicts, seed=seed)
        ],
        **_health(judged),
    }  # fmt: skip


def rises_alone(measured: Measured, base: Measured, suites: Sequence[Suite], seed: int) -> list[str]:
    """Trained skills that rise on their own distribution and not on the harder disjoint suite, in words."""
    flags: list[str] = []
    for suite in (one for one in suites if one.role == "in_distribution"):
        near = [gain(measured.scored[name], base.scored[name], seed) for name in metrics_of(suite)]
        harder = [
            gain(measured.scored[name], base.scored[name], seed)
            for other in suites
            if other.role == "harder" and other.skill == suite.skill
            for name in metrics_of(other)
        ]
        rises = any(one.low is not None and one.low > 0 for one in near)
        if rises and harder and not any((one.estimate or 0) > 0 for one in harder):
            flags.append(
                f"{suite.skill}: {suite.name} rises and the harder suite does not: it may have learnt the"
                " suite and not the skill"
            )
    return flags


def _health(judged: Judged) -> dict[str, Any]:
    return {"unscored": judged.unscored, "disagreements": judged.disagreements, "source": judged.source}


def _judged(measured: Measured, suite: str, other: str) -> Judged | None:
    return next((one for one in measured.judged if one.suite == suite and one.other == other), None)


def _primaries(
    axes: Sequence[Axis], measured: Mapping[str, Measured], baseline: str, primary: Suite, seed: int
) -> dict[str, Primary | None]:
    """Of each candidate, with one p-value over all of them; null where nothing could be compared.

    A prompt that one candidate lacks counts for it as no difference, which keeps the test valid.
    """
    base = measured[baseline]
    columns: dict[str, dict[str, float]] = {}
    values: dict[str, Interval] = {}
    for axis in axes:
        one = measured[axis.policy]
        if primary.scorer == "judge":
            judged = _judged(one, primary.name, baseline)
            verdicts = judged.verdicts if judged is not None else ()
            if verdicts:
                found: WinRate = win_rate(verdicts, seed=seed)
                values[axis.policy] = found.rate
                columns[axis.policy] = _summed((each.prompt, each.score - 0.5) for each in verdicts)
        else:
            mine, theirs, clusters = _paired(one.scored[primary.name], base.scored[primary.name])
            if clusters:
                values[axis.policy] = gain(one.scored[primary.name], base.scored[primary.name], seed)
                differences = zip(clusters, mine, theirs, strict=True)
                columns[axis.policy] = _summed((prompt, ours - other) for prompt, ours, other in differences)
    name, nothing = _named(primary)
    if not columns:
        return dict.fromkeys((axis.policy for axis in axes), None)
    prompts = sorted({prompt for column in columns.values() for prompt in column})
    order = list(columns)
    scores = np.array([[columns[policy].get(prompt, 0.0) for policy in order] for prompt in prompts])
    adjusted = dict(zip(order, flip_test(scores, prompts, seed=seed).adjusted, strict=True))
    return {
        axis.policy: Primary(name, values[axis.policy], nothing, adjusted[axis.policy])
        if axis.policy in values
        else None
        for axis in axes
    }


def _summed(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for prompt, value in pairs:
        sums[prompt] = sums.get(prompt, 0.0) + value
    return sums


def _named(primary: Suite) -> tuple[str, float]:
    if primary.scorer == "judge":
        return f"win rate ({primary.name})", 0.5
    return f"gain in {primary.name}", 0.0


def _changes(
    measured: Measured, base: Measured, suites: Sequence[Suite], primary: Suite, seed: int
) -> list[Change]:
    changes: list[Change] = []
    for suite in suites:
        if suite.margin is None or suite.name == primary.name:
            continue
        if suite.scorer == "judge":
            judged = _judged(measured, suite.name, base.policy)
            if judged is not None:
                found = win_rate(judged.verdicts, seed=seed).rate if judged.verdicts else UNDEFINED
                changes.append(Change(suite.name, _minus_half(found), suite.margin))
        for name in metrics_of(suite):
            changes.append(Change(name, gain(measured.scored[name], base.scored[name], seed), suite.margin))
    return changes


def _told(measured: Measured, base: Measured, suites: Sequence[Suite], seed: int) -> list[Change]:
    """What each metric loses in answers that can be told right or wrong.

    Where a suite has no margin, that is `TOLD_MARGIN`, or as fine as so few prompts can show.
    """
    changes: list[Change] = []
    for suite in suites:
        for name in metrics_of(suite):
            lost = paired_told(measured.scored[name], base.scored[name], seed)
            finest = wilson(0, len({one.prompt_hash for one in base.scored[name]})).high or 0.0
            margin = max(TOLD_MARGIN, finest) if suite.margin is None else suite.margin
            changes.append(Change(name, lost, margin))
    return changes


def paired_told(candidate: Sequence[Scored], base: Sequence[Scored], seed: int) -> Interval:
    """The candidate's share of answers that can be told minus the baseline's, on the same prompts."""
    theirs = {one.item: float(one.score.outcome in _VALUE) for one in base}
    asked = [one for one in candidate if one.item in theirs]
    if not asked:
        return UNDEFINED
    return paired_difference(
        np.array([float(one.score.outcome in _VALUE) for one in asked]),
        np.array([theirs[one.item] for one in asked]),
        [one.prompt_hash for one in asked],
        seed,
    )


def _minus_half(rate: Interval) -> Interval:
    return Interval(*(None if end is None else end - 0.5 for end in (rate.estimate, rate.low, rate.high)))


def _paired(
    candidate: Sequence[Scored], base: Sequence[Scored]
) -> tuple[list[float], list[float], list[str]]:
    theirs = {one.item: one for one in base}
    pairs = [
        (one, theirs[one.item])
        for one in candidate
        if one.score.outcome in _VALUE and one.item in theirs and theirs[one.item].score.outcome in _VALUE
    ]
    return (
        [_VALUE[one.score.outcome] for one, _ in pairs],
        [_VALUE[other.score.outcome] for _, other in pairs],
        [one.prompt_hash for one, _ in pairs],
    )
