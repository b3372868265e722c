"""Which method labels are good for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.plan.labels import Labels, Verifier, recommend

QUICK, SLOW = Verifier("sums", 2), Verifier("build", 60_000)


@pytest.mark.parametrize(
    ("labels", "method", "said"),
    [
        (Labels(), None, "there are no pairs, and 0 demonstrations"),
        (Labels(demonstrations=49), None, "fewer than 50"),
        (Labels(demonstrations=50), "sft", "50 demonstrations"),
        (Labels(pairs={0: 150, 1: 50}), "dpo", "200 of 200 pairs"),
        (Labels(pairs={0: 100, 2: 100, 3: 900}), "dpo", "200 of 1100 pairs"),
        (Labels(pairs={3: 900, None: 100}), None, "0 fresh pairs of 1000"),
        (Labels(pairs={None: 1000}, demonstrations=80), "sft", "0 fresh pairs of 1000"),
        (Labels(pairs={0: 1000}, verifiers=(QUICK,)), "rl", "sums 2 ms"),
        (Labels(pairs={0: 1000}, verifiers=(SLOW,)), "dpo", "too slow beside 1000 ms for an answer (build"),
        (Labels(verifiers=(Verifier("tests", 400),), sampling_ms=1000), "rl", "tests 400 ms"),
        (Labels(verifiers=(Verifier("tests", 600),), sampling_ms=1000), None, "too slow"),
    ],
)
def test_the_rule(labels: Labels, method: str | None, said: str) -> None:
    found = recommend(labels)
    assert (found.method, said in found.reason) == (method, True), found
    assert found.then


@given(
    st.integers(0, 400),
    st.dictionaries(st.one_of(st.none(), st.integers(0, 6)), st.integers(0, 400)),
    st.lists(st.floats(0.1, 1e5), max_size=2),
)
def test_more_labels_never_end_in_nothing(
    demonstrations: int, pairs: dict[int | None, int], checks: list[float]
) -> None:
    labels = Labels(demonstrations, pairs, tuple(Verifier("v", each) for each in checks))
    richer = Labels(demonstrations + 50, {**pairs, 0: pairs.get(0, 0) + 200}, (*labels.verifiers, QUICK))
    assert recommend(richer).method == "rl"
    assert labels.fresh_pairs <= labels.all_pairs
    if recommend(labels).method == "dpo":
        assert labels.fresh_pairs >= 200
