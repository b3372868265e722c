"""UUIDv7 identities (RFC 9562, 5.7): the first 48 bits are Unix milliseconds, so ids sort by time."""

import hashlib
from datetime import UTC, datetime, timedelta
from uuid import UUID

import uuid_utils

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def new_id() -> UUID:
    """A fresh UUIDv7, strictly increasing within this process."""
    return UUID(bytes=uuid_utils.uuid7().bytes)


def time_of(identity: UUID) -> datetime:
    """The UTC time a UUIDv7 was made, to the millisecond.

    Raises:
        ValueError: The id is not of version 7, or its time is past the year 9999.
    """
    if identity.version != 7:
        raise ValueError(f"{identity} is a version {identity.version} UUID; only version 7 carries a time")
    try:
        return _EPOCH + timedelta(milliseconds=identity.int >> 80)
    except OverflowError:
        raise ValueError(f"{identity} names a time past the year 9999") from None


def floor_of(moment: datetime) -> UUID:
    """The smallest UUID of a given time: the bound of a partition or of a time filter."""
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    return UUID(int=milliseconds << 80)


def id_beside(other: UUID, *parts: str) -> UUID:
    """A UUIDv7 with the time of another, its other 74 bits taken from the parts: equal parts, equal id.

    What is derived from a row so lies in the row's partition and cannot be made twice.
    """
    digest = hashlib.sha256("\n".join((str(other), *parts)).encode("utf-8", "surrogatepass")).digest()
    random = int.from_bytes(digest[:10])
    low = random & ((1 << 62) - 1)
    high = (random >> 62) & 0xFFF
    return UUID(int=(other.int >> 80 << 80) | 0x7 << 76 | high << 64 | 0b10 << 62 | low)
