"""Exact and normalised match with any of several accepted answers."""

import unicodedata
from collections.abc import Sequence

from evaluator.scorers.outcome import TRUNCATED, Answer, Score, unscored

_EDGES = " .,;:!?\"'`*_()[]{}“”‘’«»…"


def normalised(text: str) -> str:
    """NFKC, case-folded, white space collapsed; punctuation at the ends dropped, unless it is all."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    collapsed = " ".join(folded.split())
    return collapsed.strip(_EDGES) or collapsed


def score_exact(answer: Answer, accepted: Sequence[str]) -> Score:
    """Right where the answer, white space at its ends aside, is one of the accepted texts."""
    return _score(answer, accepted, answer.text.strip(), [text.strip() for text in accepted])


def score_normalised(answer: Answer, accepted: Sequence[str]) -> Score:
    """Right where the normalised answer is one of the normalised accepted texts."""
    return _score(answer, accepted, normalised(answer.text), [normalised(text) for text in accepted])


def _score(answer: Answer, accepted: Sequence[str], given: str, wanted: list[str]) -> Score:
    if not accepted:
        return unscored("the suite gives no accepted answer")
    if answer.truncated:
        return TRUNCATED
    return Score.of(given in wanted, f"said {given[:80]!r}, accepted {list(accepted)!r}")
