"""An estimate with its interval, and the draws of clusters that most intervals come from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
REPLICATES = 2_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the ends of its interval; each null where it is undefined."""

    estimate: float | None
    low: float | None
    high: float | None


UNDEFINED = Interval(None, None, None)


def cluster_places(clusters: Sequence[str]) -> tuple[NDArray[np.intp], int]:
    """The place of each observation's cluster, in order of first sight, and how many clusters there are."""
    place = {name: index for index, name in enumerate(dict.fromkeys(clusters))}
    return np.array([place[name] for name in clusters], dtype=np.intp), len(place)


def draw_clusters(clusters: int, replicates: int, seed: int) -> Floats:
    """How often each replicate of the cluster bootstrap draws each cluster: (replicates, clusters).

    Clusters are drawn with replacement, all observations of one together (Field and Welsh 2007,
    "Bootstrapping clustered data", section 2).
    """
    generator = np.random.default_rng(seed)
    return generator.multinomial(clusters, np.full(clusters, 1 / clusters), size=replicates).astype(
        np.float64
    )


def percentile_ends(values: Floats, level: float = LEVEL) -> tuple[float, float]:
    """Ends of the percentile interval of bootstrap values."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
