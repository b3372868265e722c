"""One arm's measurements of one metric, kept by user: what the statistics read."""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurements with the user of each.

    Attributes:
        units: The users (or sessions, or keys) with a measurement, by their first one.
        user: Place in `units` of each measurement, shape [answers].
        value: The measurements, finite, shape [answers].
        failed: How many gave no finite number.
    """

    units: tuple[Hashable, ...]
    user: NDArray[np.int64]
    value: Floats
    failed: int

    @classmethod
    def of(cls, rows: Iterable[tuple[Hashable, float | None]]) -> Self:
        """Gathers rows in the order of their time.

        Args:
            rows: User and measurement; None, NaN and infinity are failed measurements.
        """
        return cls.counted((unit, measured, 1) for unit, measured in rows)

    @classmethod
    def counted(cls, rows: Iterable[tuple[Hashable, float | None, int]]) -> Self:
        """Gathers rows that stand for several measurements each.

        Args:
            rows: User, measurement and how often it was made, in the order of its first time; None, NaN and
                infinity are failed measurements.
        """
        places: dict[Hashable, int] = {}
        user: list[int] = []
        value: list[float] = []
        often: list[int] = []
        failed = 0
        for unit, measured, times in rows:
            if measured is None or not math.isfinite(measured):
                failed += times
                continue
            user.append(places.setdefault(unit, len(places)))
            value.append(float(measured))
            often.append(times)
        counts = np.array(often, dtype=np.int64)
        users = np.repeat(np.array(user, dtype=np.int64), counts)
        return cls(tuple(places), users, np.repeat(np.array(value, dtype=np.float64), counts), failed)

    def within(self, most: float) -> Self:
        """The measurements from 0 to `most`; those outside have failed, and so have users with no other."""
        inside = (self.value >= 0) & (self.value <= most)
        if inside.all():
            return self
        places, user = np.unique(self.user[inside], return_inverse=True)
        units = tuple(self.units[place] for place in places)
        return type(self)(
            units, user.astype(np.int64), self.value[inside], self.failed + int((~inside).sum())
        )

    def user_means(self, cap: float = math.inf) -> Floats:
        """Each user's mean, by first measurement, shape [users].

        Args:
            cap: Larger measurements count as this.
        """
        return self._means(np.minimum(self.value, cap))

    def user_shares_up_to(self, bound: float) -> Floats:
        """Each user's share of measurements of at most `bound`, shape [users]."""
        return self._means((self.value <= bound).astype(np.float64))

    def _means(self, values: Floats) -> Floats:
        sums = np.bincount(self.user, weights=values, minlength=len(self.units))
        return np.divide(sums, np.bincount(self.user, minlength=len(self.units)))
