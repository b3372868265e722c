"""Proofs and alarms on their way into the database: in order, waited for by nobody, kept while it is away."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ratchet.db.engine import session_scope
from ratchet.db.models.operations import Alarm
from ratchet.db.models.registry import EngineProof
from ratchet.db.models.releases import OfflineAbort
from ratchet.errors import DatabaseUnavailable
from ratchet.heartbeat import beat
from ratchet.ids import new_id
from ratchet.logs import get_logger

STAMP_MISMATCH = "stamp_mismatch"
CAPACITY = 1000
RETRY_S = 2.0
LAST_WORDS_S = 1.0

Note = Callable[[Session], None]

log = get_logger(__name__)


class Ledger:
    """Writes notes one after the other; at most 1000 wait, older ones are dropped first."""

    def __init__(self, engine: Engine, gateway: str) -> None:
        self._engine = engine
        self._gateway = gateway
        self._notes: asyncio.Queue[Note] = asyncio.Queue(CAPACITY)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to write."""
        self._task = asyncio.create_task(self._write_all())

    async def stop(self) -> None:
        """Writes what waits, for a second at most."""
        if self._task is None:
            return
        try:
            await asyncio.wait_for(self._notes.join(), LAST_WORDS_S)
        except TimeoutError:
            log.warning("notes are lost", count=self._notes.qsize())
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def proof(
        self,
        engine_id: UUID,
        policy: str,
        *,
        ok: bool,
        fingerprint: str | None,
        difference: float | None,
        tolerance: float,
        reason: str | None,
    ) -> None:
        """Notes one proof of an engine."""
        row = EngineProof(
            id=new_id(),
            engine_id=engine_id,
            policy=policy,
            gateway=self._gateway,
            fingerprint=fingerprint,
            ok=ok,
            max_abs_difference=difference,
            tolerance=tolerance,
            reason=reason,
            detail=None,
        )
        self._add(lambda session: session.add(row))

    def raise_alarm(self, kind: str, subject: str, detail: dict[str, Any]) -> None:
        """Raises an alarm, unless one of this kind and subject stands."""
        statement = (
            insert(Alarm)
            .values(id=new_id(), kind=kind, subject=subject, detail={**detail, "gateway": self._gateway})
            .on_conflict_do_nothing(
                index_elements=["kind", "subject"], index_where=Alarm.cleared_at.is_(None)
            )
        )
        self._add(lambda session: session.execute(statement))

    def clear_alarm(self, kind: str, subject: str) -> None:
        """Clears an alarm, if one stands."""
        standing = (Alarm.kind == kind, Alarm.subject == subject, Alarm.cleared_at.is_(None))
        statement = update(Alarm).where(*standing).values(cleared_at=func.now())
        self._add(lambda session: session.execute(statement))

    def offline_abort(
        self, identity: UUID, model: str, actor: str, reason: str, switched_at: datetime, *, cut: bool
    ) -> None:
        """Tells of a switch that was thrown on this host; several processes may tell of the same."""
        statement = (
            insert(OfflineAbort)
            .values(
                id=identity,
                model=model,
                actor=actor,
                reason=reason,
                switched_at=switched_at,
                cut=cut,
                gateway=self._gateway,
            )
            .on_conflict_do_nothing(index_elements=["id"])
        )
        self._add(lambda session: session.execute(statement))

    def beat(self, process: str, detail: dict[str, Any]) -> None:
        """Says that a process lives, unless the database is so slow that earlier notes wait."""
        if self._notes.empty():
            self._add(lambda session: beat(session, process, detail))

    def _add(self, note: Callable[[Session], object]) -> None:
        def write(session: Session) -> None:
            note(session)

        if self._notes.full():
            self._notes.get_nowait()
            self._notes.task_done()
            log.warning("a note is lost: the database has been away for too long")
        self._notes.put_nowait(write)

    async def _write_all(self) -> None:
        while True:
            note = await self._notes.get()
            try:
                await self._write(note)
            finally:
                self._notes.task_done()

    async def _write(self, note: Note) -> None:
        while True:
            try:
                await asyncio.to_thread(self._write_now, note)
                return
            except DatabaseUnavailable:
                await asyncio.sleep(RETRY_S)
            except SQLAlchemyError as error:
                log.error("a note was refused", reason=str(error).splitlines()[0])
                return

    def _write_now(self, note: Note) -> None:
        with session_scope(self._engine) as session:
            note(session)
