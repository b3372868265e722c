"""Gold items: who is set aside, and when gold is shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.gold import GoldRule, Standing, gold_is_due, standing

RIGHT, WRONG, SKIPPED = ("a", "a"), ("a", "b"), ("a", "skip")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([], Standing("unproven", 0, 0)),
        ([WRONG] * 4 + [SKIPPED] * 9, Standing("unproven", 4, 0)),
        ([RIGHT] * 7 + [WRONG] * 3, Standing("trusted", 10, 7)),
        ([RIGHT] * 3 + [WRONG] * 2, Standing("failed", 5, 3)),
        ([("tie", "tie")] * 5, Standing("trusted", 5, 5)),
    ],
)
def test_standing_by_hand(answers: list[tuple[str, str]], expected: Standing):
    assert standing(answers, GoldRule()) == expected


def test_gold_comes_at_its_share_and_cannot_be_foreseen():
    def shown(rater: str, secret: str) -> list[int]:
        return [n for n in range(5_000) if gold_is_due(rater, n, GoldRule(), secret=secret)]

    ours = shown("eve", "s1")
    assert 420 < len(ours) < 580
    assert shown("eve", "s1") == ours
    assert shown("bob", "s1") != ours
    assert shown("eve", "s2") != ours


@settings(deadline=None)
@given(st.text(), st.integers(0, 10_000))
def test_no_share_and_full_share(rater: str, position: int):
    assert not gold_is_due(rater, position, GoldRule(share=0), secret="s")
    assert gold_is_due(rater, position, GoldRule(share=1), secret="s")


@pytest.mark.parametrize("wrong", [{"share": -0.1}, {"share": 2}, {"min_right": 2}, {"min_seen": 0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]):
    with pytest.raises(ValueError, match=r"lie between|at least 1"):
        GoldRule(**wrong)
