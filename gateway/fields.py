"""Which fields a request may hold, and of which kind: what is not named here is refused, never passed on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from gateway.errors import bad_request
from gateway.jsontext import as_list, as_object

Check = Callable[[str, Any], Any]


class Kind(StrEnum):
    """Which endpoint was asked."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a request that speak of the answer, checked.

    Attributes:
        values: Field to value; null counts as absent.
        ignored: Fields of OpenAI's service that mean nothing here, by name.
    """

    values: dict[str, Any]
    ignored: tuple[str, ...]


def check_fields(kind: Kind, document: Mapping[str, Any]) -> Fields:
    """Checks every field but those that `gateway.ask` reads itself.

    Raises:
        ApiError: 400 naming the field that is unknown or has a wrong value.
    """
    checks = CHECKS[kind]
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in document.items():
        if name in READ_ELSEWHERE[kind] or value is None:
            continue
        if name in IGNORED:
            ignored.append(name)
        elif name in checks:
            values[name] = checks[name](name, value)
        else:
            raise bad_request(
                name, f"the field {name!r} is not supported: remove it", code="unsupported_parameter"
            )
    return Fields(values, tuple(sorted(ignored)))


def _number(low: float, high: float) -> Check:
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise bad_request(name, f"{name} must be a number from {low:g} to {high:g}")
        return value

    return check


def _integer(low: int, high: int) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise bad_request(name, f"{name} must be a whole number from {low} to {high}")
        return value

    return check


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise bad_request(name, f"{name} must be true or false")
    return value


def _stop(name: str, value: Any) -> list[str]:
    stops = as_list(value) or [value]
    if len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise bad_request(name, f"stop must be a text, or a list of at most {MAX_STOPS} texts, none empty")
    return cast("list[str]", stops)


def _logit_bias(name: str, value: Any) -> dict[int, float]:
    refused = bad_request(name, "logit_bias must map token ids to numbers from -100 to 100")
    try:
        bias = {int(token): float(weight) for token, weight in (as_object(value) or {}).items()}
    except (TypeError, ValueError):
        raise refused from None
    if as_object(value) is None or any(
        token < 0 or not -100 <= weight <= 100 for token, weight in bias.items()
    ):
        raise refused
    return bias


def _named_function(value: Any) -> dict[str, Any] | None:
    function = as_object((as_object(value) or {}).get("function"))
    return function if function and isinstance(function.get("name"), str) else None


def _tools(name: str, value: Any) -> list[dict[str, Any]]:
    tools = as_list(value)
    if not tools:
        raise bad_request(name, "tools must be a list of at least one tool, or absent")
    checked: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        function = _named_function(tool)
        if function is None:
            raise bad_request(f"{name}[{index}]", 'a tool is {"type": "function", "function": {"name": ...}}')
        checked.append({"type": "function", "function": function})
    return checked


def _tool_choice(name: str, value: Any) -> Any:
    if value in ("none", "auto", "required"):
        return value
    function = _named_function(value)
    if function is None:
        raise bad_request(name, "tool_choice must be none, auto, required, or name a function")
    return {"type": "function", "function": {"name": function["name"]}}


def _response_format(name: str, value: Any) -> Any:
    given = as_object(value) or {}
    kind = given.get("type")
    if kind in ("text", "json_object"):
        return {"type": kind}
    schema = as_object(given.get("json_schema"))
    if kind != "json_schema" or schema is None:
        raise bad_request(name, "response_format must have type text, json_object, or json_schema with one")
    return {"type": kind, "json_schema": schema}


def _metadata(name: str, value: Any) -> Any:
    metadata = as_object(value)
    if metadata is None or len(metadata) > MAX_METADATA:
        raise bad_request(name, f"metadata must be an object of at most {MAX_METADATA} entries")
    return metadata


def _only(allowed: Any, message: str) -> Check:
    def check(name: str, value: Any) -> Any:
        if value != allowed:
            raise bad_request(name, message, code="unsupported_value")
        return value

    return check


MAX_STOPS = 4
MAX_CHOICES = 16
MAX_METADATA = 16
INT64 = 2**63

PINNED: dict[str, Check] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_k": _integer(-1, INT64 - 1),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0, 2),
    "logit_bias": _logit_bias,
}
"""Fields whose value is the policy's, whatever a client sends."""

_BOTH: dict[str, Check] = {
    **PINNED,
    "max_tokens": _integer(1, INT64 - 1),
    "stop": _stop,
    "seed": _integer(-INT64, INT64 - 1),
    "n": _integer(1, MAX_CHOICES),
    "metadata": _metadata,
}

CHECKS: dict[Kind, dict[str, Check]] = {
    Kind.CHAT: {
        **_BOTH,
        "max_completion_tokens": _integer(1, INT64 - 1),
        "tools": _tools,
        "tool_choice": _tool_choice,
        "parallel_tool_calls": _boolean,
        "response_format": _response_format,
        "logprobs": _boolean,
        "top_logprobs": _integer(0, 20),
        "modalities": _only(["text"], "this model answers in text only"),
    },
    Kind.COMPLETION: {
        **_BOTH,
        "logprobs": _integer(0, 20),
        "echo": _only(False, "echo is not supported: an answer is recorded without its prompt"),
    },
}

READ_ELSEWHERE: dict[Kind, frozenset[str]] = {
    Kind.CHAT: frozenset({"model", "messages", "stream", "stream_options", "user"}),
    Kind.COMPLETION: frozenset({"model", "prompt", "stream", "stream_options", "user"}),
}

IGNORED = frozenset(
    {
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "reasoning_effort",
        "verbosity",
        "prediction",
    }
)
"""Fields of OpenAI's hosted service without an effect here; the response header names them."""
