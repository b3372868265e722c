"""Packing: rows within capacity, alike in size, equally many for each rank; batches of like length."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.packing import pack, padded_batches


def test_longest_first_into_the_emptiest_row() -> None:
    """20 tokens need two rows of 10: 7 | 6, then 4 to the second, 3 to the first: 10 and 10."""
    assert pack([3, 4, 6, 7], 10) == [[[0, 3], [1, 2]]]


def test_what_all_begin_with_is_paid_once_a_row() -> None:
    """Three examples of 6 tokens that share 4: 4 + 3 * 2 = 10 fit in one row; unshared two rows are
    needed.
    """
    assert pack([6, 6, 6], 10, common=4) == [[[0, 1, 2]]]
    assert [len(rank) for rank in pack([6, 6, 6], 10)] == [3]


def test_an_example_too_long_has_a_row_to_itself() -> None:
    assert pack([50, 3, 3], 10) == [[[0], [1, 2]]]


def test_ranks_without_examples_get_an_empty_row() -> None:
    assert pack([5], 10, ranks=3) == [[[0]], [[]], [[]]]


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    capacity=st.integers(1, 100),
    ranks=st.integers(1, 4),
)
def test_packs(sizes: list[int], capacity: int, ranks: int) -> None:
    packed = pack(sizes, capacity, ranks=ranks)
    rows = list(chain.from_iterable(packed))
    assert len(packed) == ranks
    assert len({len(rank) for rank in packed}) == 1
    assert sorted(chain.from_iterable(rows)) == list(range(len(sizes)))
    assert all(row == sorted(row) for row in rows)
    loads = [sum(sizes[place] for place in row) for row in rows]
    assert all(load <= capacity or len(row) == 1 for load, row in zip(loads, rows, strict=True))
    assert max(loads) - min(loads) <= max(sizes)
    per_rank = len(packed[0])
    lower = max(1, -(-sum(sizes) // (ranks * max(capacity, *sizes))))
    assert per_rank >= lower
    assert pack(sizes, capacity, ranks=ranks) == packed


@pytest.mark.parametrize(
    ("sizes", "capacity", "ranks", "common"), [([], 5, 1, 0), ([3], 0, 1, 0), ([3], 5, 0, 0), ([3], 5, 1, 4)]
)
def test_what_cannot_be_packed_is_refused(sizes: list[int], capacity: int, ranks: int, common: int) -> None:
    with pytest.raises(ValueError, match="cannot pack"):
        pack(sizes, capacity, ranks=ranks, common=common)


def test_batches_of_like_length() -> None:
    """Longest first within 12 tokens: 7 alone (two would be 14), 6 and 5 as 2 * 6, 2, 2 and 1 as 3 * 2."""
    assert padded_batches([2, 7, 6, 1, 5, 2], 12) == [[1], [2, 4], [0, 5, 3]]


@given(lengths=st.lists(st.integers(1, 50), max_size=40), budget=st.integers(1, 200))
def test_batches_stay_within_budget(lengths: list[int], budget: int) -> None:
    batches = padded_batches(lengths, budget)
    assert sorted(chain.from_iterable(batches)) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[place] for place in batch)
        assert len(batch) == 1 or longest * len(batch) <= budget
