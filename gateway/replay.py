"""Reads a spool folder's segments in order and puts records together again.

The cursor only moves when more is asked for, so memory holds what is asked for and the records under way at
the cursor, however much the spool holds.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gateway.spool import (
    CLOSING,
    DELTA,
    MAGIC,
    OPENING,
    Frame,
    GarbledFrame,
    IncompleteFrame,
    Segment,
    decode,
)

CHUNK_BYTES = 1 << 20

_INDEX = struct.Struct("<I")
_TIME = struct.Struct("<d")


def delta_body(index: int, text: str) -> bytes:
    """The body of a delta's frame."""
    return _INDEX.pack(index) + text.encode("utf-8", "surrogatepass")


def closing_body(ended_at: float, closing: bytes) -> bytes:
    """The body of a closing's frame.

    Args:
        ended_at: Unix time in seconds.
        closing: JSON.
    """
    return _TIME.pack(ended_at) + closing


@dataclass(slots=True)
class Record:
    """What the spool says of one request.

    Attributes:
        id: The response id's 16 bytes.
        opening: JSON of the opening.
        texts: UTF-8 (lone surrogates kept) of each choice's deltas so far.
        closing: JSON of the closing; None while there is none.
        ended_at: Unix time of the closing.
        segments: Numbers of the segments that hold a part of it.
    """

    id: bytes
    opening: bytes
    texts: dict[int, bytearray] = field(default_factory=dict[int, bytearray])
    closing: bytes | None = None
    ended_at: float | None = None
    segments: set[int] = field(default_factory=set[int])

    @property
    def size(self) -> int:
        """Bytes held in memory, roughly."""
        return len(self.opening) + sum(map(len, self.texts.values())) + len(self.closing or b"")


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are not what was written, and are no frame cut off by a killed writer."""

    path: Path
    offset: int


class Replay:
    """A cursor over one folder.

    Args:
        segments: Gives the segments as they now are, oldest first.

    Attributes:
        damage: What was skipped since somebody last looked; whoever looks empties it.
    """

    def __init__(self, segments: Callable[[], list[Segment]]) -> None:
        self._segments = segments
        self._open: dict[bytes, Record] = {}
        self._unsettled: Counter[int] = Counter()
        self._number = 0
        self._offset = 0
        self._chunk = CHUNK_BYTES
        self.damage: list[Damage] = []

    def read(self, records: int, size: int) -> list[Record]:
        """The next records that have their closing, in the order of their closings.

        Args:
            records: At most so many.
            size: No more after so many bytes.
        """
        ready: list[Record] = []
        held = 0
        segments = self._segments()
        for segment in segments:
            if segment.number < self._number:
                continue
            if segment.number > self._number:
                self._number, self._offset = segment.number, 0
            while self._offset < segment.size:
                if len(ready) >= records or held >= size:
                    return ready
                held += self._read_chunk(segment, segment is segments[-1], ready, records - len(ready))
        return ready

    def abandoned(self) -> list[Record]:
        """Takes the records without a closing, once everything is read and no more can follow."""
        left = list(self._open.values())
        self._open.clear()
        return left

    def settle(self, records: Iterable[Record]) -> None:
        """Notes that the spool is no longer needed for these."""
        for record in records:
            self._unsettled.subtract(record.segments)

    def spent(self) -> list[int]:
        """The sealed segments that are read and needed for no record any more, oldest first."""
        return [
            segment.number
            for segment in self._segments()
            if segment.sealed and self._is_read(segment) and self._unsettled[segment.number] == 0
        ]

    def _is_read(self, segment: Segment) -> bool:
        at_its_end = segment.number == self._number and self._offset >= segment.size
        return segment.number < self._number or at_its_end

    def _read_chunk(self, segment: Segment, last: bool, ready: list[Record], records: int) -> int:
        """Takes frames until the chunk ends or so many records are ready; returns the bytes of those."""
        data, cut_short = self._load(segment)
        wanted, held, at = len(ready) + records, 0, 0
        if self._offset == 0:
            if not data.startswith(MAGIC):
                self._skip(segment, torn=last and not cut_short and MAGIC.startswith(data))
                return 0
            at = len(MAGIC)
        self._chunk = CHUNK_BYTES
        try:
            while len(ready) < wanted and self._offset + at < segment.size:
                frame, at = decode(data, at)
                record = self._take(frame, segment.number)
                if record is not None:
                    ready.append(record)
                    held += record.size
            self._offset += at
        except IncompleteFrame as incomplete:
            self._offset += at
            if cut_short or self._offset + incomplete.needed > segment.size:
                self._skip(segment, torn=last and not cut_short)
            self._chunk = max(incomplete.needed, CHUNK_BYTES)
        except GarbledFrame:
            self._offset += at
            self._skip(segment, torn=False)
        return held

    def _load(self, segment: Segment) -> tuple[bytes, bool]:
        """The next bytes, and whether the file is shorter than the segment should be, or gone."""
        wanted = min(self._chunk, segment.size - self._offset)
        try:
            with segment.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(wanted)
        except FileNotFoundError:
            data = b""
        return data, len(data) < wanted

    def _skip(self, segment: Segment, *, torn: bool) -> None:
        if not torn:
            self.damage.append(Damage(segment.path, self._offset))
        self._offset = segment.size

    def _take(self, frame: Frame, number: int) -> Record | None:
        if frame.kind == OPENING:
            self._open.setdefault(frame.id, Record(frame.id, frame.body))
        record = self._open.get(frame.id)
        if record is None:
            return None
        if number not in record.segments:
            record.segments.add(number)
            self._unsettled[number] += 1
        if frame.kind == DELTA:
            (index,) = _INDEX.unpack_from(frame.body)
            record.texts.setdefault(index, bytearray()).extend(frame.body[_INDEX.size :])
        elif frame.kind == CLOSING:
            (record.ended_at,) = _TIME.unpack_from(frame.body)
            record.closing = frame.body[_TIME.size :]
            return self._open.pop(frame.id)
        return None
