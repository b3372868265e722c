"""Which of many possible comparisons to make: spread evenly over strata, and the same on the same input."""

import hashlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

LENGTHS = ((200, "short"), (1_000, "medium"))
LONG = "long"

T = TypeVar("T")


def length_class(characters: int) -> str:
    """`short` below 200 characters, `medium` below 1,000, else `long`."""
    return next((name for bound, name in LENGTHS if characters < bound), LONG)


def spread(items: Iterable[T], stratum: Callable[[T], Hashable], name: Callable[[T], str]) -> Iterator[T]:
    """The items, one of each stratum in turn, so that however few are taken, no stratum crowds out another.

    Args:
        items: What to choose from.
        stratum: The stratum of an item.
        name: Its identity; within a stratum the order is that of the identity's hash, hence arbitrary and
            repeatable.
    """
    queues: dict[Hashable, deque[T]] = {}
    for item in sorted(items, key=lambda item: hashlib.blake2b(name(item).encode()).digest()):
        queues.setdefault(stratum(item), deque()).append(item)
    while queues:
        for key in list(queues):
            yield queues[key].popleft()
            if not queues[key]:
                del queues[key]
