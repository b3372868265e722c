"""Where in an answer the final value stands.

Looked for in this order, the last occurrence of each: a box, a `####` line, a sentence that says what the
answer is, the last number. What a model takes back on the way does not count.
"""

import re

from evaluator.scorers.math_expressions import Unparseable, parse, plain

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?P<open>\{)?")
_HASHES = re.compile(r"^[ \t*]*####[ \t]*(?P<value>\S[^\n]*)", re.MULTILINE)
_SAYS = re.compile(
    r"\b(?:final\s+answer|answer|result|solution)\b[*_\s]*(?:(?:would|will|must|should)\s+be|is|equals|was|=|:)"
    r"[*_\s:]*(?P<value>[^\n]+)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?;](?=\s|$|\*)")
_INLINE = re.compile(r"\$\$?(?P<dollar>[^$]+)\$\$?|\\\((?P<round>.+?)\\\)|\\\[(?P<square>.+?)\\\]")
_NOTE = re.compile(r"\([^()]*[A-Za-z]{2,}[^()]*\)")
_REFERENCE = re.compile(
    r"\b(?:see\s+)?(?:steps?|equations?|eq\.?|parts?|lines?|figures?|fig\.?|problems?|questions?|sections?"
    r"|chapters?|pages?|notes?|examples?|options?)\s*#?\(?\d+(?:\.\d+)*\)?",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(?<![\w.,])-?\s?(?:[$€£]\s?)?-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))(?:[eE][+-]?\d+)?"
    r"(?:\s+\d+\s*/\s*\d+|\s*/\s*\d+)?\s?%?"
)


def extract(text: str) -> str | None:
    """The final value as written, without notes in brackets; null where no place for one is found."""
    boxes = list(_BOX.finditer(text))
    if boxes:
        return _clean(_boxed(text, boxes[-1]))
    hashes = list(_HASHES.finditer(text))
    if hashes:
        return _clean(hashes[-1]["value"])
    said = list(_SAYS.finditer(text))
    if said:
        value = _said(said[-1]["value"])
        if value is not None:
            return value
    return _last_number(text)


def _boxed(text: str, box: re.Match[str]) -> str | None:
    if box["open"] is None:
        return text[box.end() : box.end() + 1]
    depth = 1
    for place in range(box.end(), len(text)):
        if text[place] in "{}" and text[place - 1] != "\\":
            depth += 1 if text[place] == "{" else -1
            if depth == 0:
                return text[box.end() : place]
    return None


def _clean(value: str | None) -> str | None:
    if value is None:
        return None
    value = _NOTE.sub("", value.replace("**", "")).strip().strip("$").strip().rstrip(".,;:").strip()
    return value or None


def _said(sentence: str) -> str | None:
    ends = _SENTENCE_END.search(sentence)
    sentence = sentence[: ends.start()] if ends else sentence
    sentence = _REFERENCE.sub("", _NOTE.sub("", sentence.replace("**", "")))
    for inline in _INLINE.finditer(sentence):
        content = next(group for group in inline.groups() if group is not None)
        if _is_value(content.rsplit("=", 1)[-1]):
            return content.strip()
    if "=" in sentence and _is_value(sentence.rsplit("=", 1)[1]):
        return sentence.rsplit("=", 1)[1].strip()
    whole = sentence.strip().rstrip(".,;:*_").strip()
    if _is_value(whole):
        return whole
    numbers = _numbers(sentence)
    if numbers:
        corrected = re.search(r"\b(?:not|no)\b", sentence, re.IGNORECASE)
        return numbers[-1] if corrected else numbers[0]
    return whole or None


def _is_value(text: str) -> bool:
    try:
        parse(plain(text).rstrip("%"))
    except Unparseable:
        return False
    return True


def _last_number(text: str) -> str | None:
    text = _REFERENCE.sub("", _NOTE.sub("", text.replace("**", "")))
    for line in reversed(text.splitlines()):
        numbers = _numbers(line)
        if numbers:
            return numbers[-1]
    return None


def _numbers(text: str) -> list[str]:
    return [found.group().strip() for found in _NUMBER.finditer(plain_minus(text)) if found.group().strip()]


def plain_minus(text: str) -> str:
    """The text with typographic minus signs as ASCII ones."""
    return re.sub("[\u2212\u2012\u2013\ufe63\uff0d]", "-", text)
