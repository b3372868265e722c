"""Keeps a rater from seeing who spoke: names of the policies are taken out of what is shown."""

import re
from collections.abc import Iterable

MASK = "▮▮▮"
SHORTEST = 3
"""Names of fewer characters are no telling names, and masking them would eat ordinary words."""


def names_of(policies: Iterable[str]) -> frozenset[str]:
    """What could give a policy away: its name and its version; of an import the import's name."""
    parts = {part for policy in policies for part in re.split(r"[@:]", policy)}
    return frozenset(part for part in parts - {"import", "human", "edit"} if len(part) >= SHORTEST)


def masked(text: str, policies: Iterable[str]) -> str:
    """The text with every mention of the policies' names replaced, whatever their case and separators.

    `smollm2-135m@0123456789ab` is found in "SmolLM2 135M", "smollm2_135m" and in its version.
    """
    names = names_of(policies)
    return _pattern(names).sub(MASK, text) if names else text


def names_a_policy(texts: Iterable[str], policies: Iterable[str]) -> bool:
    """Whether any of the texts mentions one of the policies."""
    names = names_of(policies)
    return bool(names) and any(_pattern(names).search(text) for text in texts)


def _pattern(names: frozenset[str]) -> re.Pattern[str]:
    alternatives = [
        r"[\s._/-]*".join(re.escape(piece) for piece in re.split(r"[\s._/-]+", name) if piece)
        for name in sorted(names, key=lambda name: (-len(name), name))
    ]
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)", re.IGNORECASE)
