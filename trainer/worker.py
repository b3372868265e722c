# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
"""The trainer's Celery app: its own queue, thin tasks. Long work runs in processes of its own beside it."""

import os
from datetime import timedelta
from functools import cache
from typing import Any

from celery import Celery, signals
from sqlalchemy import Engine

from ratchet.broker import celery_settings, forget_delivered
from ratchet.db.engine import open_engine, session_scope
from ratchet.heartbeat import beat
from ratchet.home import Home
from ratchet.logs import configure as configure_logs
from ratchet.settings import load
from trainer.reward.watch import Watch
from trainer.rounds.dispatch import Dispatcher
from trainer.rounds.dispatch import reconcile as reconcile_rounds
from trainer.rounds.loop import take_steps
from trainer.settings import TrainerSettings

QUEUE = "trainer"
TASKS = {"heartbeat": 15.0, "forget_delivered": 600.0}

app = Celery("trainer")


def _settings() -> dict[str, Any]:
    settings = load(TrainerSettings)
    every = {
        **TASKS,
        "begin_rounds": settings.trainer_look_every_s,
        "take_loop_steps": settings.trainer_look_every_s,
        "reconcile_rounds": settings.trainer_reconcile_every_s,
        "measure_rewards": settings.trainer_measure_rewards_every_s,
    }
    beats = {
        task: {"task": f"{QUEUE}.{task}", "schedule": seconds, "options": {"expires": seconds}}
        for task, seconds in every.items()
    }
    return celery_settings(QUEUE, settings.broker_url.get_secret_value(), beats)


app.add_defaults(_settings)


@signals.setup_logging.connect
def _set_up_logging(**_: Any) -> None:
    settings = load(TrainerSettings)
    configure_logs(settings.log_level, settings.log_format)


@cache
def _connections() -> Engine:
    return open_engine(
        load(TrainerSettings).database_url.get_secret_value(), application="trainer", pool_size=1
    )


@cache
def _dispatcher() -> Dispatcher:
    return Dispatcher()


@cache
def _watch() -> Watch:
    return Watch()


@app.task(name="trainer.heartbeat")
def heartbeat() -> None:
    """Says in `operations.heartbeat` that this worker takes tasks."""
    with session_scope(_connections()) as session:
        beat(session, load(TrainerSettings).instance, {"pid": os.getpid(), "queue": QUEUE})


@app.task(name="trainer.forget_delivered")
def forget() -> int:
    """Deletes delivered messages that the broker on PostgreSQL keeps; elsewhere there are none."""
    with session_scope(_connections()) as session:
        return forget_delivered(session)


@app.task(name="trainer.begin_rounds")
def begin_rounds() -> None:
    """Begins the round that was asked for first, unless one is under way here."""
    with session_scope(_connections()) as session:
        _dispatcher().begin(session)


@app.task(name="trainer.take_loop_steps")
def take_loop_steps() -> None:
    """Asks for the rounds of turns of the loop, and says what became of them."""
    take_steps(_connections(), Home.resolve())


@app.task(name="trainer.reconcile_rounds")
def reconcile() -> None:
    """Finds rounds whose worker fell silent."""
    with session_scope(_connections()) as session:
        reconcile_rounds(session, silent_for=timedelta(seconds=load(TrainerSettings).trainer_lost_after_s))


@app.task(name="trainer.measure_rewards")
def measure_rewards() -> None:
    """Measures reward models again where fresh pairs are there."""
    with session_scope(_connections()) as session:
        _watch().begin(session)
