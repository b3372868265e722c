"""The thread that brings the spool into PostgreSQL: this process's own, and those of dead ones.

Reading is at least once, storing is once for each id. A segment is removed when every record in it is
committed. With PostgreSQL away the thread backs off and reads no further; the spool holds what comes.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from gateway.aside import Aside
from gateway.jsonable import loads
from gateway.replay import Record, Replay
from gateway.rows import Row, row_of
from gateway.spool import Claim, Segment, Spool, orphans
from gateway.storage import Storage
from ratchet.logs import get_logger

BATCH_RECORDS = 200
BATCH_BYTES = 4 << 20
LINGER_S = 0.1
"""After something ended, others may join its batch for so long."""
IDLE_S = 1.0
ADOPT_EVERY_S = 5.0
BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 10.0
FAILURES_AT_STOP = 2
"""The first may only mean that the connection had gone stale."""

SPOOL_FULL = "spool_full"
"""Alarm: new records are refused; cleared when there is room."""
RESPONSES_UNRECORDED = "responses_unrecorded"
"""Alarm: so many answers were given without a record; stands until a person clears it."""
RESPONSE_REJECTED = "response_rejected"
"""Alarm: a record was put aside; stands until a person clears it."""
SPOOL_DAMAGED = "spool_damaged"
"""Alarm: a segment was kept; stands until a person clears it."""

_log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Source:
    """A folder that is being read.

    Attributes:
        claim: The folder.
        segments: Its segments as they now are.
        drop: Removes a segment.
        ended: Whether nothing more will be written to it.
        batch: Records read but not settled.
    """

    claim: Claim
    segments: Callable[[], list[Segment]]
    drop: Callable[[int], None]
    ended: bool
    replay: Replay
    batch: list[Record] = field(default_factory=list[Record])


class Flusher:
    """Stores what is recorded.

    Args:
        url: Address of the gateway's database role.
        claim: This process's folder; its siblings are adopted when their owners are dead.
        spool: The writer of that folder.
        unrecorded: Gives how many answers were given without a record.

    Attributes:
        stored: Rows stored that were not there before.
        settled: Closed records of this process that need the spool no more.
        rejected: Records that PostgreSQL does not take; they are in the folder `rejected`.
        lost: Records without a closing, of dead processes or on stopping.
        adopted: Folders of dead processes taken over.
        last_error: Why storing last failed; None since it last went well.
    """

    def __init__(self, url: str, claim: Claim, spool: Spool, unrecorded: Callable[[], int]) -> None:
        self._storage = Storage(url)
        self._root = claim.folder.parent
        self._aside = Aside(self._root)
        self._name = claim.folder.name
        self._spool = spool
        self._unrecorded = unrecorded
        self._own = _Source(claim, spool.segments, spool.drop, ended=False, replay=Replay(spool.segments))
        self._orphans: list[_Source] = []
        self._next_adoption = 0.0
        self._alarms: dict[str, dict[str, Any]] = {}
        self._raised: dict[str, dict[str, Any]] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="recorder-flusher", daemon=True)
        self.stored = 0
        self.settled = 0
        self.rejected = 0
        self.lost = 0
        self.adopted = 0
        self.last_error: str | None = None

    def start(self) -> None:
        """Adopts the folders of dead processes and starts the thread."""
        self._adopt()
        self._thread.start()

    def wake(self) -> None:
        """Says that a record was closed."""
        if not self._wake.is_set():
            self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """Stores what can be stored in time, now that the spool is closed; records still open are lost ones.

        Returns:
            Whether the thread has ended: its folders are then released.
        """
        self._deadline = time.monotonic() + timeout_s
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def oldest_ended_at(self) -> float | None:
        """Unix time at which the oldest record that is read but not stored was closed."""
        times = [
            record.ended_at
            for source in (self._own, *self._orphans)
            for record in source.batch[:1]
            if record.ended_at is not None
        ]
        return min(times, default=None)

    def _run(self) -> None:
        failures = 0
        while time.monotonic() < self._deadline:
            try:
                busy = self._round()
            except Exception as error:  # noqa: BLE001  the spool keeps what is not settled; the thread must not die
                self._storage.close()
                self._note_failure(error)
                failures += 1
                if self._stopping.is_set() and failures >= FAILURES_AT_STOP:
                    break
                most = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2**failures)
                self._stopping.wait(most * random.uniform(0.5, 1.0))  # noqa: S311
                continue
            failures = 0
            self.last_error = None
            if not busy and not self._pause():
                break
        self._storage.close()
        for source in self._orphans:
            source.claim.release(remove=False)
        self._own.claim.release(remove=not self._own.segments())

    def _pause(self) -> bool:
        """Waits for something to do; False when there never will be."""
        if self._own.ended:
            return False
        self._wake.wait(IDLE_S)
        self._wake.clear()
        self._stopping.wait(LINGER_S)
        return True

    def _round(self) -> bool:
        """One batch of every folder; says whether there may be more at once."""
        self._own.ended = self._stopping.is_set()
        if time.monotonic() >= self._next_adoption and not self._own.ended:
            self._adopt()
        self._spool.foreign_bytes = sum(
            segment.size for source in self._orphans for segment in source.segments()
        )
        busy = self._advance(self._own)
        for source in list(self._orphans):
            busy = self._advance(source) or busy
            if source.ended and not source.batch and not source.segments():
                self._storage.clear_alarm(SPOOL_FULL, source.claim.folder.name)
                source.claim.release(remove=True)
                self._orphans.remove(source)
        self._tend_alarms()
        return busy

    def _adopt(self) -> None:
        known = {source.claim.folder for source in (self._own, *self._orphans)}
        for claim in orphans(self._root, known):
            self._orphans.append(
                _Source(claim, claim.segments, claim.drop, ended=True, replay=Replay(claim.segments))
            )
            self.adopted += 1
            _log.info("spool of a dead gateway adopted", folder=claim.folder.name)
        self._next_adoption = time.monotonic() + ADOPT_EVERY_S

    def _advance(self, source: _Source) -> bool:
        """Settles the next batch of a folder and removes the segments it leaves without need."""
        fresh = source.replay.read(BATCH_RECORDS - len(source.batch), BATCH_BYTES)
        if not fresh and source.ended and not source.batch:
            fresh = source.replay.abandoned()
        source.batch += fresh
        self._keep_damage(source)
        settled = self._settle(source.batch)
        source.replay.settle(settled)
        if source is self._own:
            self.settled += sum(record.closing is not None for record in settled)
        done = {record.id for record in settled}
        source.batch = [record for record in source.batch if record.id not in done]
        for number in source.replay.spent():
            source.drop(number)
        return bool(fresh or settled)

    def _settle(self, records: list[Record]) -> list[Record]:
        """Stores records, puts aside what cannot be stored, and returns all that need the spool no more."""
        rows: list[Row] = []
        buildable: list[Record] = []
        refused: list[tuple[Record, str]] = []
        settled: list[Record] = []
        for record in records:
            if record.closing is None and self._aside.path(record).exists():
                settled.append(record)
                continue
            try:
                rows.append(_row(record))
                buildable.append(record)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                refused.append((record, f"{type(error).__name__}: {error}"))
        if rows:
            outcome = self._storage.store(rows)
            self.stored += outcome.inserted
            reasons = {refusal.position: refusal.reason for refusal in outcome.refused}
            for position, record in enumerate(buildable):
                if position in reasons:
                    refused.append((record, reasons[position]))
                else:
                    settled.append(record)
                    self.lost += record.closing is None
        settled += [record for record, reason in refused if self._put_aside(record, reason)]
        return settled

    def _put_aside(self, record: Record, reason: str) -> bool:
        """Keeps a record that cannot be stored in a file of its own; False: not now, try again."""
        file = self._aside.path(record)
        try:
            self._aside.put(record, reason)
        except OSError as error:
            _log.warning("a rejected record cannot be put aside", file=str(file), error=str(error))
            return False
        self.rejected += 1
        self._alarms[RESPONSE_REJECTED] = {
            "count": self.rejected, "last": file.stem, "reason": reason, "folder": str(file.parent),
        }  # fmt: skip
        _log.error("a record cannot be stored", reason=reason, file=str(file))
        return True

    def _keep_damage(self, source: _Source) -> None:
        """Keeps a segment that is not as it was written: what follows the damage may have been delivered."""
        while source.replay.damage:
            damage = source.replay.damage[0]
            file = str(self._aside.keep(damage.path))
            self._alarms[SPOOL_DAMAGED] = {"file": file, "offset": damage.offset}
            _log.error("a spool segment is damaged", file=file, offset=damage.offset)
            source.replay.damage.pop(0)

    def _tend_alarms(self) -> None:
        if self._spool.full is None:
            self._alarms.pop(SPOOL_FULL, None)
        else:
            self._alarms[SPOOL_FULL] = {"reason": self._spool.full}
        if self._unrecorded():
            self._alarms[RESPONSES_UNRECORDED] = {"count": self._unrecorded()}
        for kind, detail in self._alarms.items():
            if self._raised.get(kind) != detail:
                self._storage.raise_alarm(kind, self._name, detail)
                self._raised[kind] = dict(detail)
        for kind in set(self._raised) - set(self._alarms):
            self._storage.clear_alarm(kind, self._name)
            del self._raised[kind]

    def _note_failure(self, error: Exception) -> None:
        text = str(error).strip().splitlines()
        reason = text[0] if text else type(error).__name__
        if isinstance(error, psycopg.Error | OSError):
            if reason != self.last_error:
                _log.warning("records wait in the spool", reason=reason)
        else:
            _log.error("the flusher failed", exc_info=error)
        self.last_error = reason


def _row(record: Record) -> Row:
    texts = {index: text.decode("utf-8", "surrogatepass") for index, text in record.texts.items()}
    return row_of(loads(record.opening), texts, None if record.closing is None else loads(record.closing))
