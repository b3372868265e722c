"""Checkpoints as candidates: each a policy version with its parent's decode config and its whole lineage."""

import importlib.metadata
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ratchet.canonical import digest_of, digest_of_file, short
from ratchet.db.engine import session_scope
from ratchet.db.models.training import TrainingRound
from ratchet.errors import DatabaseUnavailable, DecodeConfigError, PolicyRefused, RatchetError
from ratchet.home import Home
from ratchet.logs import get_logger
from ratchet.model_folder import inspect
from ratchet.registry import Golden, add_policy, golden_of, policy_digest, resolve
from trainer.config import Method
from trainer.reward.registry import register as register_reward_model
from trainer.rounds.repository import away
from trainer.sink import CheckpointRecord

Publish = Callable[[Engine, Home, TrainingRound, CheckpointRecord], str]
"""Registers a checkpoint of a round and returns its reference."""

log = get_logger(__name__)


def register(
    engine: Engine, home: Home, row: TrainingRound, record: CheckpointRecord, golden: Golden = golden_of
) -> str:
    """Registers a checkpoint under its parent's name.

    A checkpoint whose content is its parent's own (nothing was learned yet) is that policy itself.

    Args:
        engine: As the trainer.
        home: The data folder whose store takes a copy.
        row: The round.
        record: The checkpoint.
        golden: Computes the golden entries.

    Returns:
        `name@version`.

    Raises:
        PolicyRefused: The folder cannot become a policy, such as one whose weights are not finite.
        DecodeConfigError: The parent's decode config does not fit it.
        RatchetError: Of another kind: it is not registered, and can be later.
    """
    with session_scope(engine) as session:
        parent = resolve(session, row.policy)
    if policy_digest(inspect(record.path), parent.decode) == parent.digest:
        ref = parent.ref
    else:
        ref = add_policy(
            engine,
            home,
            name=parent.name,
            path=record.path,
            decode=parent.decode,
            parent=parent.ref,
            provenance=provenance(row, record),
            golden=golden,
        ).policy.ref
    return ref


def publisher_of(row: TrainingRound) -> Publish | None:
    """How checkpoints of a round are registered; None for those that only compare settings (a sweep)."""
    if row.sweep is not None:
        return None
    return register_reward_model if row.method == Method.RM else register


def provenance(row: TrainingRound, record: CheckpointRecord) -> dict[str, Any]:
    """Where a candidate comes from; it holds no reward, since everyone may read it."""
    return {
        "round": str(row.id),
        "method": row.method,
        "step": record.step,
        "snapshot": row.snapshot,
        "reference": row.reference,
        "config": row.config,
        "config_digest": row.config_digest,
        "code_version": row.code_version,
        "kl": {"k1": record.kl_k1, "k1_se": record.kl_k1_se, "k3": record.kl_k3, "k3_se": record.kl_k3_se},
        "asked_by": row.asked_by,
        "reason": row.reason,
    }


def code_version(root: Path = Path(__file__).parents[2]) -> str:
    """The code that trains: the release, and a digest of the sources of `trainer` and `ratchet`."""
    sources = {
        path.relative_to(root).as_posix(): digest_of_file(path)
        for package in ("trainer", "ratchet")
        for path in sorted((root / package).rglob("*.py"))
    }
    return f"{importlib.metadata.version('ratchet')}+{short(digest_of(sources))}"


@dataclass
class CandidateQueue:
    """Registers checkpoints one after another, beside the training.

    Attributes:
        engine: The database, as the trainer.
        home: The data folder.
        row: The round.
        publish: Registers one checkpoint and returns its reference.
        registered: Called with each that is registered and its reference.
        refs: Digest of a checkpoint to its reference.
        refused: Digest of a checkpoint to why it can be no candidate.
        failed: Digest of a checkpoint to what kept it from being registered; it can be tried again.
    """

    engine: Engine
    home: Home
    row: TrainingRound
    publish: Publish
    registered: Callable[[CheckpointRecord, str], None]
    refs: dict[str, str] = field(default_factory=dict[str, str])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "candidates"))
    _pending: dict[str, tuple[CheckpointRecord, "Future[str]"]] = field(
        default_factory=dict[str, tuple[CheckpointRecord, "Future[str]"]]
    )

    def add(self, record: CheckpointRecord) -> None:
        """Registers a checkpoint as soon as those before it are; one that is known is left as it is."""
        if record.digest not in self.refs and record.digest not in self._pending:
            self._pending[record.digest] = (record, self._submit(record))

    def settle(self, *, wait: bool = False) -> None:
        """Takes what is registered; one that the database was away for is tried again.

        Args:
            wait: Whether those under way are waited for.
        """
        for digest, (record, future) in list(self._pending.items()):
            if not (wait or future.done()):
                continue
            try:
                self.refs[digest] = future.result()
                self.registered(record, self.refs[digest])
            except (DatabaseUnavailable, DBAPIError) as error:
                if not away(error):
                    raise
                self._pending[digest] = (record, self._submit(record))
                continue
            except (PolicyRefused, DecodeConfigError) as error:
                self.refused[digest] = str(error)
                log.error("a checkpoint is no candidate", step=record.step, error=str(error))
            except RatchetError as error:
                self.failed[digest] = f"the checkpoint of step {record.step} is not registered: {error}"
                log.error("a checkpoint is not registered", step=record.step, error=str(error))
            del self._pending[digest]

    @property
    def left(self) -> bool:
        """Whether one is not registered yet."""
        return bool(self._pending)

    def close(self) -> None:
        """Begins no further one and waits for the one under way."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, record: CheckpointRecord) -> "Future[str]":
        return self._pool.submit(self.publish, self.engine, self.home, self.row, record)
