"""Is the final value of an answer the expected one? Exactly: no float, no tolerance."""

import re
from dataclasses import dataclass

from evaluator.scorers.match import normalised
from evaluator.scorers.math_expressions import Node, NotRational, Unparseable, exact, parse, plain
from evaluator.scorers.math_extract import extract
from evaluator.scorers.outcome import TRUNCATED, Answer, Score, unscored
from evaluator.scorers.symbolic import Verdict, compare

_LEADING_NAME = re.compile(r"^\s*[A-Za-z]\w*\s*(?:\([A-Za-z]\)\s*)?(?:=|\\approx|≈)\s*")
_UNIT = re.compile(r"(?<=[\d})%])\s*[A-Za-z][A-Za-z.' ]*(?:\^?\{?\d\}?)?(?:\s*/\s*[A-Za-z]+)?\s*$")


@dataclass(frozen=True, slots=True)
class _Value:
    tree: Node
    percent: bool


def score_math(answer: Answer, expected: str) -> Score:
    """Compares the answer's final value with the expected one.

    A percent sign counts on either reading where only one side has it: 50% equals 50 and 1/2. Units are not
    compared.

    Args:
        answer: Of the policy.
        expected: A value in plain text or LaTeX, or a text such as a name.
    """
    if answer.truncated:
        return TRUNCATED
    found = extract(answer.text)
    if found is None:
        return unscored("no final value found in the answer")
    verdict = same_value(found, expected)
    if verdict == "unknown":
        return unscored(f"could not decide whether {found!r} equals {expected!r}")
    return Score.of(verdict == "equal", f"final value {found!r}, expected {expected!r}")


def expected_of_gsm8k(solution: str) -> str:
    """The value after `####` in a GSM8K solution.

    Raises:
        ValueError: There is none.
    """
    head, mark, value = solution.rpartition("####")
    if not mark or not value.strip() or not head.strip():
        raise ValueError("a GSM8K solution ends in '#### value'")
    return value.strip()


def same_value(found: str, expected: str) -> Verdict:
    """Whether two written values are the same; texts that are no mathematics are compared normalised."""
    gold = _readings(expected)
    if not gold:
        return "equal" if normalised(found) == normalised(expected) else "different"
    wanted = gold[0]
    given = _readings(found)
    if _is_rational(wanted.tree):
        given = [one for one in given if _is_rational(one.tree)] or given
    if not given:
        return "different"
    if given[0].percent != wanted.percent:
        return _any([_same(given[0].tree, wanted.tree), _same(*_hundredfold(given[0], wanted))])
    return _same(given[0].tree, wanted.tree)


def _hundredfold(given: _Value, gold: _Value) -> tuple[Node, Node]:
    hundred: Node = ("number", "100")
    if given.percent:
        return ("divide", given.tree, hundred), gold.tree
    return given.tree, ("divide", gold.tree, hundred)


def _readings(text: str) -> list[_Value]:
    """The text as a value, and as a value with a unit behind it; what cannot be read is left out."""
    text = _LEADING_NAME.sub("", plain(text)).strip()
    if "=" in text:
        text = text.rsplit("=", 1)[1].strip()
    readings: list[_Value] = []
    for written in (text, _UNIT.sub("", text)):
        percent = written.rstrip().endswith("%")
        try:
            readings.append(_Value(parse(written.rstrip().removesuffix("%")), percent))
        except Unparseable:
            continue
    return readings


def _is_rational(tree: Node) -> bool:
    try:
        exact(tree)
    except (NotRational, Unparseable):
        return False
    return True


def _same(one: Node, other: Node) -> Verdict:
    if one[0] == "sequence" or other[0] == "sequence":
        return _same_sequence(one, other)
    try:
        return "equal" if exact(one) == exact(other) else "different"
    except NotRational:
        return compare(one, other)
    except Unparseable:
        return "equal" if one == other else "unknown"


def _same_sequence(one: Node, other: Node) -> Verdict:
    if one[0] != other[0] or one[1:3] != other[1:3] or len(one) != len(other):
        return "different"
    if one[1] == "{" or one[1] == "":
        return _same_set(list(one[3:]), list(other[3:]))
    verdicts = [_same(mine, theirs) for mine, theirs in zip(one[3:], other[3:], strict=True)]
    if "different" in verdicts:
        return "different"
    return "unknown" if "unknown" in verdicts else "equal"


def _same_set(ones: list[Node], others: list[Node]) -> Verdict:
    doubtful = False
    for one in ones:
        verdicts = [_same(one, other) for other in others]
        if "equal" in verdicts:
            del others[verdicts.index("equal")]
        elif "unknown" in verdicts:
            doubtful = True
        else:
            return "different"
    return "unknown" if doubtful else "equal"


def _any(verdicts: list[Verdict]) -> Verdict:
    if "equal" in verdicts:
        return "equal"
    return "unknown" if "unknown" in verdicts else "different"
