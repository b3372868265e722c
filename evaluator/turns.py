"""Taking from groups in turn, so that however few are taken, no large group crowds out the others."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")


def in_turn(items: Iterable[T], group: Callable[[T], Hashable]) -> list[T]:
    """The items, one of each group in turn; within a group, and among groups, in the order they come."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(group(item), []).append(item)
    longest = max((len(members) for members in groups.values()), default=0)
    return [members[place] for place in range(longest) for members in groups.values() if place < len(members)]
