"""A round that another process carries out, shown from its rows until it ends."""

import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, func, select

from ratchet.db.engine import session_scope
from ratchet.db.models.training import Checkpoint, RoundMetric, TrainingRound
from trainer.commands.live import live
from trainer.rounds.events import Event

_LOOK_S = 1.0
_ENDED = ("done", "failed", "stopped")


def follow(engine: Engine, identity: UUID) -> None:
    """Shows a round until it ends; leaving does not stop it.

    Args:
        engine: As the operator.
        identity: The round.
    """
    began, step, told = False, 0, set[int]()
    with live() as shown:
        shown.stage(f"round {identity} waits for the trainer's worker")
        while True:
            with session_scope(engine) as session:
                row = session.get_one(TrainingRound, identity)
                state, total, data = row.state, row.total_steps, row.data
                newest = select(func.max(RoundMetric.step)).where(RoundMetric.round_id == identity)
                reached = session.scalar(newest) or 0
                of_step = select(RoundMetric.name, RoundMetric.value).where(
                    RoundMetric.round_id == identity, RoundMetric.step == reached
                )
                figures = {row.name: row.value for row in session.execute(of_step)}
                kept = session.scalars(select(Checkpoint).where(Checkpoint.round_id == identity)).all()
            if total is not None and data is not None and not began:
                began = True
                shown.event(Event("started", {"first_step": reached, "total_steps": total, "data": data}))
            if reached != step:
                step = reached
                shown.event(Event("metrics", {"step": step, **figures}))
            for each in kept:
                if each.step not in told:
                    told.add(each.step)
                    shown.event(Event("checkpoint", _measured(each)))
            if state in _ENDED:
                return
            time.sleep(_LOOK_S)


def _measured(row: Checkpoint) -> Mapping[str, Any] | Any:
    return {name: getattr(row, name) for name in ("step", "kl_k3", "kl_k3_se", "accuracy", "reward")}
