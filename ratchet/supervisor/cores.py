"""Which cores an engine computes on: on a small machine the engines share them without overlap."""

import os


def usable_cores() -> list[int]:
    """Cores this process may use, lowest first."""
    return sorted(os.sched_getaffinity(0))


def choose(cores: list[int], engines: int, wish: int | None, used: list[int]) -> list[int]:
    """Cores for an engine that starts now.

    From four cores on, one is left to the gateway, the workers and PostgreSQL.

    Args:
        cores: Cores of this machine that we may use.
        engines: Engines wanted now, this one included.
        wish: Cores of one engine, as the operator set them; None for an equal part.
        used: Cores of the engines that run, a core once for each engine on it.

    Returns:
        At least one core: those with the fewest engines, lowest first.
    """
    free_for_engines = cores[1:] if len(cores) >= 4 else cores
    count = wish or max(1, len(free_for_engines) // max(1, engines))
    by_load = sorted(free_for_engines, key=lambda core: (used.count(core), core))
    return sorted(by_load[:count])
