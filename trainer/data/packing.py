"""Which examples share a row, and which share a padded batch."""

from collections.abc import Sequence
from heapq import heapify, heapreplace


def pack(sizes: Sequence[int], capacity: int, *, ranks: int = 1, common: int = 0) -> list[list[list[int]]]:
    """Divides a step's examples into rows of at most `capacity` tokens, alike in size, for each rank.

    Rows are filled longest example first, each into the row that is emptiest (Graham 1969, "Bounds on
    multiprocessing timing anomalies"), with the smallest number of rows per rank that fits. Every rank gets
    the same number of rows, since engines that shard a model run in step; where examples are too few some
    rows are empty. An example longer than `capacity` has a row to itself.

    Args:
        sizes: Tokens of each example.
        capacity: Tokens of a row.
        ranks: Processes that share the step.
        common: Tokens that all examples begin with, and that a row holds once (see `branches`).

    Returns:
        For each rank its rows; for each row the places of its examples in `sizes`, ascending.

    Raises:
        ValueError: There are no examples, or a number is out of range.
    """
    if not sizes or capacity < 1 or ranks < 1 or not 0 <= common <= min(sizes):
        raise ValueError(
            f"cannot pack {len(sizes)} examples into rows of {capacity} tokens for {ranks} ranks "
            f"with {common} tokens in common"
        )
    own = [size - common for size in sizes]
    room = max(capacity - common, 1)
    largest = max(room, *own)
    per_rank = max(1, -(-sum(own) // (largest * ranks)))
    while True:
        rows = _fill(own, per_rank * ranks)
        if all(len(row) <= 1 or sum(own[place] for place in row) <= room for row in rows):
            break
        per_rank += 1
    rows.sort(key=lambda row: -sum(own[place] for place in row))
    return [rows[rank::ranks] for rank in range(ranks)]


def padded_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups sequences of like length so that no batch, padded to its longest, exceeds `budget` tokens.

    Args:
        lengths: Tokens of each sequence.
        budget: Tokens of a batch with its padding; a longer sequence is a batch by itself.

    Returns:
        Batches of places in `lengths`, longest sequences first: a batch that does not fit fails at once.
    """
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(place)
        else:
            batches.append([place])
    return batches


def _fill(sizes: Sequence[int], rows: int) -> list[list[int]]:
    filled: list[list[int]] = [[] for _ in range(rows)]
    levels = [(0, row) for row in range(rows)]
    heapify(levels)
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        level, row = levels[0]
        filled[row].append(place)
        heapreplace(levels, (level + sizes[place], row))
    return [sorted(row) for row in filled]
