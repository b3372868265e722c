"""The durable spool: what the gateway has promised, on disk before it leaves the process.

A spool folder belongs to one process, which holds the `flock` of the file `lock` in it; a folder whose lock
is free belongs to a dead one and may be claimed. Inside are numbered segments: 8 bytes of magic, then frames.

    frame    length of the payload (u32), CRC-32 of the payload seeded with that length (u32), payload
    payload  kind (1 byte), record id (16 bytes), body
             O  opening: JSON of `gateway.records.Opening`
             D  delta: choice index (u32), text (UTF-8, lone surrogates kept)
             C  closing: Unix time (f64), JSON of `gateway.records.Closing`

All numbers are little-endian. One `write` into the page cache appends a frame, so that a killed process loses
nothing it wrote; `Spool.sync` is for the loss of power. What follows the first bad frame of a segment counts
for nothing.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self
from zlib import crc32

from ratchet.errors import EnvironmentFault, SpoolFull

OPENING, DELTA, CLOSING = b"O", b"D", b"C"
MAGIC = b"RATSPL1\n"
SEGMENT_BYTES = 8 << 20
SEGMENTS_AT_LEAST = 8
"""A small spool has smaller segments, so that what is stored can be removed in steps."""
PROBE_BYTES = 64 << 10
RESERVE = 8
"""New records leave 1/8 of the room to those under way."""
ID_BYTES = 16
LOCK = "lock"
SUFFIX = ".seg"
UNFINISHED = "."

_HEADER = struct.Struct("<II")
_HEAD_BYTES = 1 + ID_BYTES


class Frame(NamedTuple):
    """One entry of a segment."""

    kind: bytes
    id: bytes
    body: bytes


class IncompleteFrame(Exception):
    """The data end before the frame does.

    Attributes:
        needed: Bytes from the frame's beginning that are needed, as far as its header can be believed.
    """

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class GarbledFrame(Exception):
    """A frame that is not what was written."""


def encode(kind: bytes, identity: bytes, body: bytes) -> bytes:
    """A frame's bytes."""
    payload = kind + identity + body
    return _HEADER.pack(len(payload), crc32(payload, len(payload))) + payload


def decode(data: bytes, offset: int) -> tuple[Frame, int]:
    """The frame at an offset, and the offset after it.

    Raises:
        IncompleteFrame: More data are needed.
        GarbledFrame: The checksum does not match, or no frame is so short (a run of zeros, too).
    """
    if len(data) - offset < _HEADER.size:
        raise IncompleteFrame(_HEADER.size)
    length, checksum = _HEADER.unpack_from(data, offset)
    if length < _HEAD_BYTES:
        raise GarbledFrame
    start, end = offset + _HEADER.size, offset + _HEADER.size + length
    if end > len(data):
        raise IncompleteFrame(end - offset)
    payload = data[start:end]
    if crc32(payload, length) != checksum:
        raise GarbledFrame
    return Frame(payload[:1], payload[1:_HEAD_BYTES], payload[_HEAD_BYTES:]), end


class Segment(NamedTuple):
    """A segment as far as it is written: whole frames only, when its writer lives."""

    number: int
    path: Path
    size: int
    sealed: bool


class Claim:
    """The lock of a spool folder: held until `release`, or until the process ends however it ends."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor

    @classmethod
    def of_new_folder(cls, root: Path, owner: str) -> Self:
        """Makes a folder that nobody else can claim at any moment of its life.

        Raises:
            EnvironmentFault: The folder cannot be made.
        """
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", owner).lstrip(UNFINISHED) or "gateway"
        folder = root / f"{name}-{os.getpid()}-{secrets.token_hex(4)}"
        hidden = root / f"{UNFINISHED}{folder.name}"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            hidden.mkdir(mode=0o700)
            descriptor = os.open(hidden / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.rename(folder)
            _sync_folder(root)
        except OSError as error:
            raise EnvironmentFault(
                f"the spool folder {root} cannot be used ({error.strerror}): "
                "set RATCHET_SPOOL_DIR to a folder this process may write"
            ) from error
        return cls(folder, descriptor)

    @classmethod
    def of_orphan(cls, folder: Path) -> Self | None:
        """Claims a dead process's folder; None when its owner lives or another was quicker."""
        try:
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), (folder / LOCK).stat()):
                return cls(folder, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    def segments(self) -> list[Segment]:
        """The segments a dead owner left."""
        numbers = sorted(int(path.stem) for path in self.folder.glob(f"*{SUFFIX}") if path.stem.isdigit())
        paths = [_segment_path(self.folder, number) for number in numbers]
        return [
            Segment(number, path, path.stat().st_size, sealed=True)
            for number, path in zip(numbers, paths, strict=True)
        ]

    def drop(self, number: int) -> None:
        """Removes a segment of a dead owner of which nothing is needed any more."""
        _segment_path(self.folder, number).unlink(missing_ok=True)

    def release(self, *, remove: bool) -> None:
        """Gives the folder up, and removes it if nothing in it is needed any more."""
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._descriptor)


def _segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08}{SUFFIX}"


def orphans(root: Path, known: set[Path]) -> Iterator[Claim]:
    """Claims every folder below the root whose owner is dead.

    Args:
        root: Where the spool folders are.
        known: Folders not to try: one's own and those already claimed.
    """
    for entry in sorted(root.iterdir()):
        if entry in known or entry.name.startswith(UNFINISHED) or not _is_spool(entry):
            continue
        claim = Claim.of_orphan(entry)
        if claim is not None:
            yield claim


def _is_spool(folder: Path) -> bool:
    try:
        return any(entry.name == LOCK or entry.suffix == SUFFIX for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Written:
    path: Path
    size: int


class Spool:
    """The writer of one claimed folder. Its methods may be called from any thread.

    Args:
        claim: The folder.
        max_bytes: What the segments may hold together with `foreign_bytes`.

    Attributes:
        bytes: Bytes in the segments.
        foreign_bytes: Bytes of claimed folders of dead processes, which count as well.
        full: Why a write was refused; None again after a new record or a probe was not.
    """

    def __init__(self, claim: Claim, max_bytes: int) -> None:
        self._folder = claim.folder
        self._max_bytes = max_bytes
        self._segment_bytes = min(SEGMENT_BYTES, max_bytes // SEGMENTS_AT_LEAST)
        self._lock = threading.Lock()
        self._segments: dict[int, _Written] = {}
        self._current = 0
        self._descriptor: int | None = None
        self._retired: list[int] = []
        self._unsynced = False
        self._closed = False
        self.bytes = 0
        self.foreign_bytes = 0
        self.full: str | None = None

    def append(self, frame: bytes, *, new_record: bool = False) -> None:
        """Writes one frame wholly, or nothing.

        Raises:
            SpoolFull: It was not written: the limit is reached, the disk refuses, or the spool is closed.
        """
        with self._lock:
            try:
                self._append(frame, new_record)
            except OSError as error:
                self.full = f"the spool in {self._folder} takes no more: {error.strerror or error}"
                raise SpoolFull(self.full) from error
            except SpoolFull as refusal:
                self.full = str(refusal)
                raise
            if new_record:
                self.full = None

    def probe(self) -> bool:
        """Whether there is room again: tries a write and takes it back."""
        with self._lock:
            if self.full is None or self._closed:
                return self.full is None
            try:
                size = min(PROBE_BYTES, self._segment_bytes)
                self._refuse_over_limit(size, new_record=True)
                descriptor, written = self._writable(size)
                self._write(descriptor, written, bytes(size))
                os.ftruncate(descriptor, written.size)
            except (OSError, SpoolFull):
                return False
            self.full = None
            return True

    def segments(self) -> list[Segment]:
        """The segments as they now are, oldest first."""
        with self._lock:
            return [
                Segment(
                    number,
                    written.path,
                    written.size,
                    sealed=number != self._current or self._descriptor is None,
                )
                for number, written in self._segments.items()
            ]

    def drop(self, number: int) -> None:
        """Removes a sealed segment of which nothing is needed any more."""
        with self._lock:
            written = self._segments.pop(number)
            self.bytes -= written.size
        written.path.unlink(missing_ok=True)

    def sync(self) -> None:
        """Brings everything written so far to the disk itself.

        Raises:
            OSError: The disk refuses.
        """
        with self._lock:
            retired, self._retired = self._retired, []
            current = self._descriptor if self._unsynced else None
            self._unsynced = False
        try:
            for descriptor in (*retired, *([] if current is None else [current])):
                os.fdatasync(descriptor)
            if retired or current is not None:
                _sync_folder(self._folder)
        finally:
            for descriptor in retired:
                os.close(descriptor)

    def close(self) -> None:
        """Takes no more frames; the segments stay."""
        with self._lock:
            self._closed = True
            self._retire()

    def forget_sealed(self) -> None:
        """Closes the files of sealed segments without `sync`."""
        with self._lock:
            retired, self._retired = self._retired, []
        for descriptor in retired:
            os.close(descriptor)

    def _append(self, frame: bytes, new_record: bool) -> None:
        if self._closed:
            raise SpoolFull(f"the spool in {self._folder} is closed: the gateway is stopping")
        self._refuse_over_limit(len(frame), new_record)
        try:
            descriptor, written = self._writable(len(frame))
            self._write(descriptor, written, frame)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            descriptor, written = self._writable(len(frame))
            self._write(descriptor, written, frame)
        written.size += len(frame)
        self.bytes += len(frame)
        self._unsynced = True
        if written.size >= self._segment_bytes:
            self._retire()

    def _refuse_over_limit(self, more: int, new_record: bool) -> None:
        limit = self._max_bytes - (self._max_bytes // RESERVE if new_record else 0)
        if self.bytes + self.foreign_bytes + more > limit:
            raise SpoolFull(
                f"the spool in {self._folder} holds its {self._max_bytes} bytes: it empties when PostgreSQL "
                "can be reached; RATCHET_SPOOL_MAX_BYTES raises the limit"
            )

    def _writable(self, length: int) -> tuple[int, _Written]:
        written = self._segments.get(self._current)
        if self._descriptor is not None and written is not None:
            if written.size + length <= self._segment_bytes or written.size == len(MAGIC):
                return self._descriptor, written
            self._retire()
        return self._begin_segment()

    def _begin_segment(self) -> tuple[int, _Written]:
        number = self._current + 1
        path = _segment_path(self._folder, number)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        written = _Written(path, 0)
        try:
            self._write(descriptor, written, MAGIC)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        written.size = len(MAGIC)
        self.bytes += written.size
        self._segments[number] = written
        self._current, self._descriptor = number, descriptor
        return descriptor, written

    def _write(self, descriptor: int, written: _Written, data: bytes) -> None:
        try:
            done = os.write(descriptor, data)
            while done < len(data):
                done += os.write(descriptor, data[done:])
        except OSError as error:
            if error.errno == errno.EFBIG and written.size > len(MAGIC):
                self._retire()
            try:
                os.ftruncate(descriptor, written.size)
            except OSError:
                self._retire()
            raise

    def _retire(self) -> None:
        if self._descriptor is not None:
            self._retired.append(self._descriptor)
            self._descriptor = None
