"""A small language of mathematical values in plain text and LaTeX: parsed by hand, computed exactly.

Nothing is evaluated by a programming language. Rational values are Fractions of bounded size, so 1/2004! and
1/2006! differ although no float tells them apart; what holds roots, symbols or functions stays a tree.
"""

import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

MAX_CHARACTERS = 400
MAX_DEPTH = 40
MAX_BITS = 100_000
MAX_FACTORIAL = 3_000

Node = tuple[Any, ...]
"""("number", "7/2"), ("symbol", "x"), ("constant", "pi"), (operator, node, ...) or
("sequence", opening, closing, node, ...)."""

FUNCTIONS = ("sin", "cos", "tan", "log", "ln", "exp")
_OPENING = {"(": ")", "[": "]", "{": "}"}
_VULGAR = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5",
    "⅘": "4/5", "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
}  # fmt: skip
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_PLAIN = str.maketrans(
    {
        "\u2212": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-", "\ufe63": "-", "\uff0d": "-",
        "×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "\u2044": "/", "\u2215": "/",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ",
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    }
)  # fmt: skip
_DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|quad|qquad|limits|bigl?|bigr|Bigl?|Bigr)(?![A-Za-z])"
    r"|\\[,;:! ]|\^\s*\{?\s*\\circ\s*\}?|\\degree|°|\\?[$€£]|~"
)
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf|operatorname)\s*\{([^{}]*)\}")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)(?:[eE](?P<exponent>[+-]?\d{1,3})(?![\dA-Za-z]))?"
    r"|(?P<command>\\[A-Za-z]+|\\[{}])|(?P<word>[A-Za-z]+)|(?P<sign>\*\*|[-+*/^!(){}\[\],|]))"
)


class Unparseable(ValueError):
    """The text is no mathematical value that this language knows, or one too large for it."""


class NotRational(ValueError):
    """The value holds a root, a symbol or a function: it is no Fraction."""


def plain(text: str) -> str:
    """The text without typographic, sizing and currency signs; units in \\text stay words."""
    text = text.translate(_PLAIN)
    for sign, fraction in _VULGAR.items():
        text = re.sub(rf"(\d)\s*{sign}", rf"\1 {fraction}", text).replace(sign, fraction)
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda found: "^{" + found.group().translate(_SUPERSCRIPT) + "}", text)
    text = text.replace("{,}", ",").replace(r"\%", "%").replace(r"\cdot", "*").replace(r"\times", "*")
    text = text.replace(r"\div", "/").replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")
    text = re.sub(r"\d\\[,;:! ]\d{3}(?!\d)", lambda found: re.sub(r"\\.", "", found.group()), text)
    text = _TEXT.sub(r" \1 ", text)
    return _DROPPED.sub("", text).strip()


def parse(text: str) -> Node:
    """The tree of a value, given as `plain` leaves it.

    Raises:
        Unparseable: It is none.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unparseable(f"longer than {MAX_CHARACTERS} characters")
    text = _GROUPED.sub(lambda found: found.group().replace(",", ""), text)
    text = re.sub(r"(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}", r"(\1+(\2)/(\3))", text)
    text = re.sub(r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)", r"(\1+\2/\3)", text)
    parser = _Parser(_tokens(text))
    node = parser.sequence() if "," in text else parser.sum()
    if parser.left():
        raise Unparseable(f"{parser.next()!r} was not expected")
    return node


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    place = 0
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if found is None:
            raise Unparseable(f"no value starts at {text[place : place + 10]!r}")
        place = found.end()
        if found["number"] is not None:
            value = Fraction(found["number"])
            if found["exponent"] is not None:
                value = _power(value, Fraction(10), Fraction(int(found["exponent"])))
            tokens.append(("number", str(value)))
        elif found["word"] is not None:
            tokens.extend(_word(found["word"]))
        else:
            tokens.append(("sign", (found["command"] or found["sign"]).replace("**", "^")))
    return tokens


def _word(word: str) -> list[tuple[str, str]]:
    if word in {"pi", "sqrt", *FUNCTIONS}:
        return [("sign", "\\" + word)]
    if len(word) > 2:
        raise Unparseable(f"{word!r} is a word, no value")
    return [("symbol", letter) for letter in word]


class _Parser:
    """Recursive descent; every level deeper is counted."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0

    def left(self) -> bool:
        return self._place < len(self._tokens)

    def peek(self) -> tuple[str, str]:
        return self._tokens[self._place] if self.left() else ("end", "")

    def next(self) -> tuple[str, str]:
        token = self.peek()
        self._place += 1
        return token

    def _take(self, *signs: str) -> str | None:
        kind, value = self.peek()
        if kind == "sign" and value in signs:
            self._place += 1
            return value
        return None

    def _close(self, *signs: str) -> str:
        taken = self._take(*signs)
        if taken is None:
            raise Unparseable(f"{' or '.join(signs)} is missing")
        return taken

    def sequence(self) -> Node:
        opening = self._take("(", "[", r"\{", "{") or ""
        items = [self.sum()]
        while self._take(","):
            items.append(self.sum())
        closing = self._close(")", "]", r"\}", "}") if opening else ""
        return ("sequence", opening.removeprefix("\\"), closing.removeprefix("\\"), *items)

    def sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unparseable("nested too deeply")
        node = self._product()
        while sign := self._take("+", "-"):
            node = ("add" if sign == "+" else "subtract", node, self._product())
        self._depth -= 1
        return node

    def _product(self) -> Node:
        node = self._factor()
        while True:
            sign = self._take("*", "/")
            if sign is None and not self._starts_a_factor():
                return node
            node = ("divide" if sign == "/" else "multiply", node, self._factor())

    def _starts_a_factor(self) -> bool:
        kind, value = self.peek()
        return kind == "symbol" or (
            kind == "sign" and (value == "(" or value[1:] in {"pi", "sqrt", "frac", *FUNCTIONS})
        )

    def _factor(self) -> Node:
        sign = self._take("-", "+")
        if sign is None:
            return self._power()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unparseable("nested too deeply")
        node = self._factor()
        self._depth -= 1
        return ("negate", node) if sign == "-" else node

    def _power(self) -> Node:
        node = self._atom()
        while self._take("!"):
            node = ("factorial", node)
        if self._take("^"):
            return ("power", node, self._factor())
        return node

    def _atom(self) -> Node:
        kind, value = self.next()
        if kind in {"number", "symbol"}:
            return (kind, value) if value != "e" else ("constant", "e")
        if kind == "sign" and value in _OPENING:
            node = self.sum()
            self._close(_OPENING[value])
            return node
        if value == "|":
            node = self.sum()
            self._close("|")
            return ("absolute", node)
        if value in {r"\pi", r"\infty"}:
            return ("constant", value[1:])
        if value == r"\frac":
            return ("divide", self._argument(), self._argument())
        if value == r"\sqrt":
            return self._root()
        if value[1:] in FUNCTIONS:
            return ("function", value[1:].replace("ln", "log"), self._argument())
        raise Unparseable(f"{value or 'the end'!r} is no value")

    def _root(self) -> Node:
        index: Node = ("number", "2")
        if self._take("["):
            index = self.sum()
            self._close("]")
        return ("power", self._argument(), ("divide", ("number", "1"), index))

    def _argument(self) -> Node:
        kind, value = self.peek()
        if kind == "number" and value.isdigit() and len(value) > 1 and self._follows_frac():
            self._tokens[self._place : self._place + 1] = [("number", digit) for digit in value]
        return self._atom()

    def _follows_frac(self) -> bool:
        return self._place > 0 and self._tokens[self._place - 1] == ("sign", r"\frac")


def exact(node: Node) -> Fraction:
    """The value of a tree without symbols, roots or functions.

    Raises:
        NotRational: It has some.
        Unparseable: It has no value (a division by zero), or one too large to write down.
    """
    kind = node[0]
    if kind == "number":
        return Fraction(node[1])
    if kind == "power":
        base, exponent = exact(node[1]), exact(node[2])
        return _power(Fraction(1), base, exponent)
    if kind == "factorial":
        value = exact(node[1])
        if value.denominator != 1 or not 0 <= value <= MAX_FACTORIAL:
            raise Unparseable(f"the factorial of {str(value)[:20]} is not computed")
        return Fraction(math.factorial(int(value)))
    if kind == "divide":
        bottom = exact(node[2])
        if bottom == 0:
            raise Unparseable("a division by zero")
        return _bounded(exact(node[1]) / bottom)
    if kind in _RATIONAL:
        return _bounded(_RATIONAL[kind](*(exact(part) for part in node[1:])))
    raise NotRational(f"{kind} is not rational")


def _negated(value: Fraction) -> Fraction:
    return -value


def _absolute(value: Fraction) -> Fraction:
    return abs(value)


_RATIONAL: dict[str, Callable[..., Fraction]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negate": _negated,
    "absolute": _absolute,
}


def _power(scale: Fraction, base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise NotRational("a root")
    times = int(exponent)
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(times) > MAX_BITS or size * abs(times) > MAX_BITS:
        raise Unparseable("a power too large to write down")
    if base == 0 and times < 0:
        raise Unparseable("a division by zero")
    return _bounded(scale * base**times)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 2 * MAX_BITS:
        raise Unparseable("a value too large to write down")
    return value
