"""A round told in rows: batched, and never a reason for training to stop.

What is told is kept until PostgreSQL has it; while that is away nothing is lost and nobody waits. Telling the
same again, after a restart, changes nothing: each row is keyed by its round and step.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Engine, case, null, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ratchet.alarms import raise_alarm
from ratchet.db.engine import session_scope
from ratchet.db.models.training import Checkpoint, RoundMetric
from ratchet.errors import DatabaseUnavailable
from ratchet.ids import new_id
from ratchet.logs import get_logger
from trainer.rounds.repository import Ticket, away, held, newest_word
from trainer.sink import CheckpointRecord, DataUse, Summary, Word

FLUSH_EVERY_S = 1.0
_BATCH = 5_000

log = get_logger(__name__)


@dataclass
class RowSink:
    """`trainer.sink.Sink` on PostgreSQL, for one claim of a round.

    Attributes:
        engine: The database, as the trainer.
        ticket: The claim.
        summary: What `finished` was told.
        clock: Seconds that only grow.
    """

    engine: Engine
    ticket: Ticket
    summary: Summary | None = None
    clock: Callable[[], float] = time.monotonic
    _word: Word = "ok"
    _progress: dict[str, Any] = field(default_factory=dict[str, Any])
    _metrics: dict[tuple[int, str], float] = field(default_factory=dict[tuple[int, str], float])
    _checkpoints: list[CheckpointRecord] = field(default_factory=list[CheckpointRecord])
    _candidates: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _alarms: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _flush_at: float = 0.0
    _away: bool = False

    def started(self, first_step: int, total_steps: int, data: DataUse) -> None:
        """See `Sink.started`."""
        self._progress |= {"step": first_step, "total_steps": total_steps, "data": asdict(data)}

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """See `Sink.metrics`."""
        self._progress["step"] = step
        self._metrics |= {(step, name): float(value) for name, value in values.items()}

    def checkpoint(self, record: CheckpointRecord) -> None:
        """See `Sink.checkpoint`."""
        self._checkpoints.append(record)

    def candidate(self, record: CheckpointRecord, ref: str) -> None:
        """A checkpoint was registered as `name@version`."""
        self._candidates.append((record.digest, ref))

    def alarm(self, kind: str, detail: str) -> None:
        """See `Sink.alarm`."""
        self._alarms.append((kind, detail))

    def control(self) -> Word:
        """See `Sink.control`: the word as of the last flush."""
        return self._word

    def finished(self, summary: Summary) -> None:
        """See `Sink.finished`."""
        self.summary = summary

    def flush(self, *, now: bool = False) -> bool:
        """Writes what was told, if it is time; also says that the worker lives and reads the control word.

        Args:
            now: Whether it is written whatever the time.

        Returns:
            Whether nothing is left to be written.

        Raises:
            RoundLost: The claim no longer holds.
        """
        if not now and self.clock() < self._flush_at:
            return False
        self._flush_at = self.clock() + FLUSH_EVERY_S
        metrics = dict(list(self._metrics.items())[:_BATCH])
        try:
            with session_scope(self.engine) as session:
                held(session, self.ticket, **self._progress)
                self._write(session, metrics)
                word = newest_word(session, self.ticket.id)
        except (DatabaseUnavailable, DBAPIError) as error:
            if not away(error):
                raise
            self._warn_once(error)
            return False
        self._away = False
        self._word = "stop" if word is not None and word.word == "stop" else "ok"
        for key in metrics:
            del self._metrics[key]
        for told in (self._checkpoints, self._candidates, self._alarms, self._progress):
            told.clear()
        return not self._metrics

    def _write(self, session: Session, metrics: Mapping[tuple[int, str], float]) -> None:
        if metrics:
            rows = [
                {"round_id": self.ticket.id, "step": step, "name": name, "value": value}
                for (step, name), value in metrics.items()
            ]
            told = insert(RoundMetric)
            session.execute(
                told.on_conflict_do_update(
                    index_elements=["round_id", "name", "step"], set_={"value": told.excluded.value}
                ),
                rows,
            )
        for record in self._checkpoints:
            values = _columns(record)
            registered = case((Checkpoint.digest == record.digest, Checkpoint.policy), else_=null())
            session.execute(
                insert(Checkpoint)
                .values(id=new_id(), round_id=self.ticket.id, step=record.step, **values)
                .on_conflict_do_update(
                    index_elements=["round_id", "step"], set_={**values, "policy": registered}
                )
            )
        for digest, ref in self._candidates:
            session.execute(
                update(Checkpoint)
                .where(Checkpoint.round_id == self.ticket.id, Checkpoint.digest == digest)
                .values(policy=ref)
            )
        for kind, detail in self._alarms:
            raise_alarm(session, kind, f"round {self.ticket.id}", {"detail": detail})

    def _warn_once(self, error: Exception) -> None:
        if not self._away:
            log.warning(
                "rows of the round wait for the database", round=str(self.ticket.id), error=str(error)
            )
        self._away = True


def _columns(record: CheckpointRecord) -> dict[str, Any]:
    return {
        "kl_k1": record.kl_k1,
        "kl_k1_se": record.kl_k1_se,
        "kl_k3": record.kl_k3,
        "kl_k3_se": record.kl_k3_se,
        "reward": record.reward,
        "accuracy": record.accuracy,
        "length_quantiles": record.length_quantiles,
        "digest": record.digest,
        "path": str(record.path),
        "is_last": record.is_last,
    }
