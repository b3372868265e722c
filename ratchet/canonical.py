"""Canonical JSON and its digest: the identity of everything that is addressed by content."""

import hashlib
import json
from pathlib import Path
from typing import Any

SHORT_DIGEST = 12


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no white space, ASCII only, and no NaN: equal values give equal text.

    Raises:
        ValueError: The value holds NaN or an infinity.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(value: Any) -> str:
    """SHA-256 (64 hex digits) of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def digest_of_text(text: str) -> str:
    """SHA-256 (64 hex digits) of a text; lone surrogates are kept, so any Python string has a digest."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of_file(path: Path) -> str:
    """SHA-256 (64 hex digits) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short(digest: str) -> str:
    """The first 12 hex digits: what people see and type."""
    return digest[:SHORT_DIGEST]
