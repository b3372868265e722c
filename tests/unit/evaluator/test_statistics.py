"""Statistics of evaluation against hand values, SciPy, and what must hold whatever the data."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from evaluator.statistics.buckets import by_length_ratio
from evaluator.statistics.interval import Interval
from evaluator.statistics.length_controlled import LengthedVerdict, length_controlled
from evaluator.statistics.multiple import flip_test
from evaluator.statistics.wilson import wilson
from evaluator.statistics.winrate import NothingCompared, Verdict, paired_difference, win_rate

RESULTS = ("win", "tie", "loss")


def verdicts(wins: int, losses: int, ties: int) -> list[Verdict]:
    results = ["win"] * wins + ["loss"] * losses + ["tie"] * ties
    return [Verdict(f"p{place}", result) for place, result in enumerate(results)]


def test_none_of_fifty():
    assert wilson(0, 50) == Interval(0.0, 0.0, pytest.approx(0.0713476, abs=1e-6))


def test_wilson_of_nothing_is_null_and_of_nonsense_an_error():
    assert wilson(0, 0) == Interval(None, None, None)
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(pair: tuple[int, int]):
    successes, total = pair
    ours = wilson(successes, total)
    theirs = stats.binomtest(successes, total).proportion_ci(method="wilson")
    assert (ours.low, ours.high) == (
        pytest.approx(theirs.low, abs=1e-9),
        pytest.approx(theirs.high, abs=1e-9),
    )


def test_one_win_one_loss_and_ties_are_half():
    result = win_rate(verdicts(1, 1, 98))
    assert result.rate.estimate == 0.5
    assert (result.wins, result.losses, result.ties, result.prompts) == (1, 1, 98, 100)


def test_nothing_compared_is_an_error():
    with pytest.raises(NothingCompared, match="same prompts"):
        win_rate([])


def test_unanimous_verdicts_still_have_an_interval_with_width():
    result = win_rate(verdicts(50, 0, 0)).rate
    assert result == Interval(1.0, pytest.approx(1 - 0.0713476, abs=1e-6), 1.0)
    ties = win_rate(verdicts(0, 0, 50)).rate
    assert ties == wilson(25, 50)


def test_one_prompt_has_no_interval():
    assert win_rate([Verdict("p", "win"), Verdict("p", "loss")]).rate == Interval(0.5, None, None)


def test_bootstrap_agrees_with_the_normal_interval_where_that_is_good():
    result = win_rate(verdicts(600, 400, 0), replicates=4000).rate
    half = 1.96 * math.sqrt(0.24 / 1000)
    assert result.low == pytest.approx(0.6 - half, abs=0.004)
    assert result.high == pytest.approx(0.6 + half, abs=0.004)


def test_verdicts_repeated_on_one_prompt_do_not_narrow_the_interval():
    once = win_rate(verdicts(30, 20, 0)).rate
    repeated = win_rate([one for one in verdicts(30, 20, 0) for _ in range(10)]).rate
    assert once.low is not None
    assert repeated.low == pytest.approx(once.low, abs=0.021)
    assert repeated.high == pytest.approx(once.high, abs=0.021)


def test_order_and_repetition_of_the_call_change_nothing():
    told = verdicts(7, 5, 3)
    assert win_rate(told, seed=3) == win_rate(told[::-1], seed=3)


def test_paired_difference_of_equal_scores_is_zero():
    scores = np.array([1.0, 0.0, 1.0])
    result = paired_difference(scores, scores, ["a", "b", "c"])
    most = 1.959964**2 / (3 + 1.959964**2)
    assert result == Interval(0.0, pytest.approx(-most, abs=1e-6), pytest.approx(most, abs=1e-6))
    many = paired_difference(np.ones(200), np.ones(200), [str(place) for place in range(200)])
    assert many.high == pytest.approx(0.018846, abs=1e-5)


def lengthed(count: int, seed: int, advantage: float, bias: float) -> list[LengthedVerdict]:
    generator = np.random.default_rng(seed)
    ours = generator.integers(20, 300, count)
    theirs = generator.integers(20, 200, count)
    difference = (ours - theirs).astype(float)
    odds = advantage + bias * np.tanh(difference / difference.std())
    won = generator.random(count) < 1 / (1 + np.exp(-odds))
    return [
        LengthedVerdict(
            f"p{place}", "win" if won[place] else "loss", float(ours[place]), float(theirs[place])
        )
        for place in range(count)
    ]


def test_length_control_equals_the_raw_rate_at_equal_lengths():
    told = [
        LengthedVerdict(f"p{place}", result, 40 + place, 40 + place)
        for place, result in enumerate(["win"] * 7 + ["loss"] * 4 + ["tie"] * 2)
    ]
    assert length_controlled(told, seed=1).rate == win_rate(told, seed=1).rate


def test_length_control_finds_no_gain_where_length_alone_wins():
    told = lengthed(1500, 4, advantage=0, bias=2)
    raw, controlled = win_rate(told).rate, length_controlled(told, replicates=200)
    assert raw.low is not None
    assert raw.low > 0.55
    assert controlled.rate.low is not None
    assert controlled.rate.high is not None
    assert controlled.rate.low < 0.5 < controlled.rate.high
    assert controlled.slope == pytest.approx(2, abs=0.4)


@pytest.mark.parametrize("difficulty", [False, True])
def test_length_control_is_the_optimum_that_scipy_finds(difficulty: bool):
    generator = np.random.default_rng(8)
    told = [
        LengthedVerdict(
            one.prompt,
            one.result,
            one.candidate_length,
            one.other_length,
            float(generator.normal()) if difficulty else None,
        )
        for one in lengthed(120, 5, advantage=0.5, bias=1)
    ]
    difference = np.array([one.candidate_length - one.other_length for one in told])
    columns = [np.ones(len(told)), np.tanh(difference / difference.std())]
    if difficulty:
        columns.append(np.array([one.difficulty for one in told]))
    design = np.stack(columns, axis=1)
    scores = np.array([one.score for one in told])

    def loss(parameters: np.ndarray) -> float:
        odds = design @ parameters
        return float((np.logaddexp(0, odds) - scores * odds).sum() + 0.005 * (parameters[1:] ** 2).sum())

    best = optimize.minimize(loss, np.zeros(design.shape[1]), method="BFGS", options={"gtol": 1e-7}).x
    design[:, 1] = 0
    ours = length_controlled(told, replicates=10)
    assert ours.rate.estimate == pytest.approx(float((1 / (1 + np.exp(-design @ best))).mean()), abs=1e-5)
    assert ours.slope == pytest.approx(best[1], abs=1e-4)


def test_length_control_is_null_where_length_and_quality_cannot_be_told_apart():
    told = [LengthedVerdict(f"p{n}", "win" if n % 3 else "loss", 50 + n, 40 + n) for n in range(20)]
    result = length_controlled(told)
    assert result.rate == Interval(None, None, None)
    assert result.reason is not None


def test_length_control_survives_total_separation_and_unanimity():
    separated = [LengthedVerdict(f"p{n}", "win" if n > 9 else "loss", 10.0 + n, 19.5) for n in range(20)]
    assert length_controlled(separated, replicates=100).rate.estimate == pytest.approx(0.5, abs=0.05)
    unanimous = [LengthedVerdict(f"p{n}", "win", 10.0 + n, 19.5) for n in range(20)]
    assert length_controlled(unanimous).rate == wilson(20, 20)


def test_length_control_interval_covers_the_truth_about_as_often_as_it_says():
    covered = 0
    for seed in range(40):
        rate = length_controlled(lengthed(150, seed, 0.4, 1.5), replicates=200).rate
        assert rate.low is not None
        assert rate.high is not None
        covered += rate.low <= 1 / (1 + math.exp(-0.4)) <= rate.high
    assert covered >= 34


def test_flip_test_of_one_candidate_is_the_exact_sign_test():
    wins, losses = 14, 4
    scores = np.array([[0.5]] * wins + [[-0.5]] * losses)
    p_value = flip_test(scores, [str(place) for place in range(18)], flips=40_000).raw[0]
    assert p_value == pytest.approx(stats.binomtest(wins, 18, alternative="greater").pvalue, abs=0.002)


def test_flip_test_of_copies_costs_nothing():
    generator = np.random.default_rng(0)
    scores = generator.choice([-0.5, 0.0, 0.5], size=(60, 1), p=[0.25, 0.25, 0.5])
    copies = flip_test(np.repeat(scores, 6, axis=1), [str(place) for place in range(60)])
    assert copies.adjusted == copies.raw


def test_flip_test_keeps_the_family_error():
    generator = np.random.default_rng(1)
    clusters = [str(place) for place in range(40)]
    false = sum(
        min(flip_test(generator.choice([-0.5, 0.5], size=(40, 8)), clusters, flips=399).adjusted) <= 0.05
        for _ in range(200)
    )
    assert false <= 18


def test_flip_test_of_all_ties_is_no_evidence():
    assert flip_test(np.zeros((10, 2)), list("abcdefghij"), flips=99).adjusted == (1.0, 1.0)


def test_buckets_by_hand():
    told = [
        LengthedVerdict("a", "win", 10, 100),
        LengthedVerdict("b", "loss", 100, 100),
        LengthedVerdict("c", "tie", 125, 100),
        LengthedVerdict("d", "win", 5, 0),
    ]
    buckets = by_length_ratio(told, replicates=10)
    assert [(one.low, one.high) for one in buckets] == [
        (None, 0.5),
        (0.5, 0.8),
        (0.8, 1.25),
        (1.25, 2.0),
        (2.0, None),
    ]
    rates = [None if one.result is None else one.result.rate.estimate for one in buckets]
    assert rates == [1.0, None, 0.0, 0.5, 1.0]


@settings(max_examples=50)
@given(
    st.lists(
        st.builds(
            LengthedVerdict,
            st.sampled_from("abcdef"),
            st.sampled_from(RESULTS),
            st.integers(0, 50).map(float),
            st.integers(0, 50).map(float),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_the_verdicts_rates_lie_in_their_intervals(told: list[LengthedVerdict]):
    for interval in (win_rate(told, replicates=50).rate, length_controlled(told, replicates=50).rate):
        if interval.estimate is not None:
            assert 0 <= interval.estimate <= 1
        if interval.low is not None and interval.high is not None:
            assert 0 <= interval.low <= interval.high <= 1
    buckets = by_length_ratio(told, replicates=10)
    assert sum(one.result.wins + one.result.ties + one.result.losses for one in buckets if one.result) == len(
        told
    )
