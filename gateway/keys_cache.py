"""Who asks: API keys by the hash of their text, so that a lookup's time says nothing about a key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gateway.errors import ApiError
from ratchet.keys import KeyRole, hash_key

GENERATING_ROLES = frozenset({KeyRole.CLIENT, KeyRole.SERVICE, KeyRole.OPERATOR})


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A key in force.

    Attributes:
        id: Its row.
        role: What it may do.
        rpm: Requests a minute; None without bound.
        concurrency: Requests in flight at once; None without bound.
    """

    id: UUID
    role: KeyRole
    rpm: int | None
    concurrency: int | None

    @classmethod
    def from_row(cls, identity: UUID, role: str, limits: Mapping[str, Any]) -> "KnownKey":
        """A key as its row has it; `limits` may hold `rpm` and `concurrency`.

        Raises:
            ValueError: A limit is not a whole number of at least 1, or the role is unknown.
        """
        return cls(identity, KeyRole(role), _limit(limits, "rpm"), _limit(limits, "concurrency"))


def authenticate(keys: Mapping[bytes, KnownKey], authorization: str | None) -> KnownKey:
    """The key of an `Authorization: Bearer ...` header.

    Raises:
        ApiError: 401 when there is none or nobody has it.
    """
    scheme, _, text = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise ApiError(401, "missing_api_key", "no API key: send it as `Authorization: Bearer rk-...`")
    key = keys.get(hash_key(text.strip()))
    if key is None:
        raise ApiError(401, "invalid_api_key", "this API key is unknown or was revoked")
    return key


def may_generate(key: KnownKey) -> None:
    """Lets keys of clients, services and operators pass.

    Raises:
        ApiError: 403 for any other role.
    """
    if key.role not in GENERATING_ROLES:
        raise ApiError(403, "role_not_allowed", f"a key of role {key.role} may not ask for answers")


def _limit(limits: Mapping[str, Any], name: str) -> int | None:
    value = limits.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"limit {name} must be a whole number of at least 1, not {value!r}")
    return value
