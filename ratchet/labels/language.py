"""Which language is an answer in? py3langid's model (Lui & Baldwin 2012), read on the first call, offline."""

import re
from functools import cache
from typing import Protocol, cast

SHORTEST = 20
"""Letters below which nothing is said; of a script that writes a word in a sign or two, `FEWEST_SIGNS`."""
FEWEST_SIGNS = 6
LONGEST = 2_000
"""Letters, signs and spaces that are read."""
LEAST_CHANCE = 0.5

_FENCED = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)
_NO_PROSE = re.compile(r"`[^`\n]*`|https?://\S+|[\d_]+")
_LETTER = re.compile(r"[^\W\d_]")
_SIGN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


class _Identifier(Protocol):
    def classify(self, text: str) -> tuple[str, float]: ...


@cache
def _identifier() -> _Identifier:
    from py3langid import langid  # pyright: ignore[reportMissingTypeStubs]

    return cast(_Identifier, langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True))  # pyright: ignore[reportUnknownMemberType]


def language(text: str) -> str | None:
    """The language's ISO 639-1 code.

    Args:
        text: An answer; code in it is left out.

    Returns:
        None where the text is too short or the model is not sure.
    """
    prose = _NO_PROSE.sub(" ", _FENCED.sub(" ", text))[:LONGEST]
    if len(_LETTER.findall(prose)) < SHORTEST and len(_SIGN.findall(prose)) < FEWEST_SIGNS:
        return None
    code, chance = _identifier().classify(prose)
    return code if chance >= LEAST_CHANCE else None
