"""API keys: 256 random bits, shown once, stored as their SHA-256 (no dictionary reaches those)."""

import hashlib
import secrets
from dataclasses import dataclass
from enum import StrEnum

PREFIX = "rk-"
SHOWN = 10


class KeyRole(StrEnum):
    """What a key may do."""

    CLIENT = "client"
    """Ask for answers, and speak of its own."""
    RATER = "rater"
    """Sign in to the rating page."""
    OPERATOR = "operator"
    """Run releases, read every response."""
    SERVICE = "service"
    """Ask on behalf of Ratchet itself, such as probes."""


@dataclass(frozen=True)
class NewKey:
    """A key just minted.

    Attributes:
        text: The key itself; shown once, never stored.
        prefix: Its first characters, by which people recognise it.
        hash: What is stored.
    """

    text: str
    prefix: str
    hash: bytes


def hash_key(text: str) -> bytes:
    """The 32 bytes that are stored for a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def mint() -> NewKey:
    """A fresh key."""
    text = PREFIX + secrets.token_urlsafe(32)
    return NewKey(text=text, prefix=text[:SHOWN], hash=hash_key(text))
