"""Agreement of an answer with a demonstration, by hand."""

import pytest

from trainer.knowledge import agreement


@pytest.mark.parametrize(
    ("answer", "demonstration", "share"),
    [
        ("The capital of Norway is Oslo.", "Oslo", 1.0),
        ("I believe it is Bergen.", "Oslo", 0.0),
        ("oslo, on the FJORD", "Oslo lies on a fjord", 3 / 5),
        ("Oslo Oslo", "Oslo, Oslo and Bergen", 1 / 3),
        ("", "Oslo", 0.0),
        ("anything", "...", 1.0),
    ],
)
def test_agreement_is_the_share_of_words_that_are_said(answer: str, demonstration: str, share: float) -> None:
    assert agreement(answer, demonstration) == pytest.approx(share)
