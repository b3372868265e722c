"""The recorder: an answer is written down before it is given.

`begin` before the engine is asked, `delta` before a chunk's bytes leave, `end` before `[DONE]` or the body:
what a client received is always a beginning of what is recorded. Each returns when its frame is in the spool,
in microseconds; two threads do the rest.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from gateway.flusher import Flusher
from gateway.records import Closing, Opening
from gateway.replay import closing_body, delta_body
from gateway.rows import encode as encode_part
from gateway.spool import CLOSING, DELTA, OPENING, Claim, Spool, encode
from ratchet.errors import SpoolFull
from ratchet.logs import get_logger
from ratchet.settings import FullSpool, GatewaySettings

TEND_EVERY_S = 1.0
"""A full spool is tried again at least so often, and what is held in memory with it."""

RECORDER_FULL = "recorder_full"
"""Error code of an answer that was not given because it could not be recorded."""

_log = get_logger(__name__)


class Handle:
    """The record of one request under way."""

    __slots__ = ("_backlog", "_ended", "_id", "_recorder", "_stream")

    def __init__(self, recorder: "Recorder", identity: bytes | None, stream: bool) -> None:
        self._recorder = recorder
        self._id = identity
        self._stream = stream
        self._backlog: deque[bytes] = deque()
        self._ended = False

    @property
    def recorded(self) -> bool:
        """False of an answer that a full spool let pass without a record."""
        return self._id is not None

    def delta(self, index: int, text: str) -> None:
        """Records a piece of a choice's text; call it before the piece leaves.

        Raises:
            SpoolFull: It is not recorded and must not leave: end the answer with an error.
            RuntimeError: The record was ended before.
        """
        if self._ended:
            raise RuntimeError("a record that was ended takes no more text")
        if self._id is None:
            return
        frame = encode(DELTA, self._id, delta_body(index, text))
        try:
            self._recorder.write(self._backlog, frame)
        except SpoolFull:
            if not self._recorder.fails_open:
                raise
            self._backlog.append(frame)

    def end(self, closing: Closing) -> None:
        """Records how it ended; call it before `[DONE]` or the body leaves. A second call does nothing.

        A closing that finds no room waits in memory until there is. Where the spool fails closed, an answer
        that was well until then is recorded as an error of code `recorder_full`.

        Raises:
            SpoolFull: The answer was well but is not recorded: `[DONE]` or the body must not leave.
        """
        if self._ended:
            return
        self._ended = True
        if self._id is None:
            return
        try:
            self._recorder.write(self._backlog, _closing_frame(self._id, closing))
        except SpoolFull as full:
            refused = closing.status == "ok" and not self._recorder.fails_open
            if refused:
                closing = replace(
                    closing,
                    status="error",
                    http_status=closing.http_status if self._stream else 503,
                    error=str(full),
                    error_code=RECORDER_FULL,
                )
            self._backlog.append(_closing_frame(self._id, closing))
            self._recorder.hold(self._backlog)
            if refused:
                raise
        else:
            self._recorder.note_ended()


def _closing_frame(identity: bytes, closing: Closing) -> bytes:
    return encode(CLOSING, identity, closing_body(time.time(), encode_part(closing)))


class Recorder:
    """Keeps every request: first in the spool, then in `serving.response`.

    Args:
        settings: The gateway's.
        instance: Name of this gateway; with the process id it names the spool folder.
    """

    def __init__(self, settings: GatewaySettings, instance: str) -> None:
        self._settings = settings
        self._instance = instance
        self._running: _Running | None = None
        self._keeper = threading.Thread(target=self._keep, name="recorder-keeper", daemon=True)
        self._stopping = threading.Event()
        self._held: deque[deque[bytes]] = deque()
        self._sync_error: str | None = None
        self._counting = threading.Lock()
        self._written = 0
        self._ended = 0
        self._failed_open = 0

    @property
    def fails_open(self) -> bool:
        """Whether a full spool lets answers pass without a record."""
        return self._settings.spool_full is FullSpool.FAIL_OPEN

    @property
    def filled(self) -> float:
        """How much of what the spool may hold it holds, in [0, 1]."""
        spool = self._live.spool
        return (spool.bytes + spool.foreign_bytes) / self._settings.spool_max_bytes

    def start(self) -> None:
        """Makes the spool folder and starts the threads; dead processes' folders are adopted from then on.

        Raises:
            EnvironmentFault: The folder cannot be made.
        """
        claim = Claim.of_new_folder(self._settings.spool_dir, self._instance)
        spool = Spool(claim, self._settings.spool_max_bytes)
        url = self._settings.database_url.get_secret_value()
        self._running = _Running(spool, Flusher(url, claim, spool, lambda: self._failed_open))
        self._running.flusher.start()
        self._keeper.start()

    def begin(self, opening: Opening) -> Handle:
        """Records that a request was accepted; call it before the engine is asked.

        Raises:
            SpoolFull: It is not recorded and must be refused.
        """
        frame = encode(OPENING, opening.id.bytes, encode_part(opening))
        try:
            self._live.spool.append(frame, new_record=True)
        except SpoolFull:
            if not self.fails_open:
                raise
            with self._counting:
                self._failed_open += 1
            return Handle(self, None, opening.stream)
        with self._counting:
            self._written += 1
        return Handle(self, opening.id.bytes, opening.stream)

    def stop(self, timeout_s: float) -> None:
        """Stores what can be stored in time; the rest stays in the spool for the next process.

        Requests that are still under way are stored as lost.
        """
        if self._running is None or self._stopping.is_set():
            return
        deadline = time.monotonic() + timeout_s
        self._stopping.set()
        self._keeper.join(timeout_s)
        self._write_held()
        self._live.spool.close()
        self._sync()
        if not self._live.flusher.stop(max(0.0, deadline - time.monotonic())):
            _log.warning("the flusher did not end in time; what is not stored stays in the spool")

    def status(self) -> dict[str, Any]:
        """What an operator wants to know.

        Returns:
            `depth`: records ended but not stored; `open`: requests under way; `held`: records ended whose
            last frames wait in memory for room; `bytes`: size of the spool, adopted folders included;
            `oldest_unflushed_s`: age of the oldest record not stored; `full`: whether new records are
            refused, and `full_reason`; `last_error`: of storing or syncing. Counts since the start: `written`
            (records begun), `flushed` (rows stored, adopted ones included), `failed_open` (answers without a
            record), `rejected` (records put aside), `lost`, `adopted` (folders of dead processes).
        """
        spool, flusher = self._live.spool, self._live.flusher
        oldest = flusher.oldest_ended_at()
        held = len(self._held)
        return {
            "depth": max(0, self._ended - flusher.settled) + held,
            "open": max(0, self._written - self._ended - held),
            "bytes": spool.bytes + spool.foreign_bytes,
            "oldest_unflushed_s": 0.0 if oldest is None else max(0.0, time.time() - oldest),
            "full": spool.full is not None,
            "full_reason": spool.full,
            "last_error": flusher.last_error or self._sync_error,
            "written": self._written,
            "flushed": flusher.stored,
            "failed_open": self._failed_open,
            "rejected": flusher.rejected,
            "lost": flusher.lost,
            "adopted": flusher.adopted,
            "held": held,
        }

    def write(self, backlog: deque[bytes], frame: bytes) -> None:
        """Writes a record's next frame, and before it those that found no room.

        Raises:
            SpoolFull: The frame is not written; the backlog holds what is still to come before it.
        """
        spool = self._live.spool
        while backlog:
            spool.append(backlog[0])
            backlog.popleft()
        spool.append(frame)

    def hold(self, frames: deque[bytes]) -> None:
        """Keeps the last frames of an ended record until there is room."""
        self._held.append(frames)

    def note_ended(self) -> None:
        """Counts a record whose closing is written."""
        with self._counting:
            self._ended += 1
        self._live.flusher.wake()

    @property
    def _live(self) -> "_Running":
        if self._running is None:
            raise RuntimeError("the recorder is not started")
        return self._running

    def _keep(self) -> None:
        interval = self._settings.spool_fsync_interval_s
        synced_at = time.monotonic()
        while not self._stopping.wait(min(interval or TEND_EVERY_S, TEND_EVERY_S)):
            self._live.spool.probe()
            self._write_held()
            if time.monotonic() - synced_at >= interval:
                self._sync()
                synced_at = time.monotonic()

    def _write_held(self) -> None:
        while self._held:
            frames = self._held[0]
            try:
                while frames:
                    self._live.spool.append(frames[0])
                    frames.popleft()
            except SpoolFull:
                return
            self._held.popleft()
            self.note_ended()

    def _sync(self) -> None:
        spool = self._live.spool
        if self._settings.spool_fsync_interval_s == 0:
            spool.forget_sealed()
            return
        try:
            spool.sync()
        except OSError as error:
            self._sync_error = f"the spool cannot be synced to disk: {error.strerror or error}"
            _log.error("the spool cannot be synced to disk", error=str(error))
        else:
            self._sync_error = None


@dataclass(frozen=True, slots=True)
class _Running:
    spool: Spool
    flusher: Flusher
