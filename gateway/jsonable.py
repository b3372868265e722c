"""JSON for what clients and engines send, whatever it is: exact in the spool, storable in PostgreSQL.

orjson does the work; where it refuses (lone surrogates, integers beyond 64 bits, foreign types, deep nesting)
the value is made plain first. Numbers that are not finite become null, since JSON has no word for them;
integers beyond 64 bits come back as floats.
"""

import json
import math
from collections.abc import Callable
from typing import Any, cast

import orjson

from ratchet.prompts import storable

MAX_DEPTH = 200
TOO_DEEP = "[nested too deeply]"
MAX_INTEGER_BITS = 1024
_NUL_ESCAPE = b"\\u0000"


def dumps(value: Any) -> tuple[bytes, bool]:
    """A value's JSON that keeps every text exactly, and whether something had to be left out of it.

    Args:
        value: Of any type; what JSON does not know becomes its `str`.
    """
    try:
        return orjson.dumps(value), False
    except TypeError:
        plain = Plain(text=lambda text: text)
        return json.dumps(plain.of(value), separators=(",", ":")).encode("ascii"), plain.changed


def loads(data: bytes) -> Any:
    """The value `dumps` was given.

    Raises:
        ValueError: Not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def storable_dumps(value: Any) -> tuple[str, bool]:
    """JSON that a `jsonb` column takes, and whether something had to be replaced or left out for that."""
    try:
        encoded = orjson.dumps(value)
        if _NUL_ESCAPE not in encoded:
            return encoded.decode(), False
    except TypeError:
        pass
    plain = Plain(text=storable)
    return json.dumps(plain.of(value), separators=(",", ":"), ensure_ascii=False), plain.changed


class Plain:
    """Turns a value into one that every JSON encoder takes.

    Attributes:
        changed: Whether a text was replaced or something was left out; a non-finite number does not count.
    """

    def __init__(self, text: Callable[[str], str]) -> None:
        self._text = text
        self.changed = False

    def of(self, value: Any, depth: int = 0) -> Any:
        """The plain value."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._noted(value, self._text(value))
        if isinstance(value, int):
            return value if value.bit_length() <= MAX_INTEGER_BITS else self._noted(value, None)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if not isinstance(value, dict | list | tuple):
            return self.of(str(value))
        if depth == MAX_DEPTH:
            return self._noted(None, TOO_DEEP)
        if isinstance(value, dict):
            pairs = cast("dict[Any, Any]", value).items()
            return {self.of(str(key)): self.of(inner, depth + 1) for key, inner in pairs}
        return [self.of(inner, depth + 1) for inner in cast("list[Any]", value)]

    def _noted(self, before: Any, after: Any) -> Any:
        self.changed = self.changed or before != after
        return after
