"""Tool calls that execute: the tool exists, its arguments fit, and running it gives what was expected."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from evaluator.scorers.format import load_json
from evaluator.scorers.math_expressions import NotRational, Unparseable, exact, parse, plain
from evaluator.scorers.outcome import TRUNCATED, Answer, Score, unscored

A = TypeVar("A", bound=BaseModel)


class ToolFailed(ValueError):
    """The tool ran and has no result for these arguments."""


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    """A tool that the evaluator runs itself: pure, and without reach outside its arguments."""

    name: str
    description: str
    arguments: type[A]
    run: Callable[[A], str]

    def definition(self) -> dict[str, Any]:
        """The tool in OpenAI's form, for the request."""
        schema = self.arguments.model_json_schema()
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Calculation(_Arguments):
    """Arguments of `calculator`."""

    expression: str


class Lookup(_Arguments):
    """Arguments of `stock`."""

    item: str
    warehouse: str


STOCK = {("bolts", "north"): 120, ("bolts", "south"): 35, ("nuts", "north"): 80, ("nuts", "south"): 0}


def _calculate(arguments: Calculation) -> str:
    try:
        return str(exact(parse(plain(arguments.expression))))
    except (Unparseable, NotRational) as error:
        raise ToolFailed(str(error)) from error


def _stock(arguments: Lookup) -> str:
    found = STOCK.get((arguments.item.casefold(), arguments.warehouse.casefold()))
    if found is None:
        raise ToolFailed(f"no {arguments.item} in {arguments.warehouse}")
    return str(found)


TOOLS: dict[str, Tool[Any]] = {
    tool.name: tool
    for tool in (
        Tool("calculator", "Computes an arithmetic expression exactly.", Calculation, _calculate),
        Tool(
            "stock", "Says how many of an item (bolts, nuts) a warehouse (north, south) has.", Lookup, _stock
        ),
    )
}


def score_tool_call(answer: Answer, tool: str, result: str, tools: Mapping[str, Tool[Any]] = TOOLS) -> Score:
    """Right where the answer's one call is of this tool and running it gives this result.

    Args:
        answer: With its calls in OpenAI's form.
        tool: Expected name.
        result: Expected of the run; numbers are compared as numbers.
        tools: All that were offered.
    """
    if tool not in tools:
        return unscored(f"the suite expects {tool!r}, which is no tool of ours")
    if answer.truncated:
        return TRUNCATED
    if len(answer.tool_calls) != 1:
        return Score.of(False, f"{len(answer.tool_calls)} calls where one is right")
    function = answer.tool_calls[0].get("function")
    if not isinstance(function, Mapping):
        return Score.of(False, "the call names no function")
    named = cast(Mapping[str, Any], function)
    name, arguments = named.get("name"), named.get("arguments")
    if name != tool:
        return Score.of(False, f"calls {name!r}, not {tool!r}")
    try:
        given = tools[tool].run(tools[tool].arguments.model_validate(load_json(str(arguments))))
    except ValidationError as error:
        return Score.of(False, f"the arguments do not fit: {error.errors()[0]['msg']}")
    except ToolFailed as error:
        return Score.of(False, f"the tool fails: {error}")
    except ValueError as error:
        return Score.of(False, f"the arguments are no JSON: {error}")
    return Score.of(_same(given, result), f"the tool gives {given}, expected {result}")


def _same(given: str, expected: str) -> bool:
    try:
        return Fraction(given) == Fraction(expected)
    except (ValueError, ZeroDivisionError):
        return given == expected
