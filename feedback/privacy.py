"""Personal data in texts, found by presidio-analyzer's recognisers and masked.

presidio is the best-kept open library for this, and its pattern recognisers check what they find: Luhn for
cards, mod 97 for IBANs, numbering plans for telephones (by `phonenumbers`), public suffixes for e-mail. They
are used by themselves: its named-entity models would have to be downloaded, take a hundred times as long, and
mask the names of Paris and Newton in every second answer. Names of persons are therefore *not* found.
"""

import re
import sys
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Protocol, cast

from feedback.rows import PreferenceRow, Row, Turn, hash_of_prompt

_MIN_SCORE = 0.3
_NUMBERS = re.compile(
    r"\d(?:[\s().+/-]{0,2}\d){5}"  # telephones, cards, accounts
    r"|\d\.\d{1,3}\.\d{1,3}\.\d"
    r"|\b(?:bc1|[13])[0-9A-Za-z]{25}"
)
_AT = re.compile(r"\S@\S")
_COLONS = re.compile(r"[0-9a-fA-F]:[0-9a-fA-F:]*:")


class _Finding(Protocol):
    entity_type: str
    start: int
    end: int
    score: float


class Masker:
    """Replaces personal data by its kind, such as `<EMAIL_ADDRESS>`; the same text gives the same result.

    Attributes:
        found: How many of each kind were masked so far.
    """

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def text(self, text: str) -> str:
        """The text, masked."""
        spans = _merged(_findings(text))
        for start, end, kind in reversed(spans):
            text = f"{text[:start]}<{kind}>{text[end:]}"
            self.found[kind] += 1
        return text

    def row(self, row: Row) -> Row:
        """The row with prompt and answers masked; its prompt hash is that of the prompt as it now reads."""
        prompt = tuple(Turn(turn.role, self.text(turn.content)) for turn in row.prompt)
        return self.answers(replace(row, prompt=prompt, prompt_hash=hash_of_prompt(prompt)))

    def answers(self, row: Row) -> Row:
        """The row with its answers masked alone: its prompt, and so its place in the split, stay."""
        if isinstance(row, PreferenceRow):
            return replace(row, chosen=self.text(row.chosen), rejected=self.text(row.rejected))
        return replace(row, completion=self.text(row.completion))


def _findings(text: str) -> Iterable[_Finding]:
    mail, numbers = _recognisers()
    if _AT.search(text):
        yield from _of(mail, text)
    if _NUMBERS.search(text) or _COLONS.search(text):
        for recogniser in numbers:
            yield from _of(recogniser, text)


def _of(recogniser: Any, text: str) -> Iterable[_Finding]:
    found: list[_Finding] = recogniser.analyze(text, recogniser.supported_entities, None) or []
    return (finding for finding in found if finding.score >= _MIN_SCORE)


def _merged(findings: Iterable[_Finding]) -> list[tuple[int, int, str]]:
    """Spans that do not overlap, in order; of overlapping ones the surest gives the kind."""
    spans: list[tuple[int, int, str, float]] = []
    for finding in sorted(findings, key=lambda each: (each.start, -each.end)):
        kind, score = finding.entity_type, finding.score
        if spans and finding.start < spans[-1][1]:
            start, end, earlier, surest = spans.pop()
            better = (kind, score) if score > surest else (earlier, surest)
            spans.append((start, max(end, finding.end), *better))
        else:
            spans.append((finding.start, finding.end, kind, score))
    return [(start, end, kind) for start, end, kind, _ in spans]


@contextmanager
def _hidden(*names: str) -> Generator[None]:
    """Makes packages look as if they were not installed: presidio and spaCy load them wherever they are."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # pyright: ignore[reportCallIssue, reportArgumentType]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@cache
def _recognisers() -> tuple[Any, list[Any]]:
    """presidio takes seconds to import, so it is loaded when the first text is masked."""
    import tldextract

    with _hidden("torch", "transformers"):
        from presidio_analyzer import predefined_recognizers as known

    bundled = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

    class Mail(known.EmailRecognizer):
        """presidio's own asks the network for a newer list of public suffixes; this one has the bundled."""

        def validate_result(self, pattern_text: str) -> bool:
            return bool(bundled(pattern_text).top_domain_under_public_suffix)

    numbers = (
        known.CreditCardRecognizer,
        known.CryptoRecognizer,
        known.IbanRecognizer,
        known.IpRecognizer,
        known.PhoneRecognizer,
        known.UsSsnRecognizer,
    )
    return Mail(), [cast("Any", kind)() for kind in numbers]
