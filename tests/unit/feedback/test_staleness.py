"""How far rows lie behind the policy now served."""

import pytest

from feedback.staleness import lineage, staleness
from tests.unit.feedback.builders import demonstration_row, pair_row

PARENTS = {"demo@3": "demo@2", "demo@2": "demo@1", "demo@1": None, "side@1": "demo@1"}


def pair(chosen: str, rejected: str):
    return pair_row(chosen_policy=chosen, rejected_policy=rejected)


def test_distance_is_that_of_the_farther_side():
    report = staleness(
        [
            pair("demo@3", "demo@3"),
            pair("demo@3", "demo@1"),
            pair("human:edit", "demo@2"),
            pair("side@1", "demo@3"),
            pair("import:hh", "import:hh"),
            demonstration_row(),
        ],
        "demo@3",
        PARENTS,
    )
    assert report.by_distance == {0: 1, 1: 1, 2: 1}
    assert (report.unrelated, report.unspoken, report.rows) == (2, 1, 6)
    assert report.content()["shares"] == {
        "0": 1 / 6,
        "1": 1 / 6,
        "2": 1 / 6,
        "unrelated": 2 / 6,
        "unspoken": 1 / 6,
    }


def test_without_rows_shares_are_null():
    assert staleness([], "demo@3", PARENTS).shares() == {"unrelated": None, "unspoken": None}


def test_lineage_and_circles():
    assert lineage("demo@3", PARENTS) == {"demo@3": 0, "demo@2": 1, "demo@1": 2}
    with pytest.raises(ValueError, match="a is its own ancestor"):
        lineage("a", {"a": "b", "b": "a"})
