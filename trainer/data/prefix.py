"""The one comparison that boundaries and shared beginnings rest on."""

from collections.abc import Sequence


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading items two sequences share."""
    pairs = zip(left, right, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
