"""What a judge is worth: accuracy, position and length bias, consistency on labelled pairs, each with an
interval.

Every pair is shown in both orders, each several times. All four figures are taken over single verdicts,
before orders are combined, so that what combining hides (a judge that always says A ties everything) is seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.judge.client import JudgeClient
from evaluator.judge.parse import Choice, read_choice
from evaluator.judge.templates import Template
from evaluator.statistics.interval import (
    LEVEL,
    REPLICATES,
    UNDEFINED,
    Floats,
    Interval,
    draw_clusters,
    percentile_ends,
)
from evaluator.statistics.wilson import wilson
from evaluator.statistics.winrate import clustered_mean

REPEATS = 2


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """A question with a better and a worse answer, by human label."""

    prompt: str
    """Hash or id; one for each pair."""
    question: str
    better: str
    worse: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """One reading of one pair in one order."""

    pair: LabelledPair
    better_first: bool
    repeat: int
    choice: Choice | None

    @property
    def score(self) -> float:
        """1 where the better answer was chosen, 0.5 for a tie."""
        return 0.5 if self.choice == "tie" else float((self.choice == "first") == self.better_first)

    @property
    def firstness(self) -> float:
        """1 where the first was chosen, 0.5 for a tie."""
        return 0.5 if self.choice == "tie" else float(self.choice == "first")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A judge's figures on labelled pairs."""

    pairs: int
    accuracy: Interval
    """Better answer chosen, a tie as half."""
    position_bias: Interval
    """Share of verdicts for the first answer minus one half: 0 is none, 0.5 always the first."""
    length_bias: Interval
    """Share of verdicts for the longer answer minus one half: 0 is none, 0.5 always the longer.

    Pairs whose longer answer is better weigh as much as the others; null where either kind is missing.
    """
    order_disagreement: Interval
    """Share of pairs and repeats on which the two orders disagree."""
    self_consistency: Interval
    """Share of pairs and orders on which all repeats say the same. Null with one repeat."""
    unscored: Interval
    """Share of replies that could not be read."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a judge must show before it may select."""

    accuracy: float = 0.6
    """Lower end of the interval."""
    position_bias: float = 0.15
    """Largest magnitude of the estimate."""
    length_bias: float = 0.15
    """Largest magnitude of the estimate."""
    order_disagreement: float = 0.4
    """Largest estimate."""
    self_consistency: float = 0.8
    """Smallest estimate."""
    unscored: float = 0.05
    """Largest estimate."""


async def judge_labelled(
    client: JudgeClient, template: Template, pairs: Sequence[LabelledPair], repeats: int = REPEATS
) -> list[Judgement]:
    """Shows every pair in both orders, `repeats` times each."""
    asked = [
        (pair, better_first, repeat)
        for repeat in range(repeats)
        for pair in pairs
        for better_first in (True, False)
    ]
    prompts = [
        template.render(
            pair.question, *((pair.better, pair.worse) if better_first else (pair.worse, pair.better))
        )
        for pair, better_first, _ in asked
    ]
    replies = await client.ask_all(prompts)
    return [
        Judgement(pair, better_first, repeat, read_choice(reply).choice)
        for (pair, better_first, repeat), reply in zip(asked, replies, strict=True)
    ]


def calibrate(
    judgements: Sequence[Judgement], *, seed: int = 0, replicates: int = REPLICATES, level: float = LEVEL
) -> Calibration:
    """The figures of a judge, with intervals that draw pairs.

    Raises:
        ValueError: There is no judgement.
    """
    if not judgements:
        raise ValueError("a judge is calibrated on at least one labelled pair")
    told = [one for one in judgements if one.choice is not None]
    lost = len(judgements) - len(told)

    def mean(values: Sequence[float], clusters: Sequence[str]) -> Interval:
        return clustered_mean(np.array(values), clusters, seed, replicates, level) if values else UNDEFINED

    pairs = [one.pair.prompt for one in told]
    firsts = mean([one.firstness for one in told], pairs)
    orders = _agreements(told, lambda one: (one.pair.prompt, one.repeat))
    repeats = _agreements(told, lambda one: (one.pair.prompt, one.better_first))
    return Calibration(
        pairs=len({one.pair.prompt for one in judgements}),
        accuracy=mean([one.score for one in told], pairs),
        position_bias=_shifted(firsts, -0.5),
        length_bias=_length_bias(told, seed, replicates, level),
        order_disagreement=_complement(mean([same for _, same in orders], [pair for pair, _ in orders])),
        self_consistency=mean([same for _, same in repeats], [pair for pair, _ in repeats]),
        unscored=wilson(lost, len(judgements), level),
    )


def shortcomings(calibration: Calibration, bar: Bar) -> list[str]:
    """Why a judge may not select, in words; empty where it may."""
    found: list[str] = []
    accuracy = calibration.accuracy
    if accuracy.low is None or accuracy.low < bar.accuracy:
        found.append(
            f"accuracy {_shown(accuracy)} on {calibration.pairs} labelled pairs: not shown to be at least"
            f" {bar.accuracy:.0%}"
        )
    for name, value, limit in (
        ("position bias", calibration.position_bias, bar.position_bias),
        ("length bias", calibration.length_bias, bar.length_bias),
    ):
        if value.estimate is None or abs(value.estimate) > limit:
            found.append(f"{name} {_shown(value)}: must be known and within {limit:.0%} of none")
    for name, value, limit in (
        ("order disagreement", calibration.order_disagreement, bar.order_disagreement),
        ("unscored replies", calibration.unscored, bar.unscored),
    ):
        if value.estimate is None or value.estimate > limit:
            found.append(f"{name} {_shown(value)}: must be known and at most {limit:.0%}")
    consistency = calibration.self_consistency
    if consistency.estimate is None or consistency.estimate < bar.self_consistency:
        found.append(
            f"self-consistency {_shown(consistency)}: must be known and at least {bar.self_consistency:.0%}"
        )
    return found


def _agreements(
    told: Sequence[Judgement], key: Callable[[Judgement], tuple[str, int]]
) -> list[tuple[str, float]]:
    groups: dict[tuple[str, int], list[Judgement]] = {}
    for one in told:
        groups.setdefault(key(one), []).append(one)
    return [
        (pair, float(len({one.score for one in group}) == 1))
        for (pair, _), group in groups.items()
        if len(group) > 1
    ]


def _length_bias(told: Sequence[Judgement], seed: int, replicates: int, level: float) -> Interval:
    """Half the sum of P(longer | longer is better) and P(longer | shorter is better), minus one half."""
    unequal = [one for one in told if len(one.pair.better) != len(one.pair.worse)]
    places = {name: place for place, name in enumerate(dict.fromkeys(one.pair.prompt for one in unequal))}
    chosen: Floats = np.zeros((len(places), 2))
    shown: Floats = np.zeros((len(places), 2))
    for one in unequal:
        longer_is_better = len(one.pair.better) > len(one.pair.worse)
        cell = places[one.pair.prompt], int(longer_is_better)
        chosen[cell] += one.score if longer_is_better else 1 - one.score
        shown[cell] += 1
    if not len(places) or not shown.sum(axis=0).all():
        return UNDEFINED
    estimate = float((chosen.sum(axis=0) / shown.sum(axis=0)).sum() / 2 - 0.5)
    drawn = draw_clusters(len(places), replicates, seed)
    bottom: Floats = drawn @ shown
    whole = bottom.all(axis=1)
    if not whole.all():
        return Interval(estimate, None, None)
    return Interval(estimate, *percentile_ends(((drawn @ chosen) / bottom).sum(axis=1) / 2 - 0.5, level))


def _shifted(interval: Interval, by: float) -> Interval:
    return Interval(
        *(None if end is None else end + by for end in (interval.estimate, interval.low, interval.high))
    )


def _complement(interval: Interval) -> Interval:
    return Interval(
        *(None if end is None else 1 - end for end in (interval.estimate, interval.high, interval.low))
    )


def _shown(interval: Interval) -> str:
    if interval.estimate is None:
        return "unknown"
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:.1%}"
    return f"{interval.estimate:.1%} [{interval.low:.1%}, {interval.high:.1%}]"
