"""From what the spool holds of a request to its row of `serving.response`; pure.

PostgreSQL cannot hold NUL and lone surrogates: U+FFFD stands in their place, and the row's `sanitized` is
true. It is true as well where something else had to give way: JSON nested beyond `jsonable.MAX_DEPTH`, or an
end user's name too long to be indexed. Numbers that are not finite are null.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Float, Text
from sqlalchemy.dialects.postgresql import JSONB

from gateway.jsonable import dumps, storable_dumps
from gateway.records import Closing, Opening
from ratchet.canonical import digest_of_text, short
from ratchet.db.models.serving import Response
from ratchet.ids import time_of
from ratchet.prompts import storable

Row = dict[str, Any]
"""Column to value; JSON columns hold their text."""

COLUMNS = tuple(column.name for column in Response.__table__.columns)
CUT = "cut"
"""Key beside the fields of an opening or closing of which `encode` had to leave something out."""
LOST = Closing(
    status="lost",
    http_status=0,
    stamp="unverified",
    error="the gateway process ended before the answer did; the output is what was recorded until then",
    error_code="gateway_lost",
)
"""The closing of a request that has none. Status 0: nobody knows whether the client got a status line."""
MAX_USER_CHARACTERS = 512
"""A B-tree entry takes 2,704 bytes; a character may take four."""

_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in (Opening, Closing)
}
_TEXT = frozenset(column.name for column in Response.__table__.columns if isinstance(column.type, Text))
_JSON = frozenset(column.name for column in Response.__table__.columns if isinstance(column.type, JSONB))
_FLOAT = frozenset(column.name for column in Response.__table__.columns if isinstance(column.type, Float))


def encode(part: Opening | Closing) -> bytes:
    """JSON of an opening or a closing as the spool keeps it; never fails, every text exact."""
    fields = _fields(part)
    encoded, cut = dumps(fields)
    return dumps({**fields, CUT: True})[0] if cut else encoded


def row_of(opening: Mapping[str, Any], texts: Mapping[int, str], closing: Mapping[str, Any] | None) -> Row:
    """The row of one request.

    Args:
        opening: Fields of `Opening` in JSON types.
        texts: For each choice index the deltas of a stream, joined.
        closing: Fields of `Closing` in JSON types; None: the request is `lost`.

    Raises:
        ValueError: The id is not a UUIDv7.
        KeyError, TypeError, AttributeError: The fields are not those of an opening and a closing.
    """
    ending = _fields(LOST) if closing is None else closing
    outputs = _outputs(texts, ending["outputs"] or [])
    first = outputs[0] if outputs and outputs[0]["index"] == 0 else {}
    output = first.get("text")
    values = {
        **opening,
        **ending,
        "created_at": time_of(UUID(opening["id"])),
        "outputs": outputs,
        "output": output,
        "output_sha256": None if output is None else digest_of_text(output),
        "finish_reason": ending["finish_reason"] or first.get("finish_reason"),
    }
    row, changed = _storable(values)
    row["sanitized"] = changed or CUT in opening or CUT in ending
    return row


def _fields(part: Opening | Closing) -> dict[str, Any]:
    return {name: getattr(part, name) for name in _FIELDS[type(part)]}


def _outputs(texts: Mapping[int, str], told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every choice by its index; what was delivered as deltas is its text, whatever the closing says."""
    choices = {int(item["index"]): item for item in told}
    return [
        {
            "index": index,
            "finish_reason": None,
            "tool_calls": None,
            **choices.get(index, {}),
            "text": texts[index] if index in texts else choices[index].get("text"),
        }
        for index in sorted({*choices, *texts})
    ]


def _storable(values: Mapping[str, Any]) -> tuple[Row, bool]:
    row: Row = {}
    changed = False
    for name in COLUMNS:
        value = values.get(name)
        if value is None:
            row[name] = None
        elif name in _JSON:
            row[name], replaced = storable_dumps(value)
            changed = changed or replaced
        elif name in _TEXT:
            row[name] = storable(str(value)) if name != "user_id" else _indexable(storable(str(value)))
            changed = changed or row[name] != value
        elif name in _FLOAT:
            row[name] = value if math.isfinite(value) else None
        else:
            row[name] = value
    return row, changed


def _indexable(text: str) -> str:
    """A name short enough to be indexed; a longer one keeps its beginning and gets a digest of the whole."""
    if len(text) <= MAX_USER_CHARACTERS:
        return text
    mark = f"…{short(digest_of_text(text))}"
    return text[: MAX_USER_CHARACTERS - len(mark)] + mark
