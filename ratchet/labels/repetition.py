"""Does an answer repeat itself: loops of one token, of a phrase, of lines, of whole sentences?"""

import re
from collections import Counter

import numpy as np
from numpy.typing import NDArray

SHORTEST = 24
"""Words below which nothing is said."""
LONGEST = 4_000
"""Words that are read, from the end: a loop, once begun, does not end by itself."""
LONGEST_TEXT = 40_000
"""Characters that are read, likewise."""
LONGEST_UNIT = 120

_FENCED = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)
_LAID_OUT = re.compile(r"^(?:[ \t]*\|.*|.*\|.*\|.*|(?: {4}|\t).*|.*[{};][ \t]*|.*\t.*\t.*)$", re.MULTILINE)
_MARKER = re.compile(r"^[ \t]*(?:[-*•]|\d+[.)])[ \t]", re.MULTILINE)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]{2,}(?:['\u2019-][^\W\d_]+)*|\d+")
_LETTERS = re.compile(r"[^\W\d_]{2}")
_WITHIN_A_WORD = re.compile(r"([^\W\d_]{1,12}?)\1{19,}")
_SENTENCE = re.compile(r"[^.!?。！？\n]+")
_SAME_LINES = 8
_SENTENCE_WORDS = 6
_SAME_SENTENCES = 4
_SENTENCE_SHARE = 0.4


def repetition(text: str) -> bool | None:
    """Whether a text runs in a loop. Tables and code count only by whole lines that are the same.

    Args:
        text: An answer.

    Returns:
        None where it has too few words to tell.
    """
    text = text[-LONGEST_TEXT:]
    prose = _MARKER.sub("", _LAID_OUT.sub("\n", _FENCED.sub("\n", text)))
    words = [word.casefold() for word in _WORD.findall(prose)][-LONGEST:]
    if _WITHIN_A_WORD.search(text) or _has_same_lines(text):
        return True
    if len(words) < SHORTEST:
        return None if len(_WORD.findall(text)) < SHORTEST else False
    return _has_loop(words) or _has_same_sentences(prose, len(words))


def _times(unit: int) -> int:
    """How often a unit of so many words follows itself before it is a loop."""
    if unit == 1:
        return 8
    return 6 if unit <= 3 else 4 if unit < 10 else 3


def _has_loop(words: list[str]) -> bool:
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(word, len(numbers)) for word in words])
    return any(
        _longest_run(ids[unit:] == ids[:-unit]) >= unit * (_times(unit) - 1)
        for unit in range(1, min(LONGEST_UNIT, len(words) // 3) + 1)
    )


def _longest_run(same: NDArray[np.bool_]) -> int:
    breaks = np.flatnonzero(np.concatenate(([True], ~same, [True])))
    return int(np.diff(breaks).max()) - 1


def _has_same_lines(text: str) -> bool:
    lines = [line.strip() for line in _MARKER.sub("", text).splitlines() if _LETTERS.search(line)]
    count, before = 0, ""
    for line in lines:
        count = count + 1 if line == before else 1
        before = line
        if count >= _SAME_LINES:
            return True
    return False


def _has_same_sentences(prose: str, words: int) -> bool:
    found = Counter(
        tuple(word.casefold() for word in _WORD.findall(sentence)) for sentence in _SENTENCE.findall(prose)
    )
    covered = sum(
        len(sentence) * times
        for sentence, times in found.items()
        if len(sentence) >= _SENTENCE_WORDS and times >= _SAME_SENTENCES
    )
    return covered >= _SENTENCE_SHARE * words
