"""The length report: numbers by hand, and when it warns."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.lengths import LengthTally, wilson


def tally(*pairs: tuple[str, str, str]) -> LengthTally:
    counted = LengthTally()
    for chosen, rejected, source in pairs:
        counted.add(chosen, rejected, source)
    return counted


def test_numbers_by_hand():
    report = tally(
        ("aaaa", "a", "comparison"), ("aaa", "aa", "comparison"), ("a", "aaa", "edit"), ("aa", "bb", "edit")
    ).report()
    every, rated, edits = (report.lines[name] for name in ("all", "comparison", "edit"))
    assert (every.pairs, every.longer_wins, every.shorter_wins, every.equal) == (4, 2, 1, 1)
    assert every.longer_share == pytest.approx(2 / 3)
    assert every.mean_difference == pytest.approx((3 + 1 - 2 + 0) / 4)
    assert (every.mean_chosen, every.mean_rejected) == (2.5, 2.0)
    assert (rated.longer_share, rated.mean_difference) == (1.0, 2.0)
    assert (edits.longer_share, edits.mean_difference) == (0.0, -1.0)
    assert report.warnings == ()


def test_what_is_not_defined_is_null():
    nothing = LengthTally().report().lines["all"]
    assert (nothing.pairs, nothing.longer_share, nothing.low, nothing.mean_difference) == (
        0,
        None,
        None,
        None,
    )
    equal = tally(("aa", "bb", "edit")).report().lines["edit"]
    assert (equal.equal, equal.longer_share, equal.mean_difference) == (1, None, 0.0)


def test_it_warns_over_the_bound_but_not_on_a_handful():
    long, short = ("aaaa", "a", "comparison"), ("a", "aaaa", "comparison")
    report = tally(*[long] * 70, *[short] * 30).report(0.6)
    assert [warning.split(":")[0] for warning in report.warnings] == ["all sources", "source comparison"]
    assert (
        "wins 70 of 100 pairs of unequal length (70%, bound 60%), by a mean +1 characters"
        in report.warnings[0]
    )
    assert tally(*[long] * 70, *[short] * 30).report(0.7).warnings == ()
    assert tally(*[long] * 3, short).report(0.6).warnings == ()
    for bound in (0.4, 1.1):
        with pytest.raises(ValueError, match=r"lies between 0\.5 and 1"):
            LengthTally().report(bound)


def test_the_report_in_json_types():
    content = tally(("aa", "a", "edit")).report().content()
    assert content["bound"] == 0.6
    assert content["by_source"]["edit"]["pairs"] == 1
    assert content["warnings"] == []


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(0, 50, 0.0, 0.0713), (50, 50, 0.9287, 1.0), (5, 10, 0.2366, 0.7634), (15, 148, 0.0624, 0.1605)],
)
def test_wilson_by_known_values(hits: int, total: int, low: float, high: float):
    assert wilson(hits, total) == pytest.approx((low, high), abs=5e-5)


def test_wilson_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="has no interval"):
        wilson(0, 0)


@settings(deadline=None)
@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_share_and_mirrors(total: int, data: st.DataObject):
    hits = data.draw(st.integers(0, total))
    low, high = wilson(hits, total)
    assert 0 <= low <= hits / total + 1e-12
    assert hits / total - 1e-12 <= high <= 1
    mirrored = wilson(total - hits, total)
    assert mirrored == pytest.approx((1 - high, 1 - low))
