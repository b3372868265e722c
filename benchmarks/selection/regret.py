"""Regret of a choice: the true win rate of the best to choose, staying included, minus the chosen one's."""

from dataclasses import dataclass

import numpy as np

from benchmarks.selection.families import CHECKPOINTS, FAMILIES, PROMPTS, Run, draw
from evaluator.selection import Candidate, Primary, select
from evaluator.statistics.multiple import flip_test
from evaluator.statistics.winrate import clustered_mean

FLIPS = 999
REPLICATES = 100
STAY = 0.5


@dataclass(frozen=True)
class Regret:
    """Mean regrets of a family, in points of true win rate.

    Attributes:
        family: Its name.
        runs: How many rounds were drawn.
        selection: Of `evaluator.selection`; staying with production is a choice.
        selection_error: Standard error of that mean.
        highest: Of the highest estimate, always proposed.
        by_proxy: Of the highest proxy.
        last: Of the last checkpoint.
        none_proposed: Share of rounds in which selection proposed nothing.
        worse_proposed: Share of rounds in which it proposed one truly worse than production.
    """

    family: str
    runs: int
    selection: float
    selection_error: float
    highest: float
    by_proxy: float
    last: float
    none_proposed: float
    worse_proposed: float


def measure(family: str, runs: int, seed: int) -> Regret:
    """Draws rounds of a family and chooses in each by four rules."""
    generator = np.random.default_rng([seed, list(FAMILIES).index(family)])
    table = np.array([_regrets(draw(family, generator)) for _ in range(runs)])
    means = table.mean(axis=0)
    error = table[:, 0].std(ddof=1) / np.sqrt(runs)
    return Regret(
        family,
        runs,
        float(100 * means[0]),
        float(100 * error),
        float(100 * means[1]),
        float(100 * means[2]),
        float(100 * means[3]),
        float(means[4]),
        float(means[5]),
    )


def choose(run: Run) -> int | None:
    """The place of the checkpoint that selection proposes."""
    clusters = [str(place) for place in range(PROMPTS)]
    adjusted = flip_test(run.scores - STAY, clusters, flips=FLIPS).adjusted
    candidates = [
        Candidate(
            policy=str(place),
            step=place,
            kl=float(run.kl[place]),
            primary=Primary(
                "win rate",
                clustered_mean(run.scores[:, place], clusters, replicates=REPLICATES),
                STAY,
                adjusted[place],
            ),
        )
        for place in range(CHECKPOINTS)
    ]
    chosen = select(candidates).chosen
    return None if chosen is None else int(chosen)


def _regrets(run: Run) -> list[float]:
    best = max(STAY, float(run.truth.max()))
    place = choose(run)
    got = STAY if place is None else float(run.truth[place])
    return [
        best - got,
        best - float(run.truth[run.scores.mean(axis=0).argmax()]),
        best - float(run.truth[run.proxy.argmax()]),
        best - float(run.truth[-1]),
        float(place is None),
        float(got < STAY),
    ]
