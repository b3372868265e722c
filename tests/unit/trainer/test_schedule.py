"""The learning rate and the KL schedule, by hand and by their bounds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import OptimConfig
from trainer.schedule import KlSchedule, learning_rate


def test_a_linear_schedule_by_hand() -> None:
    """Ten steps, two of warm-up: 1/2, 1, then 8 steps falling by 1/8 of the way from 1 to 0.2 each."""
    config = OptimConfig(lr=2.0, schedule="linear", warmup=0.2, final_lr_share=0.2)
    rates = [learning_rate(config, step, 10) for step in range(10)]
    assert rates[:3] == [1.0, 2.0, 2.0]
    assert rates[3] == pytest.approx(2.0 - 1.6 / 8)
    assert rates[9] == pytest.approx(2.0 - 1.6 * 7 / 8)


def test_a_cosine_schedule_by_hand() -> None:
    """No warm-up, four steps: the cosine's quarters give 1, 0.853553, 0.5, 0.146447."""
    config = OptimConfig(lr=1.0, schedule="cosine", warmup=0.0)
    rates = [learning_rate(config, step, 4) for step in range(4)]
    assert rates == pytest.approx([1.0, 0.8535533905932737, 0.5, 0.14644660940672627])


@settings(deadline=None)
@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 60),
)
def test_a_rate_is_never_zero_nor_above_the_highest(
    schedule: str, warmup: float, share: float, total: int
) -> None:
    config = OptimConfig(lr=1e-3, schedule=schedule, warmup=warmup, final_lr_share=share)  # type: ignore[arg-type]
    rates = [learning_rate(config, step, total) for step in range(total)]
    assert all(0 < rate <= 1e-3 * (1 + 1e-12) for rate in rates)
    behind = rates[max(0, math.ceil(warmup * total) - 1) :]
    assert behind == sorted(behind, reverse=True)


def test_each_distance_is_reached_once() -> None:
    schedule = KlSchedule([0.5, 1.0, 4.0], budget=5.0)
    assert [schedule.passes(kl) for kl in (0.1, 0.6, 0.4, 0.9, 4.5, 4.6)] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert schedule.reached == 3
    assert [schedule.spent(kl) for kl in (4.9, 5.0, 5.1)] == [False, False, True]
    assert not KlSchedule([]).spent(1e9)


def test_a_resumed_schedule_goes_on_where_it_was() -> None:
    assert not KlSchedule([0.5, 1.0], reached=1).passes(0.7)
    assert KlSchedule([0.5, 1.0], reached=1).passes(1.0)
