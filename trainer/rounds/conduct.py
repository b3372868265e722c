"""One round carried out, from the row that asks for it to the row that says how it ended.

The processes that train know no database: they write events into the round's folder and obey a word there.
This process starts them, tells their events in rows, carries the word from the rows to the folder, and
registers candidates. Should it die, they die with it; whoever claims the round next reads the events from
their beginning and goes on from the last save.
"""

import fcntl
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ratchet.db.engine import session_scope
from ratchet.db.models.training import TrainingRound
from ratchet.errors import AlreadyRunning, DatabaseUnavailable, RatchetError
from ratchet.home import Home
from ratchet.logs import get_logger
from ratchet.registry import folder_of, get_policy
from ratchet.supervisor.words import last_words
from trainer.config import Method, RoundConfig, parse
from trainer.rounds import repository
from trainer.rounds.asking import data_folders, kind_of, opened_folder
from trainer.rounds.candidates import CandidateQueue, Publish, code_version, publisher_of
from trainer.rounds.events import Event, EventReader, checkpoint_of, data_of, summary_of
from trainer.rounds.repository import End, RoundLost, Ticket
from trainer.rounds.sink import RowSink
from trainer.rounds.summary import document
from trainer.run import ERROR
from trainer.sink import CheckpointRecord, Word, write_control

LOCK = "conductor.lock"
LOG = "log"
STATE = "state"
"""What only resuming needs: several times the model's size, and of no use once a round is done."""
CACHE = "reference-cache"
_LOOK_EVERY_S = 0.25
_GRACE_S = 10.0
_DATABASE_PATIENCE_S = 600.0

log = get_logger(__name__)

Launch = Callable[[RoundConfig, Path], "subprocess.Popen[Any]"]
"""Starts the processes that train a configured round in its folder."""


class Show(Protocol):
    """Shown a round as it goes."""

    def stage(self, text: str) -> None:
        """What begins."""
        ...

    def event(self, event: Event) -> None:
        """What the round told."""
        ...

    def candidate(self, step: int, ref: str) -> None:
        """A checkpoint was registered."""
        ...


class Unseen:
    """Shows nothing."""

    def stage(self, text: str) -> None:
        """See `Show.stage`."""

    def event(self, event: Event) -> None:
        """See `Show.event`."""

    def candidate(self, step: int, ref: str) -> None:
        """See `Show.candidate`."""


@dataclass(frozen=True)
class Ended:
    """How a round ended.

    Attributes:
        id: The round.
        state: done, failed or stopped.
        summary: See `summary.document`; None where there is none.
        error: Why it failed.
    """

    id: UUID
    state: End
    summary: dict[str, Any] | None
    error: str | None


def carry_out(
    engine: Engine,
    home: Home,
    identity: UUID,
    *,
    worker: str,
    launch: Launch,
    publisher: Callable[[TrainingRound], Publish | None] = publisher_of,
    show: Show | None = None,
) -> Ended | None:
    """Carries out a round that was asked for.

    Args:
        engine: The database, as the trainer.
        home: The data folder; the round's own folder lies in it.
        identity: The round.
        worker: Name of this process among all that carry out rounds.
        launch: Starts the processes that train; they must end when this process does.
        publisher: Says how a round's checkpoints are registered, if they are.
        show: Where it is shown.

    Returns:
        How it ended; None if it is another's, or was lost to another on the way.

    Raises:
        AlreadyRunning: Another process on this machine works in the round's folder.
        KeyboardInterrupt: A person interrupted it; its row says so.
        SystemExit: This process was told to end; the round is anyone's again.
        DatabaseUnavailable: PostgreSQL was away at the beginning, or for very long in the end.
    """
    folder = home.rounds / str(identity)
    with _alone(folder):
        with session_scope(engine) as session:
            claimed = repository.claim(
                session, identity, worker=worker, code_version=code_version(), folder=str(folder)
            )
        if claimed is None:
            return None
        ticket, row = claimed
        conduct = _Conduct(engine, home, ticket, row, folder, publisher(row), show or Unseen())
        try:
            return conduct.run(launch)
        except RoundLost:
            log.warning("the round is another's now", round=str(identity))
            return None
        except KeyboardInterrupt:
            conduct.end("stopped", error="interrupted; `ratchet round resume` goes on from its last save")
            raise
        except SystemExit:
            with session_scope(engine) as session:
                repository.give_back(session, ticket)
            log.info("the round was given back", round=str(identity))
            raise
        finally:
            conduct.close()


class _Conduct:
    """One claim of a round, and everything that is told of it."""

    def __init__(
        self,
        engine: Engine,
        home: Home,
        ticket: Ticket,
        row: TrainingRound,
        folder: Path,
        publish: Publish | None,
        show: Show,
    ) -> None:
        self._engine, self._home, self._ticket, self._row = engine, home, ticket, row
        self._folder, self._show = folder, show
        self._reader, self._sink = EventReader(folder), RowSink(engine, ticket)
        self._queue = CandidateQueue(engine, home, row, publish, self._registered) if publish else None

    def run(self, launch: Launch) -> Ended:
        """The round to its end; one that cannot be carried out has failed, and its row says of what."""
        try:
            return self._run(launch)
        except RatchetError as error:
            if repository.away(error):
                raise
            return self.end("failed", error=str(error))
        except DBAPIError as error:
            if repository.away(error):
                raise
            return self.end("failed", error=f"PostgreSQL refused a row: {str(error.orig).splitlines()[0]}")

    def _run(self, launch: Launch) -> Ended:
        """The round from top to bottom."""
        config = self._config()
        write_control(self._folder, "ok")
        self._tell()
        failure = None if self._is_over() else self._train(config, launch)
        self._settle()
        summary = self._sink.summary
        if summary is None:
            return self.end("failed", error=failure or "it ended without a summary")
        queue = self._queue
        refs, refused, lost = (queue.refs, queue.refused, queue.failed) if queue else ({}, {}, {})
        told = document(self._ticket.id, summary, refs, refused)
        if lost:
            why = "; ".join(lost.values())
            return self.end("failed", summary=told, error=f"{why}; `ratchet round resume` tries again")
        state: End = "stopped" if summary.reason == "control" else "done"
        ended = self.end(state, summary=told)
        if state == "done":
            shutil.rmtree(self._folder / STATE, ignore_errors=True)
        return ended

    def _is_over(self) -> bool:
        """Whether there is nothing left to train: it was told so, and no one has said since to go on."""
        summary = self._sink.summary
        if summary is not None and summary.reason == "control":
            with session_scope(self._engine) as session:
                word = repository.newest_word(session, self._ticket.id)
            if word is None or word.word != "stop":
                self._sink.summary = None
        return self._sink.summary is not None

    def end(self, state: End, *, summary: dict[str, Any] | None = None, error: str | None = None) -> Ended:
        """Writes how it ended."""
        with session_scope(self._engine) as session:
            repository.end(session, self._ticket, state, summary=summary, error=error)
        return Ended(self._ticket.id, state, summary, error)

    def close(self) -> None:
        """Ends what runs beside."""
        if self._queue is not None:
            self._queue.close()

    def _registered(self, record: CheckpointRecord, ref: str) -> None:
        if self._row.method != Method.RM:
            self._sink.candidate(record, ref)
        self._show.candidate(record.step, ref)

    def _config(self) -> RoundConfig:
        """The round's configuration with the folders of this machine."""
        row, home = self._row, self._home
        asked = parse(row.config, source=f"round {row.id}")
        with session_scope(self._engine) as session:
            policy, reference = get_policy(session, row.policy), get_policy(session, row.reference)
            places = data_folders(session, row.snapshot, asked.snapshot)
            repository.held(session, self._ticket, reference_digest=reference.weights_digest)
        folders: dict[str, Path | None] = {"reference": None, "cache": home.rounds / CACHE}
        folders["model"] = folder_of(home, policy)
        if reference != policy:
            self._beat()
            folders["reference"] = folder_of(home, reference)
        self._beat()
        folders["snapshot"] = opened_folder(places, row.snapshot, kind_of(asked.method))
        self._beat()
        return asked.model_copy(update=folders)

    def _beat(self) -> None:
        """Says that this worker lives, between reads of what may be gigabytes."""
        with session_scope(self._engine) as session:
            repository.held(session, self._ticket)

    def _train(self, config: RoundConfig, launch: Launch) -> str | None:
        """Runs the processes that train until they end; what went wrong, or None."""
        self._show.stage("starting")
        written = self._folder / LOG
        began = written.stat().st_size if written.exists() else 0
        word: Word = "ok"
        process = launch(config, self._folder)
        try:
            while True:
                ended = process.poll() is not None
                self._tell()
                self._sink.flush()
                if self._sink.control() != word:
                    word = self._sink.control()
                    write_control(self._folder, word)
                if self._queue is not None:
                    self._queue.settle()
                if ended:
                    break
                _wait(process, _LOOK_EVERY_S)
        finally:
            _stop(process)
        code = process.returncode
        if code == 0:
            return None
        return _said(self._folder) or (
            f"the training ended {f'by signal {-code}' if code < 0 else f'with code {code}'}: "
            f"{last_words(written, began) or 'it said nothing'} (log: {written})"
        )

    def _tell(self) -> None:
        """Tells in rows what the round has told since."""
        for event in self._reader.read():
            self._show.event(event)
            values = dict(event.values)
            match event.name:
                case "started":
                    self._sink.summary = None
                    self._sink.started(values["first_step"], values["total_steps"], data_of(values["data"]))
                case "metrics":
                    self._sink.metrics(values.pop("step"), values)
                case "checkpoint":
                    record = checkpoint_of(values)
                    self._sink.checkpoint(record)
                    if self._queue is not None:
                        self._sink.flush(now=True)
                        self._queue.add(record)
                case "alarm":
                    self._sink.alarm(values["kind"], values["detail"])
                case "finished":
                    self._sink.finished(summary_of(values))
                case other:
                    log.warning("an event that nobody knows", name=other)

    def _settle(self) -> None:
        """Returns when every row is written and every candidate registered."""
        deadline = time.monotonic() + _DATABASE_PATIENCE_S
        while True:
            if self._queue is not None:
                self._queue.settle()
            left = self._queue is not None and self._queue.left
            if self._sink.flush(now=True) and not left:
                return
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    "PostgreSQL stayed away; the round's rows are written when it is resumed"
                )
            time.sleep(_LOOK_EVERY_S)


def _said(folder: Path) -> str | None:
    """What the training itself says it was refused for."""
    try:
        message: str = json.loads((folder / ERROR).read_text("utf-8"))["message"]
    except (OSError, ValueError, KeyError):
        return None
    return message


def _wait(process: "subprocess.Popen[Any]", seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _stop(process: "subprocess.Popen[Any]") -> None:
    """Ends what may still run, and all it started."""
    if process.poll() is None:
        process.terminate()
        _wait(process, _GRACE_S)
    if process.poll() is None:
        process.kill()
        process.wait()


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(f"another process works in {folder}; stop it, or wait for it") from None
        yield
