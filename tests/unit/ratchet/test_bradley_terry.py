"""Bradley-Terry: closed forms, `choix` as oracle, and what must be said instead of a number."""

import math
import random

import choix
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.matches import matches_of
from ratchet.bradley_terry import (
    Interval,
    Match,
    connected_groups,
    fit,
    percentile_ends,
    rank,
    strongly_connected,
)
from ratchet.prompts import hash_of_text
from tests.unit.feedback.builders import answer, comparison, question, vote


def matches(first: str, second: str, score: float, times: int, cluster: str = "c") -> list[Match]:
    return [Match(first, second, score, f"{cluster}{first}{second}{number}") for number in range(times)]


def test_two_policies_have_the_log_odds_of_their_wins():
    ranking = rank([*matches("new", "old", 1, 30), *matches("old", "new", 1, 10)])
    (group,) = ranking.groups
    assert ranking.common
    assert [one.policy for one in group.strengths] == ["new", "old"]
    assert [(one.matches, one.won) for one in group.strengths] == [(40, 30.0), (40, 10.0)]
    (lead,) = group.leads
    assert (lead.first, lead.second) == ("new", "old")
    assert lead.log_odds.estimate == pytest.approx(math.log(3))
    assert lead.log_odds.low is not None
    assert lead.log_odds.high is not None
    assert 0 < lead.log_odds.low < math.log(3) < lead.log_odds.high
    assert group.strengths[0].strength is not None
    assert group.strengths[0].strength.estimate == pytest.approx(math.log(3) / 2)


def test_a_tie_is_half_a_win_for_each():
    (group,) = rank([*matches("a", "b", 1, 2), *matches("a", "b", 0.5, 2)]).groups
    assert group.leads[0].log_odds.estimate == pytest.approx(math.log(3 / 1))
    (even,) = rank(matches("a", "b", 0.5, 9)).groups
    assert even.leads[0].log_odds == Interval(0.0, 0.0, 0.0)


def test_five_wins_of_five_are_flagged_and_get_no_infinite_score():
    ranking = rank(matches("a", "b", 1, 5))
    (group,) = ranking.groups
    assert group.separable
    assert not ranking.common
    assert [(one.policy, one.matches, one.won, one.strength) for one in group.strengths] == [
        ("a", 5, 5.0, None),
        ("b", 5, 0.0, None),
    ]
    assert group.leads == ()


def test_groups_never_compared_share_no_ranking():
    played = [
        *matches("a", "b", 1, 3),
        *matches("b", "a", 1, 2),
        *matches("x", "y", 1, 3),
        *matches("y", "x", 1, 4),
        *matches("y", "z", 1, 1),
    ]
    ranking = rank(played, replicates=20)
    assert not ranking.common
    assert [sorted(one.policy for one in group.strengths) for group in ranking.groups] == [
        ["x", "y", "z"],
        ["a", "b"],
    ]
    assert [group.separable for group in ranking.groups] == [True, False]
    assert connected_groups(played) == [frozenset("xyz"), frozenset("ab")]
    joined = rank([*played, *matches("z", "y", 1, 1), *matches("a", "x", 0.5, 1)], replicates=20)
    assert joined.common


def test_the_interval_is_open_where_too_many_replicates_are_one_sided():
    (group,) = rank([*matches("a", "b", 1, 5), *matches("b", "a", 1, 1)], seed=3).groups
    interval = group.leads[0].log_odds
    assert interval.estimate == pytest.approx(math.log(5))
    assert (interval.low, interval.high) == (None, None)
    assert group.unstable_replicates == pytest.approx(1000 * ((5 / 6) ** 6 + (1 / 6) ** 6), abs=60)


def test_one_prompt_has_no_interval():
    one = [Match("a", "b", 1, "p"), Match("a", "b", 0, "p"), Match("a", "b", 1, "p")]
    (group,) = rank(one).groups
    assert group.clusters == 1
    assert group.leads[0].log_odds == Interval(pytest.approx(math.log(2)), None, None)


def test_votes_on_one_prompt_are_not_independent():
    """Every prompt's 10 votes are alike, so their interval is sqrt(10) wider than of votes apart."""
    together = [
        Match("a", "b", float(prompt % 3 > 0), f"p{prompt}") for prompt in range(60) for _ in range(10)
    ]
    apart = [Match(one.first, one.second, one.score, f"{one.cluster}-{n}") for n, one in enumerate(together)]
    wide, narrow = (rank(one).groups[0].leads[0].log_odds for one in (together, apart))
    assert wide.estimate == narrow.estimate
    assert wide.high is not None
    assert wide.low is not None
    assert narrow.high is not None
    assert narrow.low is not None
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(math.sqrt(10), rel=0.2)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    chances, inside = random.Random(5), 0
    for seed in range(100):
        told = [Match("a", "b", float(chances.random() < 0.6), f"p{n}") for n in range(150)]
        interval = rank(told, replicates=300, seed=seed).groups[0].leads
        lead = next(iter(interval))
        sign = 1 if lead.first == "a" else -1
        assert lead.log_odds.low is not None
        assert lead.log_odds.high is not None
        inside += lead.log_odds.low <= sign * math.log(1.5) <= lead.log_odds.high
    assert 89 <= inside <= 99


def test_order_and_seed():
    told = [
        *matches("a", "b", 1, 7),
        *matches("b", "a", 1, 5),
        *matches("b", "c", 1, 6),
        *matches("c", "a", 1, 3),
    ]
    shuffled = random.Random(1).sample(told, len(told))
    assert rank(shuffled, seed=4) == rank(told, seed=4)
    assert rank(told, seed=5) != rank(told, seed=4)
    assert rank([*told, Match("a", "a", 1, "x")], seed=4) == rank(told, seed=4)
    with pytest.raises(ValueError, match=r"has score 0\.7"):
        rank([Match("a", "b", 0.7, "x")])


def test_nothing_to_rank():
    assert rank([]).groups == ()
    assert not rank([]).common


def test_votes_as_matches():
    old_wins = comparison(
        "c",
        vote("eve", "a"),
        vote("bob", "tie"),
        vote("cy", "both_bad"),
        vote("dan", "skip"),
        vote("gus", "a", flagged=True),
        a=answer("1", "x", policy="new"),
        b=answer("2", "y", policy="old"),
    )
    cluster = hash_of_text(question())
    assert sorted(matches_of([old_wins]), key=lambda match: match.score) == [
        Match("new", "old", 0.5, cluster),
        Match("new", "old", 0.5, cluster),
        Match("new", "old", 1.0, cluster),
    ]


def test_the_ranking_in_json_types():
    content = rank([*matches("a", "b", 1, 2), *matches("a", "b", 0.5, 2)], replicates=10).content()
    assert content["common"] is True
    assert content["groups"][0]["strengths"][0]["policy"] == "a"
    assert set(content["groups"][0]["leads"][0]["log_odds"]) == {"estimate", "low", "high"}


def test_percentile_ends_by_hand():
    values = np.arange(100, dtype=np.float64)
    assert percentile_ends(values, 0) == (2.0, 97.0)
    assert percentile_ends(values[:99], 1) == (1.0, 97.0)
    assert percentile_ends(values[:97], 3) == (None, None)
    assert percentile_ends(values[:0], 5) == (None, None)


results = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0, 0.5, 1])).filter(
        lambda t: t[0] != t[1]
    ),
    min_size=1,
    max_size=60,
)


def table(told: list[tuple[int, int, float]], size: int) -> np.ndarray:
    wins = np.zeros((1, size, size))
    for one, other, score in told:
        wins[0, one, other] += score
        wins[0, other, one] += 1 - score
    return wins


@settings(max_examples=60, deadline=None)
@given(results)
def test_strengths_equal_those_of_choix(told: list[tuple[int, int, float]]):
    """A circle of wins beside the drawn results joins everybody to everybody."""
    told = [*told, *((place, (place + 1) % 5, 1) for place in range(5))]
    wins = table(told, 5)
    doubled = [
        (winner, loser)
        for one, other, score in told
        for winner, loser in ([(one, other)] * int(2 * score) + [(other, one)] * int(2 - 2 * score))
    ]
    expected = choix.opt_pairwise(5, doubled, method="Newton-CG", tol=1e-12)
    assert fit(wins)[0] == pytest.approx(expected - expected.mean(), abs=1e-5)


@settings(deadline=None)
@given(results)
def test_strong_connection_is_that_each_reaches_each(told: list[tuple[int, int, float]]):
    wins = table(told, 5)[0]

    def reached(start: int) -> set[int]:
        seen, front = {start}, [start]
        while front:
            here = front.pop()
            for there in range(5):
                if wins[here, there] > 0 and there not in seen:
                    seen.add(there)
                    front.append(there)
        return seen

    assert bool(strongly_connected(wins[None])[0]) == all(len(reached(start)) == 5 for start in range(5))


def test_nearly_one_sided_tables_converge():
    wins = np.array([[[0, 100_000.5], [0.5, 0]]])
    assert fit(wins)[0, 0] - fit(wins)[0, 1] == pytest.approx(math.log(200_001))
