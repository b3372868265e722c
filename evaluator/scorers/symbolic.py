"""Equality of values with roots, symbols or functions: SymPy in a process of its own, bounded in time and
memory.

SymPy's simplification can take for ever on small inputs, so it never runs in the caller's process.
"""

import importlib
import json
import operator
import resource
import subprocess
import sys
from typing import Any, Literal, cast

from evaluator.scorers.math_expressions import Node

TIMEOUT_SECONDS = 20.0
MEMORY_BYTES = 2 * 1024**3
DIGITS = 60

Verdict = Literal["equal", "different", "unknown"]


def compare(one: Node, other: Node, *, timeout: float = TIMEOUT_SECONDS) -> Verdict:
    """Whether two trees have the same value; unknown where SymPy cannot tell, or not in time.

    Args:
        one: As `math_expressions.parse` gives it, without sequences.
        other: Likewise.
        timeout: In seconds.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps([one, other]),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "unknown"
    said = done.stdout.strip()
    return cast(Verdict, said) if done.returncode == 0 and said in {"equal", "different"} else "unknown"


def main() -> None:
    """Reads two trees as JSON from standard input and prints the verdict."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    one, other = json.load(sys.stdin)
    print(_verdict(_expression(one), _expression(other)))


def _verdict(one: Any, other: Any) -> Verdict:
    if one == other:
        return "equal"
    difference = one - other
    if difference.is_infinite or difference.is_finite is False:
        return "different"
    if not difference.free_symbols and abs(difference.evalf(DIGITS)) > 10 ** (5 - DIGITS):
        return "different"
    answer = difference.equals(0)
    if answer is None:
        return "unknown"
    return "equal" if answer else "different"


def _expression(node: list[Any]) -> Any:
    kind, *parts = node
    if kind == "number":
        return _sympy().Rational(parts[0])
    if kind == "symbol":
        return _sympy().Symbol(parts[0], real=True)
    if kind == "constant":
        return {"pi": _sympy().pi, "e": _sympy().E, "infty": _sympy().oo}[parts[0]]
    if kind == "function":
        return getattr(_sympy(), parts[0])(_expression(parts[1]))
    if kind == "factorial":
        return _sympy().factorial(_expression(parts[0]))
    return _OPERATORS[kind](*(_expression(part) for part in parts))


def _divided(top: Any, bottom: Any) -> Any:
    return top / bottom


def _raised(base: Any, exponent: Any) -> Any:
    return base**exponent


_OPERATORS: dict[str, Any] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": _divided,
    "negate": operator.neg,
    "power": _raised,
    "absolute": abs,
}


def _sympy() -> Any:
    return importlib.import_module("sympy")


if __name__ == "__main__":
    main()
