# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
"""The evaluator's Celery app: its own queue, thin tasks, schedules on beat."""

import os
from datetime import UTC, datetime
from functools import cache
from typing import Any

from celery import Celery, signals
from celery.schedules import crontab
from sqlalchemy import Engine

from evaluator.engines import dismiss_dead_wishes
from evaluator.loop import Dispatcher
from evaluator.weekly import collect_ratings, sample_traffic
from ratchet.broker import celery_settings, forget_delivered
from ratchet.db.engine import open_engine, session_scope
from ratchet.heartbeat import beat
from ratchet.logs import configure as configure_logs
from ratchet.settings import WorkerSettings, load

QUEUE = "evaluator"
BEAT: dict[str, dict[str, Any]] = {
    "heartbeat": {"task": "evaluator.heartbeat", "schedule": 15.0, "options": {"expires": 15.0}},
    "loops": {"task": "evaluator.take_loop_steps", "schedule": 5.0, "options": {"expires": 5.0}},
    "weekly-traffic": {
        "task": "evaluator.weekly_traffic",
        "schedule": crontab(minute="17", hour="3", day_of_week="mon"),
        "options": {"expires": 86_400.0},
    },
    "collect-ratings": {
        "task": "evaluator.collect_ratings",
        "schedule": 300.0,
        "options": {"expires": 300.0},
    },
    "forget-delivered": {
        "task": "evaluator.forget_delivered",
        "schedule": 600.0,
        "options": {"expires": 600.0},
    },
}

app = Celery("evaluator")


def _settings() -> dict[str, Any]:
    return celery_settings(QUEUE, load(WorkerSettings).broker_url.get_secret_value(), BEAT)


app.add_defaults(_settings)


@signals.setup_logging.connect
def _set_up_logging(**_: Any) -> None:
    settings = load(WorkerSettings)
    configure_logs(settings.log_level, settings.log_format)


@cache
def _connections() -> Engine:
    return open_engine(
        load(WorkerSettings).database_url.get_secret_value(), application="evaluator", pool_size=1
    )


@cache
def _dispatcher() -> Dispatcher:
    return Dispatcher()


@app.task(name="evaluator.heartbeat")
def heartbeat() -> None:
    """Says in `operations.heartbeat` that this worker takes tasks."""
    with session_scope(_connections()) as session:
        beat(session, load(WorkerSettings).instance, {"pid": os.getpid(), "queue": QUEUE})


@app.task(name="evaluator.take_loop_steps")
def take_loop_steps() -> None:
    """Begins the selection of a turn of the loop, and ends one that was stopped."""
    with session_scope(_connections()) as session:
        dismiss_dead_wishes(session)
        _dispatcher().take_steps(session)


@app.task(name="evaluator.forget_delivered")
def forget() -> int:
    """Deletes delivered messages that the broker on PostgreSQL keeps; elsewhere there are none."""
    with session_scope(_connections()) as session:
        return forget_delivered(session)


@app.task(name="evaluator.weekly_traffic")
def weekly_traffic() -> list[str]:
    """Puts a sample of the week's held-out traffic before the evaluation raters."""
    return [str(run) for run in sample_traffic(_connections(), now=datetime.now(UTC))]


@app.task(name="evaluator.collect_ratings")
def collect_weekly() -> list[str]:
    """Takes what the evaluation raters said back into the harness."""
    return [str(run) for run in collect_ratings(_connections())]
