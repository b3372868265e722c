"""From samples to states: units, directions, blocks, dead sources; and the ratio of users."""

import itertools
import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.releases.decision import Action, Exposure, Verdict, decide
from gateway.releases.measure import canary_share, measure, users_ratio
from gateway.releases.plan import HOLDBACK, ReleasePlan
from gateway.releases.ratio import CONCENTRATION, log_bayes_factor, ratio_p_value
from gateway.releases.samples import Sample

SHARE = {"measure": "share", "margin": 0.1, "harm": 0.02}
RATIO = {"measure": "ratio", "margin": 0.5, "harm": 0.1, "cap": 100}
QUANTILE = {"measure": "quantile", "margin": 0.5, "harm": 0.1, "quantile": 0.5}


def plan(share: float = 0.5, **metrics: dict[str, Any]) -> ReleasePlan:
    return ReleasePlan.parse(
        {
            "name": "test",
            "drill_max_age_days": 30,
            "holdback": {"share": 0.1, "days": 1},
            "stages": [
                {"name": "shadow", "kind": "shadow", "share": 0.5, "users": 10},
                {"name": "canary", "kind": "canary", "share": share, "users": 200},
            ],
            "metrics": metrics,
        },
        source="test",
    )


def sample(users: list[list[float | None]]) -> Sample:
    return Sample.of((user, value) for user, each in enumerate(users) for value in each)


def test_rows_become_a_sample() -> None:
    rows: list[tuple[Hashable, float | None]] = [
        ("b", 1), ("a", 0), ("b", None), ("c", math.nan), ("b", 0), ("d", math.inf), ("a", 0.5),
    ]  # fmt: skip
    told = Sample.of(rows)
    assert told.units == ("b", "a")
    assert told.failed == 3
    assert list(told.user_means()) == [0.5, 0.25]
    assert list(told.user_means(cap=0.2)) == [0.1, 0.1]
    assert list(told.user_shares_up_to(0.5)) == [0.5, 1.0]


def test_directions_and_units() -> None:
    told = plan(
        errors={**SHARE, "worse": "higher"},
        thumbs={**SHARE, "worse": "lower"},
        length={**RATIO, "worse": "higher"},
        rating={**RATIO, "worse": "lower"},
        latency={**QUANTILE, "worse": "higher"},
    )
    own, other = sample([[0.6], [0.6, 0.6]]), sample([[0.5], [0.5]])
    worse = {name: measure(told, "canary", name, own, other).worsening for name in told.metrics}
    assert worse == {
        name: pytest.approx(value)
        for name, value in {
            "errors": 0.1, "thumbs": -0.1, "length": 0.2, "rating": -0.2, "latency": 0.2,
        }.items()
    }  # fmt: skip
    for name in told.metrics:
        state = measure(told, "canary", name, own, other)
        assert (state.candidate.level, state.baseline.level) == (pytest.approx(0.6), pytest.approx(0.5))
        assert (state.candidate.users, state.candidate.answers) == (2, 3)


@pytest.mark.parametrize(
    ("metric", "bad"),
    [
        ({**SHARE, "worse": "higher", "source": "errors"}, (0.0, 1.0)),
        ({**SHARE, "worse": "lower", "source": "thumbs"}, (1.0, 0.0)),
        ({**RATIO, "worse": "higher", "source": "length"}, (9, 90)),
        ({**RATIO, "worse": "lower", "source": "length"}, (90, 9)),
        ({**QUANTILE, "worse": "higher", "source": "cost"}, (1, 9)),
        ({**QUANTILE, "worse": "lower", "source": "length"}, (9, 1)),
    ],
)
def test_harm_is_shown_in_every_measure_and_direction(
    metric: dict[str, Any], bad: tuple[float, float]
) -> None:
    """Two hundred users an arm whose figures are far apart; and none where they are alike."""
    told = plan(it=metric)
    good, harmful = sample([[bad[0]]] * 200), sample([[bad[1]]] * 200)
    state = measure(told, "canary", "it", harmful, good)
    assert state.lower is not None
    assert state.lower > 0.1
    alike = measure(told, "canary", "it", good, good)
    assert (alike.lower or 0) <= 0
    assert alike.worsening == 0


@pytest.mark.parametrize("stage", ["shadow", "canary", HOLDBACK])
def test_without_measurements_nothing_is_known_and_nothing_passes(stage: str) -> None:
    told = plan(errors={**SHARE, "worse": "higher"}, latency={**QUANTILE, "worse": "higher"})
    none, dead = Sample.of([]), sample([[None]] * 50)
    states = {
        "errors": measure(told, stage, "errors", none, dead),
        "latency": measure(told, stage, "latency", dead, none),
    }
    assert [state.worsening for state in states.values()] == [None, None]
    ratio = None if stage == "shadow" else users_ratio(told, stage, 0, 0)
    decision = decide(told, stage, states, Exposure(10**6, 1), ratio)
    assert decision.action is Action.HOLD
    assert {finding.verdict for finding in decision.findings} == {Verdict.DEAD}


def test_the_arms_own_limit() -> None:
    told = plan(
        errors={**SHARE, "worse": "higher", "limit": 0.3}, thumbs={**SHARE, "worse": "lower", "limit": 0.3}
    )
    bad, good = sample([[1.0]] * 40), sample([[0.0]] * 40)
    assert measure(told, "canary", "errors", bad, bad).beyond_limit
    assert measure(told, "canary", "thumbs", good, good).beyond_limit
    assert not measure(told, "canary", "errors", good, good).beyond_limit
    assert not measure(told, "canary", "thumbs", bad, bad).beyond_limit


def test_copies_and_probes_are_compared_with_their_own() -> None:
    """Users differ and both arms treat each alike: paired, the ends are narrow; by blocks they are not."""
    rng = np.random.default_rng(1)
    figures = rng.integers(0, 2, 300).astype(float)
    rows = [(user, float(value)) for user, value in enumerate(figures)]
    told = plan(
        errors={**SHARE, "worse": "higher"},
        truncation={**SHARE, "worse": "higher"},
        refusal_benign={**SHARE, "worse": "higher"},
    )
    own, other = Sample.of(rows), Sample.of(rows[::-1])
    shadow = measure(told, "shadow", "truncation", own, other)
    probes = measure(told, "canary", "refusal_benign", own, other)
    blocks = measure(told, "canary", "errors", own, other)
    assert shadow.upper is not None
    assert probes.upper is not None
    assert blocks.upper is not None
    assert shadow.upper < 0.06
    assert probes.upper < 0.06
    assert blocks.upper > 0.06


def test_how_copies_end_is_compared_in_blocks_of_all_of_production() -> None:
    """Half of the requests are copied: a block is a user with a copy and any two of production."""
    told = plan(errors={**SHARE, "worse": "higher"})
    copies = sample([[1.0]] * 40)
    known = Sample.of([(user, 0.0) for user in range(40)])
    others = Sample.of([(f"other {user}", 0.0) for user in range(80)])
    assert measure(told, "shadow", "errors", copies, others) == measure(
        told, "shadow", "errors", copies, Sample.of([(user, 0.0) for user in range(80)])
    )
    full = measure(told, "shadow", "errors", copies, others).lower
    half = measure(told, "shadow", "errors", copies, known).lower
    assert full is not None
    assert half is not None
    assert full > half > 0.02


def test_a_small_canary_stands_beside_as_many_of_production_as_the_plan_says() -> None:
    """At a tenth, 30 users of the canary make 30 blocks of 1 and 9; a lack of production leaves fewer."""
    told = plan(0.1, errors={**SHARE, "worse": "higher"})
    own, other = sample([[1.0]] * 30), sample([[0.0]] * 270)
    full = measure(told, "canary", "errors", own, other)
    fewer = measure(told, "canary", "errors", own, sample([[0.0]] * 90))
    assert full.lower is not None
    assert fewer.lower is not None
    assert full.lower > fewer.lower > 0
    assert canary_share(told, HOLDBACK) == pytest.approx(0.9)


def test_a_measurement_outside_its_bounds_has_failed() -> None:
    told = plan(errors={**SHARE, "worse": "higher"}, length={**RATIO, "worse": "higher"})
    own = sample([[-0.1], [0.5, 1.1], [0.25]])
    state = measure(told, "canary", "errors", own, own)
    assert (state.candidate.users, state.candidate.answers, state.candidate.failed) == (2, 2, 2)
    assert state.candidate.level == pytest.approx(0.375)
    assert measure(told, "canary", "length", own, own).candidate.failed == 1


def test_the_bayes_factor_by_hand() -> None:
    """One user in an arm of 0.1: prior 10 of 100, so 10 / 100 over 0.1 is 1; two of them 11 / 101 / 0.1."""
    assert CONCENTRATION == 100
    assert log_bayes_factor((1, 0), (0.1, 0.9)) == pytest.approx(0.0)
    assert log_bayes_factor((2, 0), (0.1, 0.9)) == pytest.approx(math.log(11 / 101 / 0.1))


@given(st.floats(0.05, 0.95))
def test_the_expected_bayes_factor_is_one(share: float) -> None:
    """Over all sequences of 8 users, by their counts."""
    told = sum(
        math.comb(8, k)
        * share**k
        * (1 - share) ** (8 - k)
        * math.exp(log_bayes_factor((k, 8 - k), (share, 1 - share)))
        for k in range(9)
    )
    assert told == pytest.approx(1.0)


def test_the_ratio_check_is_as_rarely_wrong_as_promised_at_all_looks_together() -> None:
    """Exactly, over all 2^14 sequences of users at one half."""
    wrong = 0
    for users in itertools.product((0, 1), repeat=14):
        counts = np.cumsum(users)
        wrong += any(ratio_p_value((int(k), n - int(k)), (0.5, 0.5)) <= 0.3 for n, k in enumerate(counts, 1))
    assert wrong / 2**14 <= 0.3


def test_a_mismatch_is_found_and_stays_one() -> None:
    told = plan(0.1, errors={**SHARE, "worse": "higher"})
    assert not users_ratio(told, "canary", 100, 900).mismatch
    bad = users_ratio(told, "canary", 180, 900)
    assert bad.mismatch
    assert users_ratio(told, "canary", 1000, 9000, least_before=bad.p_value).mismatch
