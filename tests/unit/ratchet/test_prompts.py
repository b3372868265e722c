"""Prompt identity: known values by hand, and the properties everything else leans on."""

import hashlib
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.prompts import (
    Split,
    conversation_id,
    hash_of_text,
    history_hash,
    message_text,
    ngrams,
    normalise,
    prompt_hash,
    split,
    storable,
    words,
)

SKY = {"role": "user", "content": "What colour is the sky?"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  What\tcolour\n\n is THE sky? ", "what colour is the sky?"),
        ("Straße", "strasse"),
        ("ﬁne ① Å", "fine 1 å"),
        ("a\u00a0b\u3000c", "a b c"),
        ("ΣΑΣ σας", "σασ σασ"),
        ("A\x00B\ud800", "a\ufffdb\ufffd"),
        ("", ""),
    ],
)
def test_normalised_text(text: str, expected: str):
    assert normalise(text) == expected


@settings(deadline=None)
@given(st.text(st.characters()))
def test_normalising_twice_changes_nothing(text: str):
    assert normalise(normalise(text)) == normalise(text)


@settings(deadline=None)
@given(st.text(), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_the_hash_does_not_depend_on_the_unicode_form(text: str, form: str):
    assert hash_of_text(unicodedata.normalize(form, text)) == hash_of_text(text)


@settings(deadline=None)
@given(st.text(st.characters()))
def test_stored_text_keeps_its_hash_and_is_utf_8(text: str):
    assert hash_of_text(storable(text)) == hash_of_text(text)
    assert "\x00" not in storable(text)
    storable(text).encode("utf-8")


def test_the_prompt_is_the_first_user_message():
    expected = hashlib.sha256(b"what colour is the sky?").hexdigest()
    assert prompt_hash([SKY]) == expected
    later = [{"role": "assistant", "content": "Blue."}, {"role": "user", "content": "Why?"}]
    assert prompt_hash([{"role": "system", "content": "Be brief."}, SKY, *later]) == expected
    assert prompt_hash([{"role": "user", "content": [{"type": "text", "text": SKY["content"]}]}]) == expected


def test_a_conversation_without_user_is_known_by_its_first_message():
    assert prompt_hash([{"role": "system", "content": "Begin."}]) == hash_of_text("begin.")
    with pytest.raises(ValueError, match="without messages"):
        prompt_hash([])


def test_parts_that_are_not_text_count_by_their_content():
    def picture(url: str) -> dict[str, object]:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}

    assert prompt_hash([picture("a")]) != prompt_hash([picture("b")])
    assert message_text({"role": "assistant", "content": None, "tool_calls": []}) == ""
    both = {"role": "user", "content": ["one", {"type": "text", "text": "two"}]}
    assert message_text(both) == "one\ntwo"


def test_splits_by_hand():
    def at(place: int) -> str:
        return f"{place:016x}" + "0" * 48

    expected = {0: "heldout", 9: "heldout", 10: "validation", 19: "validation", 20: "train", 99: "train"}
    assert {place: split(at(place)).value for place in expected} == expected
    assert split(at(100)) is Split.HELDOUT
    assert split(hash_of_text("What colour is the sky?")) is split(prompt_hash([SKY]))


def test_the_split_of_a_known_prompt_never_changes():
    assert split(hash_of_text("What colour is the sky?")) is Split.TRAIN
    assert split(hash_of_text("prompt 3")) is Split.HELDOUT
    assert split(hash_of_text("prompt 4")) is Split.VALIDATION


def test_shares_of_the_splits():
    counts = Counter(split(hash_of_text(f"prompt {number}")) for number in range(20_000))
    assert 1_800 < counts[Split.HELDOUT] < 2_200
    assert 1_800 < counts[Split.VALIDATION] < 2_200


@pytest.mark.parametrize("wrong", ["", "abc", "G" * 64, "A" * 64, "0" * 65])
def test_a_split_needs_a_prompt_hash(wrong: str):
    with pytest.raises(ValueError, match="no prompt hash"):
        split(wrong)


def test_a_history_is_compared_to_the_letter():
    assert history_hash([SKY]) == history_hash([{**SKY, "name": None}])
    assert history_hash([SKY]) == history_hash([{"role": "user", "content": [{"type": "text", **TEXT}]}])
    assert history_hash([SKY]) != history_hash([{**SKY, "content": SKY["content"].lower()}])
    assert history_hash([SKY]) != history_hash([SKY, SKY])
    assert history_hash([SKY]) != history_hash([{**SKY, "name": "eve"}])


TEXT = {"text": SKY["content"]}


def test_a_conversation_keeps_its_id_as_it_grows():
    opening = [{"role": "system", "content": "Be brief."}, SKY]
    turn = [{"role": "assistant", "content": "Blue."}, {"role": "user", "content": "Why?"}]
    name = conversation_id(opening, key="k1", user="ann")
    assert len(name) == 32
    assert conversation_id([*opening, *turn], key="k1", user="ann") == name
    others = {
        conversation_id(opening, key="k2", user="ann"),
        conversation_id(opening, key="k1", user="bob"),
        conversation_id(opening, key="k1", user="ann", session="s"),
        conversation_id(opening, key="k1"),
        conversation_id([SKY], key="k1", user="ann"),
    }
    assert len(others | {name}) == 6


def test_words_and_ngrams_by_hand():
    assert words("Don't PANIC: 42 times, naïve!") == ["don", "t", "panic", "42", "times", "naïve"]
    assert words("हिन्दी में") == ["हिन्दी", "में"]
    assert words("天空是蓝色的 sky") == ["天", "空", "是", "蓝", "色", "的", "sky"]
    thirteen = "one two three four five six seven eight nine ten eleven twelve thirteen"
    assert len(ngrams(thirteen)) == 1
    assert len(ngrams(thirteen + " fourteen")) == 2
    assert ngrams("one two three") == frozenset()
    assert ngrams(thirteen.upper().replace(" ", ", ")) == ngrams(thirteen)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(1, 5))
def test_ngrams_are_the_distinct_windows(letters: list[str], n: int):
    windows = {tuple(letters[start : start + n]) for start in range(len(letters) - n + 1)}
    assert len(ngrams(" ".join(letters), n)) == len(windows)
