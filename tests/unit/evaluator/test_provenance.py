"""Whether a judge is a judge in its own cause."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.provenance import (
    Declared,
    Origin,
    Shared,
    origin_of_judge,
    origin_of_policy,
    parse_declared,
    shared,
)
from ratchet.errors import UsageError


def policy(ref: str, **provenance: Any) -> dict[str, Any]:
    name, _, version = ref.partition("@")
    return {"ref": ref, "name": name, "digest": version * 5, "weights_digest": f"w{version}",
            "provenance": provenance}  # fmt: skip


def judge(*lineage: str, data: tuple[str, ...] = (), labelling: tuple[str, ...] = ()) -> Origin:
    return origin_of_judge(
        Declared(lineage=list(lineage), training_data=list(data), labelling=list(labelling)), "Judge-70B"
    )


def test_what_an_ancestor_was_made_of_counts_as_the_policys_own() -> None:
    origin = origin_of_policy(
        [policy("sky@abc", snapshot="S1"), policy("root@def", source="hf:Base-7B", labelling=["agency"])]
    )
    assert origin.lineage == {"sky@abc", "sky", "abc" * 5, "wabc", "root@def", "root", "def" * 5, "wdef",
                              "hf:base-7b"}  # fmt: skip
    assert origin.training_data == {"s1"}
    assert origin.labelling == {"agency", "raters:preference"}


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (judge("hf:other"), []),
        (judge("HF:BASE-7B"), [Shared("sky@abc", "lineage", "hf:base-7b")]),
        (judge("hf:other", data=("s1",)), [Shared("sky@abc", "training data", "s1")]),
        (judge("x", labelling=("raters:Preference",)), [Shared("sky@abc", "labelling", "raters:preference")]),
    ],
)
def test_a_judge_shares_what_both_sides_name(one: Origin, found: list[Shared]) -> None:
    other = origin_of_policy([policy("sky@abc", snapshot="S1", source="hf:Base-7B")])
    assert shared(one, other, "sky@abc") == found


def test_the_model_a_judge_is_asked_as_is_part_of_its_lineage() -> None:
    other = origin_of_policy([policy("judge-70b@abc")])
    assert [str(each) for each in shared(judge("x"), other, "judge-70b@abc")] == [
        "lineage judge-70b with judge-70b@abc"
    ]


names = st.frozensets(st.text("abc", min_size=1, max_size=2), max_size=4)
origins = st.builds(Origin, names, names, names)


@given(origins, origins)
def test_sharing_is_symmetric_and_empty_only_where_nothing_is_common(one: Origin, other: Origin) -> None:
    found = {(each.kind, each.name) for each in shared(one, other, "x")}
    assert found == {(each.kind, each.name) for each in shared(other, one, "x")}
    assert bool(found) == bool(
        one.lineage & other.lineage
        or one.training_data & other.training_data
        or one.labelling & other.labelling
    )


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"lineage": [], "training_data": [], "labelling": []}, "lineage"),
        ({"lineage": ["x"], "training_data": []}, "labelling"),
        ({"lineage": ["x"], "training_data": "all", "labelling": []}, "training_data"),
        ({"lineage": ["x"], "training_data": [], "labelling": [], "more": 1}, "more"),
        ([], "the document"),
    ],
)
def test_an_origin_is_declared_whole_or_refused_by_place(document: Any, place: str) -> None:
    with pytest.raises(UsageError, match=f"^card.json: {place}: "):
        parse_declared(document, "card.json")
