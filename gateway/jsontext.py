"""JSON in and out: quick for what is usual, whole for lone surrogates and integers beyond 64 bits."""

import json
import re
from typing import Any, NoReturn, cast

import orjson

_SURROGATE = re.compile("[\ud800-\udfff]")


def decode(body: bytes) -> Any:
    r"""Parses JSON; escapes of lone surrogates (`"\ud800"`), which orjson refuses, are kept.

    Raises:
        ValueError: Not JSON, nested too deeply, or NaN and infinities, which JSON does not have.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        if b"\\u" not in body:
            raise
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("the document is nested too deeply") from error


def encode(value: Any) -> bytes:
    """Compact JSON; lone surrogates leave as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def as_object(value: Any) -> dict[str, Any] | None:
    """The value if it is a JSON object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: Any) -> list[Any] | None:
    """The value if it is a JSON list."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def without_surrogates(value: Any) -> Any:
    """The same JSON value with every lone surrogate replaced by U+FFFD, as tokenizers need it."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if (items := as_list(value)) is not None:
        return [without_surrogates(item) for item in items]
    if (fields := as_object(value)) is not None:
        return {without_surrogates(name): without_surrogates(item) for name, item in fields.items()}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
