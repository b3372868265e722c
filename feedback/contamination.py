"""Whether rows that come in speak of held-out prompts: by the prompt's identity, and by shared n-grams.

Overlap is 13 normalised words in a row (Brown et al. 2020, appendix C), anywhere in a row: system prompt,
earlier turns, or the answers, which may quote a held-out prompt. An n-gram found in more than ten held-out
prompts is a suite's template rather than anybody's prompt, and does not count.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from feedback.rows import PreferenceRow, Row
from ratchet.prompts import NGRAM, hash_of_text, ngrams

TEMPLATE_PROMPTS = 10
"""Held-out prompts that may share an n-gram before it counts as their template."""


@dataclass(frozen=True, slots=True)
class HeldOutPrompt:
    """A prompt of a held-out suite."""

    name: str
    """Where it stands, such as `gsm8k/17`."""
    text: str


@dataclass(frozen=True, slots=True)
class Contamination:
    """A row that speaks of a held-out prompt."""

    row: int
    """Its place among those checked, from 1."""
    prompt_hash: str
    held_out: str
    """Name of the held-out prompt."""
    by: Literal["hash", "ngram"]
    where: str
    """`prompt`, `chosen`, `rejected` or `completion`."""
    ngrams: int
    """How many n-grams they share; 0 where the hash alone speaks."""


class HeldOutIndex:
    """Held-out prompts, ready to be looked up; about 100 bytes for each of their words."""

    def __init__(self, prompts: Iterable[HeldOutPrompt]) -> None:
        self._by_hash: dict[str, str] = {}
        self._by_gram: dict[int, list[str]] = {}
        for prompt in prompts:
            identity = hash_of_text(prompt.text)
            if identity in self._by_hash:
                continue
            self._by_hash[identity] = prompt.name
            for gram in ngrams(prompt.text):
                self._by_gram.setdefault(gram, []).append(prompt.name)
        self._by_gram = {
            gram: names for gram, names in self._by_gram.items() if len(names) <= TEMPLATE_PROMPTS
        }

    @property
    def hashes(self) -> frozenset[str]:
        """The prompts' identities, as `held_out` of the rule for pairs and of snapshots takes them."""
        return frozenset(self._by_hash)

    def check(self, rows: Iterable[Row]) -> Iterator[Contamination]:
        """Every held-out prompt that a row speaks of; a row at a time, in order."""
        for number, row in enumerate(rows, start=1):
            same = self._by_hash.get(row.prompt_hash)
            if same is not None:
                yield Contamination(number, row.prompt_hash, same, "hash", "prompt", 0)
            for where, text in _texts(row):
                for name, shared in sorted(self._shared(text).items()):
                    if not (where == "prompt" and name == same):
                        yield Contamination(number, row.prompt_hash, name, "ngram", where, shared)

    def _shared(self, text: str) -> Counter[str]:
        return Counter(name for gram in ngrams(text) for name in self._by_gram.get(gram, ()))


def _texts(row: Row) -> Iterator[tuple[str, str]]:
    yield "prompt", "\n".join(turn.content for turn in row.prompt)
    if isinstance(row, PreferenceRow):
        yield "chosen", row.chosen
        yield "rejected", row.rejected
    else:
        yield "completion", row.completion


def refusal(found: list[Contamination], shown: int = 10) -> str:
    """A sentence on why an import is refused, with the first of what was found."""
    lines = [
        f"row {hit.row} ({hit.where}) has held-out prompt {hit.held_out}"
        + ("" if hit.by == "hash" else f": {hit.ngrams} shared {NGRAM}-grams")
        for hit in found[:shown]
    ]
    more = f"; and {len(found) - shown} more" if len(found) > shown else ""
    rows = len({hit.row for hit in found})
    return f"{rows} rows speak of held-out prompts, remove them: {'; '.join(lines)}{more}"
