"""Held-out prompts in what comes in: by identity and by shared 13-grams."""

from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.contamination import TEMPLATE_PROMPTS, Contamination, HeldOutIndex, HeldOutPrompt, refusal
from feedback.rows import Turn, hash_of_prompt
from ratchet.prompts import hash_of_text
from tests.unit.feedback.builders import demonstration_row, pair_row

LETTERS = "a b c d e f g h i j k l m n o"
FIFTEEN = " ".join(f"word{letter}" for letter in LETTERS.split())
THIRTEEN = " ".join(FIFTEEN.split()[:13])
TWELVE = " ".join(FIFTEEN.split()[:12])

SUITE = HeldOutIndex([HeldOutPrompt("s/1", FIFTEEN), HeldOutPrompt("s/2", "What colour is the sky?")])


def asked(text: str):
    return pair_row(asked=text)


def test_the_same_prompt_is_found_by_its_hash_however_it_is_spelt():
    (found,) = SUITE.check([asked("unrelated"), asked("  WHAT colour\nis the sky? ")])
    assert found == Contamination(2, hash_of_text("what colour is the sky?"), "s/2", "hash", "prompt", 0)
    assert [one.by for one in SUITE.check([asked(FIFTEEN)])] == ["hash"]
    assert SUITE.hashes == {hash_of_text(FIFTEEN), hash_of_text("what colour is the sky?")}


def test_thirteen_words_in_a_row_overlap_and_twelve_do_not():
    row = asked(f"Please answer: {THIRTEEN.upper()}, thanks")
    assert list(SUITE.check([row])) == [Contamination(1, row.prompt_hash, "s/1", "ngram", "prompt", 1)]
    assert list(SUITE.check([asked(f"Please answer: {TWELVE}, thanks")])) == []
    assert [one.ngrams for one in SUITE.check([asked(f"{FIFTEEN}?! no")])] == [3]


def test_answers_and_earlier_turns_are_looked_at_too():
    turns = (Turn("system", FIFTEEN), Turn("user", "Hello."))
    system = pair_row(prompt=turns, prompt_hash=hash_of_prompt(turns))
    quoting = pair_row(chosen=f"You ask: {FIFTEEN}", rejected="no")
    written = demonstration_row(completion=f"{FIFTEEN} is the question")
    found = list(SUITE.check([system, quoting, written]))
    assert [(one.row, one.where, one.ngrams) for one in found] == [
        (1, "prompt", 3),
        (2, "chosen", 3),
        (3, "completion", 3),
    ]


def test_a_template_of_many_held_out_prompts_does_not_count():
    def index(size: int) -> HeldOutIndex:
        return HeldOutIndex(HeldOutPrompt(f"s/{n}", f"{THIRTEEN} then number {n}") for n in range(size))

    row = asked(f"{THIRTEEN} now something else")
    assert len(list(index(TEMPLATE_PROMPTS).check([row]))) == TEMPLATE_PROMPTS
    assert list(index(TEMPLATE_PROMPTS + 1).check([row])) == []
    again = HeldOutIndex(HeldOutPrompt(f"s/{n}", FIFTEEN) for n in range(50))
    assert [one.held_out for one in again.check([asked(f"x {FIFTEEN}")])] == ["s/0"]


def test_the_refusal_lists_what_was_found():
    found = list(
        SUITE.check([asked("what colour is the sky?"), asked(f"x {FIFTEEN}"), asked(f"y {FIFTEEN}")])
    )
    assert refusal(found, shown=2) == (
        "3 rows speak of held-out prompts, remove them: row 1 (prompt) has held-out prompt s/2;"
        " row 2 (prompt) has held-out prompt s/1: 3 shared 13-grams; and 1 more"
    )


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(FIFTEEN.split()), min_size=13, max_size=20),
    st.lists(st.text("xyz", min_size=1), max_size=5),
    st.lists(st.text("xyz", min_size=1), max_size=5),
)
def test_a_quoted_prompt_is_always_found(words: list[str], before: list[str], after: list[str]):
    index = HeldOutIndex([HeldOutPrompt("s/1", " ".join(words))])
    row = asked(" ".join([*before, *words, *after]))
    assert [one.held_out for one in index.check([row])] == ["s/1"]
