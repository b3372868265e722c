"""Truncation: what stays, what goes first, and what must never come out of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.render import Rendered
from trainer.data.rows import Drop, Unusable
from trainer.data.truncate import Cut, Lengths, truncate

BOS, EOS = 1, 2


def test_what_fits_is_left_alone() -> None:
    rendered = Rendered((BOS, 10, 11), ((20, EOS), (21, 22, EOS)), 0)
    assert truncate(rendered, Lengths(6, 1), BOS) == Cut(rendered.prompt, rendered.answers, 0, 0)


def test_the_prompt_gives_way_first_from_its_start_and_keeps_bos() -> None:
    rendered = Rendered((BOS, 10, 11, 12, 13), ((20, EOS), (21, 22, EOS)), 0)
    assert truncate(rendered, Lengths(6, 2), BOS) == Cut((BOS, 12, 13), rendered.answers, 2, 0)
    assert truncate(rendered, Lengths(6, 2), None).prompt == (11, 12, 13)


def test_answers_lose_their_end_and_eos_only_below_the_floor() -> None:
    """6 tokens, 3 kept for the prompt: 3 are left for the answers; the short one keeps its EOS."""
    rendered = Rendered((BOS, 10, 11, 12), ((20, 21, 22, 23, EOS), (24, EOS)), 0)
    assert truncate(rendered, Lengths(6, 3), BOS) == Cut((BOS, 11, 12), ((20, 21, 22), (24, EOS)), 1, 1)


def test_a_floor_of_one_keeps_the_last_token_that_the_answer_follows() -> None:
    rendered = Rendered((BOS, 10, 11), ((20, 21, 22, EOS),), 0)
    assert truncate(rendered, Lengths(4, 1), BOS) == Cut((11,), ((20, 21, 22),), 2, 1)


def test_answers_that_become_equal_are_refused() -> None:
    """They differ in their last word only, which no longer fits."""
    rendered = Rendered((BOS, 10), ((20, 21, 22, EOS), (20, 21, 23, EOS)), 0)
    with pytest.raises(Unusable, match=Drop.IDENTICAL_AFTER_TRUNCATION):
        truncate(rendered, Lengths(4, 2), BOS)
    assert truncate(rendered, Lengths(5, 2), BOS).answers == ((20, 21, 22), (20, 21, 23))


@pytest.mark.parametrize(("maximum", "floor"), [(4, 4), (4, 0), (1, 1), (4, 9)])
def test_bounds_without_room_are_refused(maximum: int, floor: int) -> None:
    with pytest.raises(ValueError, match="leaves no room"):
        Lengths(maximum, floor)


def test_usual_bounds() -> None:
    assert (Lengths.of(512), Lengths.of(2)) == (Lengths(512, 128), Lengths(2, 1))


IDS = st.integers(3, 6)


@given(
    prompt=st.lists(IDS, min_size=1, max_size=12),
    answers=st.lists(st.lists(IDS, min_size=0, max_size=12), min_size=1, max_size=2),
    maximum=st.integers(2, 16),
    floor=st.integers(1, 15),
)
def test_every_cut_keeps_what_matters(
    prompt: list[int], answers: list[list[int]], maximum: int, floor: int
) -> None:
    floor = min(floor, maximum - 1)
    whole = (BOS, *prompt)
    ended = tuple((*answer, EOS) for answer in answers)
    try:
        cut = truncate(Rendered(whole, ended, 0), Lengths(maximum, floor), BOS)
    except Unusable:
        assert len(ended) == 2
        return
    longest = max(map(len, ended))
    assert len(cut.prompt) + max(map(len, cut.answers)) <= maximum
    assert len(cut.prompt) == min(len(whole), max(floor, maximum - longest))
    assert cut.prompt[-1] == whole[-1]
    assert cut.prompt in (whole, whole[-len(cut.prompt) :], (BOS, *whole[len(whole) - len(cut.prompt) + 1 :]))
    assert cut.prompt_lost == len(whole) - len(cut.prompt)
    for before, after in zip(ended, cut.answers, strict=True):
        assert after
        assert before[: len(after)] == after
        assert len(after) == min(len(before), maximum - len(cut.prompt))
    assert cut.answers_cut == sum(answer[-1] != EOS for answer in cut.answers)
    assert len(set(cut.answers)) == len(cut.answers)
