"""Paired measurements on a noisy machine: A B B A, a ratio for each pair, the median with its interval."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")
BOOTSTRAPS = 10_000


@dataclass(frozen=True)
class PairedRatio:
    """Ratio of the candidate's figure to the peer's, pair by pair.

    Attributes:
        pairs: Number of pairs.
        median: Median ratio.
        low: Lower end of the 95% percentile bootstrap interval of the median.
        high: Its upper end.
        spread: Interquartile range of the ratios: the noise.
    """

    pairs: int
    median: float
    low: float
    high: float
    spread: float


def paired_ratio(candidate: list[float], peer: list[float], seed: int = 0) -> PairedRatio:
    """Summarises paired figures.

    Raises:
        ValueError: The lists differ in length, are empty, or a peer's figure is not positive.
    """
    if len(candidate) != len(peer) or not candidate or min(peer) <= 0:
        raise ValueError("paired figures need equally many positive values on both sides")
    ratios = np.asarray(candidate) / np.asarray(peer)
    draws = np.random.default_rng(seed).choice(ratios, size=(BOOTSTRAPS, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    q1, q3 = np.quantile(ratios, [0.25, 0.75])
    return PairedRatio(len(ratios), float(np.median(ratios)), float(low), float(high), float(q3 - q1))


async def interleaved(
    pairs: int, candidate: Callable[[int], Awaitable[T]], peer: Callable[[int], Awaitable[T]]
) -> tuple[list[T], list[T]]:
    """Runs pairs in the order A B B A A B B A, so that a drift of the machine falls on both alike.

    Args:
        pairs: How many.
        candidate: Makes one run of A; gets a number that no other run gets.
        peer: Makes one run of B, likewise.
    """
    of_candidate: list[T] = []
    of_peer: list[T] = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        for place, is_candidate in enumerate(order):
            run = 2 * pair + place
            if is_candidate:
                of_candidate.append(await candidate(run))
            else:
                of_peer.append(await peer(run))
    return of_candidate, of_peer
