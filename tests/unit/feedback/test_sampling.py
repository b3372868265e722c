"""Strata in turn, and near-duplicates by their bands."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.sampling import length_class, spread
from feedback.similarity import BANDS, bands_of

LONG = " ".join(f"word{number} is here" for number in range(40))


@pytest.mark.parametrize(
    ("characters", "expected"), [(0, "short"), (199, "short"), (200, "medium"), (1000, "long")]
)
def test_length_classes(characters: int, expected: str):
    assert length_class(characters) == expected


def test_no_stratum_crowds_out_another():
    items = [f"a{number}" for number in range(100)] + ["b0", "b1", "c0"]
    chosen = [name[0] for name in list(spread(items, lambda item: item[0], str))[:7]]
    assert Counter(chosen) == {"a": 4, "b": 2, "c": 1}


@given(st.lists(st.sampled_from("abc"), max_size=30), st.randoms())
def test_the_choice_depends_on_the_items_alone(strata: list[str], random):  # type: ignore[no-untyped-def]
    items = [f"{stratum}{place}" for place, stratum in enumerate(strata)]
    first = list(spread(items, lambda item: item[0], str))
    assert sorted(first) == sorted(items)
    for stratum in set(strata):
        mine = [item for item in items if item[0] == stratum]
        random.shuffle(mine)
        alone = list(spread(mine, lambda item: item[0], str))
        assert alone == [item for item in first if item[0] == stratum]


def test_like_prompts_share_a_band_and_others_do_not():
    same = bands_of(LONG)
    assert len(same) == BANDS
    assert same == bands_of(LONG.upper() + "!!")
    assert set(same) & set(bands_of(LONG + " and one word more"))
    assert not set(same) & set(bands_of("Something else entirely, about the weather in spring."))
    assert all(-(2**63) <= key < 2**63 for key in same)
    assert bands_of("one") == bands_of("One.")
    assert bands_of("") != bands_of("one")
