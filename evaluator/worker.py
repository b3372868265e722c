# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
"""The evaluator's Celery app: its own queue, thin tasks, and a sign of life on beat."""

import os
from functools import cache
from typing import Any

from celery import Celery, signals
from sqlalchemy import Engine

from ratchet.broker import celery_settings, forget_delivered
from ratchet.db.engine import open_engine, session_scope
from ratchet.heartbeat import beat
from ratchet.logs import configure as configure_logs
from ratchet.settings import WorkerSettings, load

QUEUE = "evaluator"
BEAT = {
    "heartbeat": {"task": "evaluator.heartbeat", "schedule": 15.0, "options": {"expires": 15.0}},
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


@app.task(name="evaluator.heartbeat")
def heartbeat() -> None:
    """Says in `operations.heartbeat` that this worker takes tasks."""
    with session_scope(_connections()) as session:
        beat(session, load(WorkerSettings).instance, {"pid": os.getpid(), "queue": QUEUE})


@app.task(name="evaluator.forget_delivered")
def forget() -> int:
    """Deletes delivered messages that the broker on PostgreSQL keeps; elsewhere there are none."""
    with session_scope(_connections()) as session:
        return forget_delivered(session)
