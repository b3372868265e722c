"""A reward model measured again: on pairs a person names, or on fresh pairs of what is in production.

`python -m trainer.reward.remeasure` does the latter for every reward model that is due, and ends; the
trainer's worker starts it from time to time.
"""

import sys
from typing import Any

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from ratchet.db.engine import open_engine, session_scope
from ratchet.db.models.feedback import DatasetSnapshot
from ratchet.db.models.training import RewardMeasurement, RewardModel
from ratchet.errors import RatchetError
from ratchet.home import Home
from ratchet.logs import configure as configure_logs
from ratchet.logs import get_logger
from ratchet.plan import current_plans
from ratchet.registry import Report, folder_of, quiet, resolve
from ratchet.sealed import reward_store
from ratchet.settings import load
from trainer.reward.drift import observe
from trainer.reward.registry import find, measure
from trainer.rounds.asking import Data
from trainer.settings import TrainerSettings

log = get_logger(__name__)


def remeasure(
    engine: Engine, home: Home, name: str, data: Data, *, rows: int = 512, report: Report = quiet
) -> dict[str, Any]:
    """Measures a reward model on a snapshot, writes it down, and raises an alarm where its accuracy fell.

    Args:
        engine: As the trainer.
        home: The data folder.
        name: As `registry.find` understands it.
        data: The snapshot.
        rows: Validation pairs at most.
        report: Told each stage.

    Returns:
        `ref`, what `trainer.reward.measure` returns, and `drift`.

    Raises:
        NotFound: There is no such reward model, or no key of the store.
        SnapshotRefused: The snapshot has no usable validation pair.
        EnvironmentFault: The reward model cannot be opened.
    """
    with session_scope(engine) as session:
        row = find(session, name)
        policy = resolve(session, row.provenance["reference"])
        ref, artifact = row.ref, row.artifact
        max_length = int(row.provenance["config"]["data"]["max_length"])
    reference = folder_of(home, policy)
    with reward_store(home).opened(artifact) as folder:
        measured = measure(folder, data.folder, reference, max_length=max_length, rows=rows, report=report)
    policies: list[str] = measured["policies"]
    with session_scope(engine) as session:
        found = observe(
            session,
            find(session, ref),
            report=measured["report"],
            policy=policies[0] if len(policies) == 1 else None,
            snapshot=measured["snapshot"],
        )
    return {"ref": ref, **measured, "drift": found.document()}


def due(session: Session) -> list[tuple[str, Data]]:
    """Reward models to measure again, each with the pairs to do it on.

    Those are the newest version of each name, and the newest snapshot whose pairs are all of policies in
    production now, where it is newer than the model, and was not measured on.
    """
    current = {plan.production for plan in current_plans(session).values()}
    snapshots = session.scalars(
        select(DatasetSnapshot)
        .where(DatasetSnapshot.kind == "pairs", DatasetSnapshot.withdrawn_at.is_(None))
        .order_by(DatasetSnapshot.created_at.desc())
    )
    fresh = next((each for each in snapshots if set(each.manifest["by_policy"]) <= current), None)
    if fresh is None:
        return []
    newest = select(func.max(RewardModel.number)).group_by(RewardModel.name)
    measured = select(RewardMeasurement.reward_model).where(RewardMeasurement.snapshot == fresh.digest)
    models = session.scalars(
        select(RewardModel)
        .where(
            RewardModel.number.in_(newest),
            RewardModel.created_at < fresh.created_at,
            RewardModel.snapshot != fresh.digest,
            RewardModel.ref.not_in(measured),
        )
        .order_by(RewardModel.number)
    )
    return [(model.ref, Data.of_row(fresh)) for model in models]


def main() -> int:
    """Measures every reward model that is due; exit code 2 when one could not be."""
    settings = load(TrainerSettings)
    configure_logs(settings.log_level, settings.log_format)
    engine = open_engine(settings.database_url.get_secret_value(), application=settings.instance, pool_size=1)
    code = 0
    try:
        with session_scope(engine) as session:
            waiting = due(session)
        for ref, data in waiting:
            try:
                found = remeasure(engine, Home.resolve(), ref, data)
            except RatchetError as error:
                log.error("a reward model was not measured", model=ref, error=str(error))
                code = error.exit_code
            else:
                log.info("a reward model was measured", model=ref, fallen=found["drift"]["fallen"])
    finally:
        engine.dispose()
    return code


if __name__ == "__main__":
    sys.exit(main())
