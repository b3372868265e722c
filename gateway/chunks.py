"""One event of an engine's stream, read."""

from typing import Any

from gateway import jsontext
from gateway.jsontext import as_object
from gateway.upstream import EngineFailure, error_of


def read_chunk(payload: bytes) -> dict[str, Any]:
    """The chunk an event holds.

    Raises:
        ApiError: It holds an error, or no chunk.
    """
    try:
        chunk = as_object(jsontext.decode(payload))
    except ValueError as error:
        raise garbage(error) from error
    if chunk is None:
        raise garbage(ValueError("an event without a JSON object"))
    if chunk.get("error"):
        raise error_of(500, payload)
    return chunk


def garbage(error: Exception) -> EngineFailure:
    """The engine says what no engine should."""
    return EngineFailure(502, "engine_failed", f"the engine's answer cannot be read: {error}")
