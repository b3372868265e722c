"""Agreement of raters: known values, the `krippendorff` package as oracle, and null where undefined."""

import krippendorff
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.agreement import Cohen, agreement, cohen_kappa, krippendorff_alpha, ratings_of, raw_agreement
from tests.unit.feedback.builders import comparison, vote


def test_when_all_say_the_same_raw_is_full_and_the_rest_is_undefined():
    report = agreement({item: {"eve": "a", "bob": "a", "cy": "a"} for item in "1234"})
    assert (report.items, report.raters, report.ratings) == (4, 3, 12)
    assert report.raw == 1.0
    assert report.alpha is None
    assert report.mean_kappa is None
    assert [pair.kappa for pair in report.cohen] == [None, None, None]


def test_without_a_second_rating_nothing_is_defined():
    report = agreement({"1": {"eve": "a"}, "2": {"bob": "b"}, "3": {}})
    assert (report.items, report.raters, report.ratings) == (0, 0, 0)
    assert (report.raw, report.alpha, report.mean_kappa, report.cohen) == (None, None, None, ())


def test_cohen_by_the_textbook_table():
    """50 items: 20 both yes, 5 yes/no, 10 no/yes, 15 both no: observed .7, expected .5, kappa .4."""
    first = ["yes"] * 20 + ["yes"] * 5 + ["no"] * 10 + ["no"] * 15
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    assert cohen_kappa(["a", "b"], ["b", "a"]) == -1
    assert cohen_kappa(["a", "a"], ["a", "b"]) == 0
    assert cohen_kappa([], []) is None
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        cohen_kappa(["a"], [])


def test_krippendorff_by_his_own_example():
    """Krippendorff 2011, section C: four observers, twelve units, missing data; nominal alpha .743."""
    observers = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
        [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
    ]
    ratings = {
        str(unit): {str(who): str(row[unit]) for who, row in enumerate(observers) if row[unit] is not None}
        for unit in range(12)
    }
    assert krippendorff_alpha(ratings) == pytest.approx(0.743, abs=5e-4)


def test_raw_agreement_counts_pairs_of_ratings():
    assert raw_agreement({"1": {"x": "a", "y": "a", "z": "b"}, "2": {"x": "a", "y": "a"}}) == 2 / 4


def test_two_raters_side_by_side_and_the_weighted_mean():
    ratings = {
        "1": {"x": "a", "y": "a", "z": "b"},
        "2": {"x": "b", "y": "b"},
        "3": {"x": "a", "y": "b"},
    }
    report = agreement(ratings)
    assert report.cohen == (
        Cohen(("x", "y"), 3, pytest.approx(2 / 3), pytest.approx(0.4)),
        Cohen(("x", "z"), 1, 0.0, 0.0),
        Cohen(("y", "z"), 1, 0.0, 0.0),
    )
    assert report.mean_kappa == pytest.approx(0.4 * 3 / 5)


def test_votes_as_ratings():
    rated = comparison(
        "c",
        vote("eve", "a"),
        vote("eve", "b", minute=2),
        vote("bob", "skip"),
        vote("cy", "a", flagged=True),
        vote("judy", "tie", pool="evaluation"),
    )
    assert ratings_of([rated]) == {"c": {"eve": "b", "judy": "tie"}}


matrices = st.lists(
    st.lists(st.sampled_from(["a", "b", "tie", None]), min_size=3, max_size=3), min_size=1, max_size=12
)


@settings(deadline=None)
@given(matrices)
def test_alpha_equals_the_krippendorff_package(matrix: list[list[str | None]]):
    ratings = {
        str(item): {str(rater): label for rater, label in enumerate(row) if label is not None}
        for item, row in enumerate(matrix)
    }
    ours = krippendorff_alpha(ratings)
    pairable = [label for labels in ratings.values() if len(labels) > 1 for label in labels.values()]
    if len(set(pairable)) < 2:
        assert ours is None
        return
    codes = {"a": 0, "b": 1, "tie": 2, None: np.nan}
    data = np.array([[codes[label] for label in row] for row in matrix]).T
    expected = krippendorff.alpha(reliability_data=data, level_of_measurement="nominal")
    assert ours == pytest.approx(expected)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=30))
def test_kappa_is_symmetric_and_bounded(pairs: list[tuple[str, str]]):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    kappa = cohen_kappa(first, second)
    assert kappa == cohen_kappa(second, first)
    if kappa is not None:
        assert -1 <= kappa <= 1
        assert (kappa == 1) == (first == second)


def test_the_report_in_json_types():
    content = agreement({"1": {"x": "a", "y": "b"}}).content()
    assert content == {
        "items": 1,
        "raters": 2,
        "ratings": 2,
        "raw": 0.0,
        "cohen": ({"raters": ("x", "y"), "items": 1, "raw": 0.0, "kappa": 0.0},),
        "mean_kappa": 0.0,
        "alpha": 0.0,
    }
