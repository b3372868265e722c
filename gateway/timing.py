"""How long a request took, and how evenly its tokens came."""

import math
import time
from collections.abc import Sequence


class Stopwatch:
    """Times one request; everything in milliseconds from its arrival.

    Gaps between pieces of text are taken for each choice by itself, since choices of one answer alternate.
    """

    __slots__ = ("_first", "_gaps", "_last", "_started")

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last: dict[int, float] = {}
        self._gaps: list[float] = []

    def anew(self) -> None:
        """Another engine begins from the start; the time since the request's arrival runs on."""
        self._first = None
        self._last.clear()
        self._gaps.clear()

    def piece(self, index: int) -> None:
        """A piece of text of this choice arrived."""
        now = time.perf_counter()
        before = self._last.get(index)
        if before is not None:
            self._gaps.append(now - before)
        elif self._first is None:
            self._first = now
        self._last[index] = now

    @property
    def duration_ms(self) -> float:
        """Since the arrival."""
        return (time.perf_counter() - self._started) * 1000

    @property
    def ttft_ms(self) -> float | None:
        """Until the first piece."""
        return None if self._first is None else (self._first - self._started) * 1000

    def gap_ms(self, share: float) -> float | None:
        """Quantile of the gaps; None when there was none."""
        return quantile([gap * 1000 for gap in self._gaps], share) if self._gaps else None


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (inverted distribution function).

    Args:
        values: At least one.
        share: In (0, 1].
    """
    return sorted(values)[math.ceil(share * len(values)) - 1]
