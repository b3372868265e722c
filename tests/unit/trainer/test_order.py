"""Order: a pure function of seed and step, every example once an epoch."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.order import examples_of_step, steps_of

FIRST = [0, 2, 5, 4, 3, 9, 7, 6, 8, 1]
SECOND = [8, 0, 7, 9, 1, 4, 6, 3, 2, 5]


@given(
    seed=st.integers(0, 2**40),
    examples=st.integers(1, 40),
    batch=st.integers(1, 60),
    epochs=st.integers(1, 3),
)
def test_every_epoch_is_a_permutation(seed: int, examples: int, batch: int, epochs: int) -> None:
    """Wherever batches end, the sequence they read is one permutation after another."""
    steps = steps_of(epochs, examples=examples, batch=batch)
    read = list(
        chain.from_iterable(
            examples_of_step(seed, step, examples=examples, batch=batch) for step in range(steps)
        )
    )
    assert len(read) - batch < epochs * examples <= len(read)
    for epoch in range(epochs):
        assert sorted(read[epoch * examples : (epoch + 1) * examples]) == list(range(examples))


def test_the_order_is_fixed_for_ever() -> None:
    """These values were written down once: a resumed round on another version must read the same examples."""
    assert examples_of_step(7, 0, examples=10, batch=10) == FIRST
    assert examples_of_step(7, 1, examples=10, batch=10) == SECOND


def test_seed_and_epoch_change_the_order() -> None:
    first = examples_of_step(1, 0, examples=100, batch=100)
    assert first != examples_of_step(1, 1, examples=100, batch=100)
    assert first != examples_of_step(2, 0, examples=100, batch=100)
    assert first != list(range(100))


def test_a_step_does_not_depend_on_those_before_it() -> None:
    later = examples_of_step(3, 17, examples=50, batch=8)
    for step in range(17):
        examples_of_step(3, step, examples=50, batch=8)
    assert examples_of_step(3, 17, examples=50, batch=8) == later


@pytest.mark.parametrize(
    ("epochs", "examples", "batch", "steps"),
    [(1, 10, 4, 3), (2, 10, 4, 5), (0.5, 10, 5, 1), (0.01, 10, 5, 1)],
)
def test_steps(epochs: float, examples: int, batch: int, steps: int) -> None:
    assert steps_of(epochs, examples=examples, batch=batch) == steps


@pytest.mark.parametrize("wrong", [(-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, 0, 1), (0, 0, 1, 0)])
def test_numbers_out_of_range_are_refused(wrong: tuple[int, int, int, int]) -> None:
    seed, step, examples, batch = wrong
    with pytest.raises(ValueError, match="no order for"):
        examples_of_step(seed, step, examples=examples, batch=batch)
