"""What is told of a reward model, against values by hand, scipy, and simulation."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ratchet.errors import PolicyRefused
from trainer.errors import NoUsableRows
from trainer.reward import statistics
from trainer.reward.drift import drift
from trainer.reward.report import PairScores, calibration, grouped, report
from trainer.reward.statistics import Measured, change, resampled, share, wilson


def scores_of(margin: np.ndarray, **changes: object) -> PairScores:
    """Pairs of equal length, each with a prompt of its own."""
    n = len(margin)
    values = {
        "chosen": margin,
        "rejected": np.zeros(n),
        "chosen_tokens": np.full(n, 5),
        "rejected_tokens": np.full(n, 5),
        "groups": np.arange(n),
    }
    return PairScores(**values | changes)


def test_the_figures_of_four_pairs_by_hand() -> None:
    """Margins 1, -1, 0, 2: right, wrong, tie, right, so 2.5 of 4; Wilson of 0.625 in 4 is [0.218, 0.910]."""
    found = report(scores_of(np.array([1.0, -1.0, 0.0, 2.0]), reference=np.array([0.5, 0.0, 1.0, 0.0])))
    assert (found["pairs"], found["prompts"], found["ties"]) == (4, 4, 1)
    assert found["accuracy"] == pytest.approx({"value": 0.625, "low": 0.2180, "high": 0.9067}, abs=5e-3)
    assert found["margin"]["mean"] == 0.5
    assert found["margin"]["quantiles"]["0.5"] == 0.5
    assert sum(found["margin"]["histogram"]["counts"]) == 4
    differences = found["difference_from_reference"]
    assert differences["chosen"]["mean"] == pytest.approx((0.5 - 1 - 1 + 2) / 4)
    assert differences["rejected"]["mean"] == pytest.approx(-1.5 / 4)
    assert differences["chosen"]["histogram"]["edges"] == differences["rejected"]["histogram"]["edges"]
    assert found["length"]["correlation"] is None
    assert found["length"]["model_prefers_longer"] is None
    json.dumps(found, allow_nan=False)


def test_without_reference_answers_no_absolute_score_is_shown() -> None:
    moved = report(
        scores_of(np.array([1.0, 2.0]), chosen=np.array([101.0, 102.0]), rejected=np.full(2, 100.0))
    )
    plain = report(scores_of(np.array([1.0, 2.0])))
    assert plain["difference_from_reference"] is None
    assert moved == plain


def test_a_shift_of_all_scores_of_a_prompt_changes_nothing() -> None:
    """A Bradley-Terry score has no zero, and a report none either."""
    random = np.random.default_rng(0)
    chosen, rejected, reference, shift = random.normal(size=(4, 30))
    lengths = {"chosen_tokens": random.integers(1, 9, 30), "rejected_tokens": random.integers(1, 9, 30)}
    first = report(scores_of(chosen, rejected=rejected, reference=reference, **lengths))
    second = report(
        scores_of(chosen + shift, rejected=rejected + shift, reference=reference + shift, **lengths)
    )
    assert json.loads(json.dumps(second), parse_float=lambda x: round(float(x), 9)) == json.loads(
        json.dumps(first), parse_float=lambda x: round(float(x), 9)
    )


def test_wilson_is_scipys() -> None:
    for right, n in ((0, 50), (37, 50), (50, 50), (3, 7)):
        expected = stats.binomtest(right, n).proportion_ci(method="wilson")
        assert wilson(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_pairs_of_one_prompt_count_as_one_where_they_agree() -> None:
    """Ten prompts, each of ten equal pairs: the interval is that of ten trials, by the design effect.

    Clustered variance of the mean is 10/9 * (10 * (10 * 0.5)^2) / 100^2, the independent one 0.25 / 100;
    so the effect is 11.1 and the effective size 9.
    """
    right = np.repeat(np.array([1.0, 0.0] * 5), 10)
    found = share(right, np.repeat(np.arange(10), 10))
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 9.0))
    alone = share(right, np.arange(100))
    assert (alone.low, alone.high) == pytest.approx(wilson(0.5, 99.0), abs=1e-12)


def test_change_is_newcombes_published_example() -> None:
    """Newcombe 1998, table II (a), method 10: 56/70 less 48/80 is 0.2, interval 0.0524 to 0.3339."""
    first, second = (Measured(a / n, *wilson(a / n, n)) for a, n in ((48, 80), (56, 70)))
    found = change(first, second)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_calibration_by_hand() -> None:
    """Margins of log 3 are sure to 0.75: of four such pairs two right, so a gap of 0.25 in the bin from 0.7.

    One pair of margin 0 (confidence 0.5, half right) has no gap. Of five pairs the error is 4/5 of 0.25.
    """
    margin = np.array([math.log(3), math.log(3), -math.log(3), -math.log(3), 0.0]) * (1 + 1e-12)
    right = np.array([1.0, 1.0, 0.0, 0.0, 0.5])
    found = calibration(margin, right, np.arange(5))
    assert found["expected_calibration_error"]["value"] == pytest.approx(0.2)
    assert [(each["pairs"], each["accuracy"]) for each in found["bins"] if each["pairs"]] == [
        (1, 0.5),
        (4, 0.5),
    ]
    assert found["bins"][2]["from"] == 0.7
    assert found["bins"][2]["confidence"] == pytest.approx(0.75)


def test_a_calibrated_model_is_called_so_and_an_overconfident_one_is_not() -> None:
    random = np.random.default_rng(1)
    size = random.gamma(2.0, 0.7, 1000)
    sign = np.where(random.random(1000) < 1 / (1 + np.exp(-size)), 1.0, -1.0)
    for scale, calibrated in ((1.0, True), (3.0, False)):
        margin = scale * size * sign
        found = calibration(margin, (margin > 0).astype(float), np.arange(1000))
        error = found["expected_calibration_error"]
        assert (error["value"] <= found["calibrated_up_to"]) is calibrated
        assert error["low"] <= error["value"] <= error["high"] + found["of_a_calibrated_model"]
        assert (error["low"] <= found["calibrated_up_to"]) is calibrated


def test_the_error_of_an_overconfident_model_lies_in_its_interval() -> None:
    """Margins are twice what they should be, so the true error follows from the drawn sizes alone; intervals
    of 500 pairs hold it in most of 20 draws.
    """
    sizes = np.random.default_rng(0).gamma(2.0, 0.7, 200_000)
    stated, true = 1 / (1 + np.exp(-2 * sizes)), 1 / (1 + np.exp(-sizes))
    place = np.minimum((stated - 0.5) * 10, 4).astype(int)
    truth = np.abs(np.bincount(place, weights=stated - true)).sum() / len(sizes)
    inside = 0
    for seed in range(1, 21):
        random = np.random.default_rng(seed)
        size = random.gamma(2.0, 0.7, 500)
        right = (random.random(500) < 1 / (1 + np.exp(-size))).astype(float)
        margin = 2 * size * np.where(right > 0, 1, -1)
        error = calibration(margin, right, np.arange(500))["expected_calibration_error"]
        inside += error["low"] <= truth <= error["high"]
    assert inside >= 17


def test_length_against_scipy() -> None:
    random = np.random.default_rng(4)
    chosen_tokens, rejected_tokens = random.integers(1, 30, (2, 300))
    longer = chosen_tokens - rejected_tokens
    margin = 0.1 * longer + random.normal(size=300)
    found = report(scores_of(margin, chosen_tokens=chosen_tokens, rejected_tokens=rejected_tokens))["length"]
    assert found["correlation"]["value"] == pytest.approx(stats.pearsonr(longer, margin).statistic)
    assert found["rank_correlation"]["value"] == pytest.approx(stats.spearmanr(longer, margin).statistic)
    theirs = stats.pearsonr(longer, margin).confidence_interval(0.95)
    assert found["correlation"]["low"] == pytest.approx(theirs.low, abs=0.04)
    assert found["correlation"]["high"] == pytest.approx(theirs.high, abs=0.04)
    unequal = longer != 0
    assert found["pairs_of_unequal_length"] == unequal.sum()
    assert found["model_prefers_longer"]["value"] == ((margin > 0) == (longer > 0))[unequal].mean()
    assert found["raters_chose_longer"]["value"] == (longer > 0)[unequal].mean()


def test_resampling_draws_prompts_not_pairs() -> None:
    """Weights of pairs of one prompt are equal, and their sum over prompts is the number of prompts."""
    groups = np.array([0, 0, 1, 2, 2, 2])

    def statistic(weights: np.ndarray) -> np.ndarray:
        assert (weights[:, 0] == weights[:, 1]).all()
        assert (weights[:, 3] == weights[:, 5]).all()
        assert (weights[:, [0, 2, 3]].sum(1) == 3).all()
        return weights[:, 0]

    draws = resampled(statistic, groups)
    assert draws.shape == (statistics.RESAMPLES,)
    assert draws.mean() == pytest.approx(1.0, abs=0.1)


def test_broken_scores_and_no_scores_are_refused() -> None:
    with pytest.raises(PolicyRefused, match="no finite number"):
        scores_of(np.array([1.0, np.nan]))
    with pytest.raises(NoUsableRows):
        scores_of(np.array([]))


def test_prompts_the_reference_was_not_asked_count_nowhere_but_there() -> None:
    margin, asked = np.array([1.0, 2.0, 3.0]), np.array([0.0, np.nan, 1.0])
    found = report(scores_of(margin, reference=asked))
    assert found["pairs"] == 3
    assert found["difference_from_reference"]["pairs"] == 2
    assert found["difference_from_reference"]["chosen"]["mean"] == pytest.approx((1.0 + 2.0) / 2)


def test_prompts_are_numbered_by_identity() -> None:
    assert grouped(["b", "a", "b"]).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("right", "fallen"),
    [(160, False), (150, False), (120, True)],
)
def test_a_fall_beyond_the_interval_is_drift(right: int, fallen: bool) -> None:
    """Trained to 160 of 200. Newcombe's interval of 150/200 less that is [-0.131, 0.031], of 120/200 wholly
    below zero.
    """
    before, now = ({"accuracy": vars_of(count, 200)} for count in (160, right))
    found = drift(before, now)
    assert found.fallen is fallen
    assert found.change.value == pytest.approx((right - 160) / 200)
    assert found.document()["change"]["high"] == found.change.high


def vars_of(right: int, n: int) -> dict[str, float]:
    low, high = wilson(right / n, n)
    return {"value": right / n, "low": low, "high": high}


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_every_report_is_sound(drawn: list[tuple[int, int]]) -> None:
    """Shares within [0, 1] and their intervals, counts that add up, plain JSON."""
    margin = np.array([float(m) for m, _ in drawn])
    groups = grouped([str(g) for _, g in drawn])
    found = report(scores_of(margin, groups=groups))
    accuracy = found["accuracy"]
    assert 0 <= accuracy["low"] <= accuracy["value"] <= accuracy["high"] <= 1
    assert sum(each["pairs"] for each in found["calibration"]["bins"]) == len(drawn)
    assert sum(found["margin"]["histogram"]["counts"]) == len(drawn)
    assert found["calibration"]["expected_calibration_error"]["low"] >= 0
    json.dumps(found, allow_nan=False)
