"""Code answers: the code runs in the sandbox, what it returns is compared outside.

The sandbox never sees an expected value, so code that ends the process early, patches the comparison or reads
its own source gains nothing.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from evaluator.sandbox import Limits, run_python
from evaluator.scorers.outcome import TRUNCATED, Answer, Score, unscored

_FENCE = re.compile(
    r"^```[ \t]*(?:python|py|python3)?[ \t]*\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
_LOOKS_LIKE_CODE = re.compile(r"^(?:def|class|import|from|async def) ", re.MULTILINE)
_ASK = """

import json as _json
_given = []
for _call in {calls!r}:
    try:
        _given.append(["value", eval(_call)])
    except Exception as _error:
        _given.append(["error", type(_error).__name__])
print()
print(_json.dumps(_given))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One call and what it must give."""

    call: str
    """An expression over what the answer defines."""
    expected: Any
    """In JSON's types."""


def score_code(answer: Answer, cases: list[Case], limits: Limits | None = None) -> Score:
    """Right where every case gives its expected value.

    Raises:
        SandboxUnavailable: The machine cannot run code safely.
    """
    if not cases:
        return unscored("the suite gives no case")
    if answer.truncated:
        return TRUNCATED
    code = extract_code(answer.text)
    if code is None:
        return Score.of(False, "the answer holds no code")
    ran = run_python(code + _ASK.format(calls=[case.call for case in cases]), limits)
    if ran.end == "timed_out":
        return Score.of(False, "the code did not end in time")
    if ran.exit_code != 0:
        return Score.of(False, f"the code fails: {ran.stderr.strip().rpartition(chr(10))[2][:200]}")
    return _compared(ran.stdout, cases)


def extract_code(text: str) -> str | None:
    """The last fenced block of Python, or the whole text where it is code without a fence."""
    fenced = [found["code"] for found in _FENCE.finditer(text)]
    if fenced:
        return fenced[-1]
    return text if _LOOKS_LIKE_CODE.search(text) else None


def _compared(stdout: str, cases: list[Case]) -> Score:
    try:
        given: Any = json.loads(stdout.rstrip("\n").rpartition("\n")[2])
        pairs = list(zip(cases, given, strict=True))
    except (ValueError, TypeError, RecursionError):
        return Score.of(False, "the code does not let its cases run")
    for case, found in pairs:
        wanted = ["value", case.expected]
        if json.dumps(found, sort_keys=True) != json.dumps(wanted, sort_keys=True):
            return Score.of(False, f"{case.call} gives {found!r:.120}, expected {case.expected!r:.80}")
    return Score.of(True, f"all {len(cases)} cases give what they must")
