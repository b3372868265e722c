"""Reward models by name: registered once, sealed in a store of their own, with what was measured of them."""

from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from ratchet import subprogram
from ratchet.artifacts import RewardModelRef, address, checked_name
from ratchet.canonical import digest_of, short
from ratchet.db.engine import session_scope
from ratchet.db.models.training import RewardMeasurement, RewardModel, TrainingRound
from ratchet.errors import NotFound, PolicyRefused
from ratchet.home import Home
from ratchet.model_folder import SCORING, inspect
from ratchet.registry import Report, folder_of, quiet, resolve
from ratchet.sealed import reward_store
from trainer.config import Method
from trainer.rounds.asking import data_folders, kind_of, opened_folder
from trainer.sink import CheckpointRecord

MEASURE_PROGRAM = "trainer.reward.measure"


def register(engine: Engine, home: Home, row: TrainingRound, record: CheckpointRecord) -> str:
    """Measures a checkpoint of a round of method rm and registers it under its policy's name.

    Args:
        engine: As the trainer.
        home: The data folder.
        row: The round.
        record: The checkpoint.

    Returns:
        `name@version`.

    Raises:
        PolicyRefused: The folder is no reward model, or its scores are no finite numbers.
        SnapshotRefused: The round's data is not here any more, or has no usable validation pair.
        NotFound: This process has no key of the reward store.
    """
    with session_scope(engine) as session:
        policy, reference = resolve(session, row.policy), resolve(session, row.reference)
        places = data_folders(session, row.snapshot, Path(row.config["snapshot"]))
    data = opened_folder(places, row.snapshot, kind_of(Method.RM))
    longest = int(row.config["data"]["max_length"])
    measured = measure(record.path, data, folder_of(home, reference), max_length=longest)
    return add_reward_model(
        engine,
        home,
        name=policy.name,
        path=record.path,
        parent=policy.ref,
        snapshot=row.snapshot,
        round_id=row.id,
        report=measured["report"],
        provenance={
            "step": record.step,
            "reference": row.reference,
            "config": row.config,
            "config_digest": row.config_digest,
            "code_version": row.code_version,
            "asked_by": row.asked_by,
            "reason": row.reason,
        },
    )


def measure(
    model: Path, snapshot: Path, reference: Path, *, max_length: int, rows: int = 512, report: Report = quiet
) -> dict[str, Any]:
    """What `trainer.reward.measure` says, computed by a child process that loads torch.

    Raises:
        RatchetError: Of the kind the child named.
    """
    return subprogram.run(
        MEASURE_PROGRAM,
        [
            "--model", str(model), "--snapshot", str(snapshot), "--reference", str(reference),
            "--max-length", str(max_length), "--rows", str(rows),
        ],
        report,
    )  # fmt: skip


def add_reward_model(
    engine: Engine,
    home: Home,
    *,
    name: str,
    path: Path,
    parent: str,
    snapshot: str,
    report: dict[str, Any],
    provenance: dict[str, Any],
    round_id: UUID | None = None,
) -> str:
    """Seals a folder and writes its row; equal content under one name is one version.

    Args:
        engine: As the trainer.
        home: The data folder whose store takes it.
        name: Of the reward model.
        path: A sequence-classification folder of one label.
        parent: The policy it grew from, `name@version`.
        snapshot: Digest of its data.
        report: What was measured of it.
        provenance: Where it comes from.
        round_id: The round that made it.

    Returns:
        `name@version`.

    Raises:
        PolicyRefused: The folder is no reward model.
        NotFound: This process has no key of the reward store.
    """
    checked_name(name)
    folder = inspect(path, kinds=SCORING)
    digest = digest_of(
        {
            "weights": folder.weights_digest,
            "tokenizer": folder.tokenizer_digest,
            "template": folder.template_digest,
        }
    )
    ref = str(RewardModelRef(name, short(digest)))
    reward_store(home).put(path, folder.files)
    with session_scope(engine) as session:
        session.execute(
            insert(RewardModel)
            .values(
                ref=ref,
                name=name,
                version=short(digest),
                digest=digest,
                artifact=address(folder.files),
                parent=parent,
                snapshot=snapshot,
                round_id=round_id,
                report=report,
                provenance=provenance,
            )
            .on_conflict_do_nothing()
        )
        if session.get_one(RewardModel, ref).digest != digest:
            raise PolicyRefused(f"{ref} already stands for another reward model; use another name")
    return ref


def find(session: Session, text: str) -> RewardModel:
    """The reward model that a person names: `name@version`, or a name for its newest version.

    Raises:
        NotFound: It is not registered.
    """
    if "@" in text:
        found = session.get(RewardModel, text)
    else:
        newest = select(RewardModel).where(RewardModel.name == text).order_by(RewardModel.number.desc())
        found = session.scalars(newest.limit(1)).first()
    if found is None:
        raise NotFound(f"no reward model is called {text!r}; `ratchet reward list` shows those that are")
    return found


def listed(session: Session, name: str | None = None) -> list[RewardModel]:
    """Every reward model, or those of one name, newest first."""
    query = select(RewardModel).order_by(RewardModel.number.desc())
    return list(session.scalars(query.where(RewardModel.name == name) if name is not None else query))


def measurements(session: Session, ref: str) -> list[RewardMeasurement]:
    """What was measured of a reward model since, oldest first."""
    query = select(RewardMeasurement).where(RewardMeasurement.reward_model == ref)
    return list(session.scalars(query.order_by(RewardMeasurement.created_at)))
