"""Celery's broker on the stack's own PostgreSQL, and the settings every subsystem's Celery app shares.

On a laptop kombu's SQLAlchemy transport carries the messages, in the schema `broker` that the migrations
made. It keeps delivered messages, knows no fanout, and may lose one with a killed worker: tasks are triggers,
rows are the truth. In production `RATCHET_BROKER_URL` names Redis or RabbitMQ, and nothing else changes.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import CursorResult, make_url, text
from sqlalchemy.orm import Session

SCHEMA = "broker"
KEEP_DELIVERED_S = 3600

_FORGET = text("DELETE FROM broker.kombu_message WHERE visible = false AND timestamp < :before")


def broker_url(database_url: str) -> str:
    """The broker on the same PostgreSQL, as the same role, seeing the schema `broker` only."""
    url = make_url(database_url).set(drivername="sqla+postgresql+psycopg")
    url = url.update_query_dict({"options": f"-csearch_path={SCHEMA}"})
    return url.render_as_string(hide_password=False)


def celery_settings(queue: str, url: str, beat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a subsystem's Celery app, for `app.add_defaults(lambda: celery_settings(...))`.

    Tasks must be idempotent: they are acknowledged after they ran, and one whose worker died may run again.

    Args:
        queue: The subsystem's own queue.
        url: The broker.
        beat: Celery's `beat_schedule`.
    """
    return {
        "broker_url": url,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {"pool_pre_ping": True} if url.startswith("sqla+") else {},
        "task_default_queue": queue,
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_prefetch_multiplier": 1,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "worker_redirect_stdouts": False,
        "timezone": "UTC",
        "enable_utc": True,
        "beat_schedule": dict(beat),
    }


def forget_delivered(session: Session, older_than_s: int = KEEP_DELIVERED_S) -> int:
    """Deletes messages that were delivered, which kombu's SQLAlchemy transport keeps for ever.

    Kombu stamps a message in local time when it is delivered.

    Returns:
        How many.
    """
    before = datetime.now() - timedelta(seconds=older_than_s)
    done = cast("CursorResult[Any]", session.execute(_FORGET, {"before": before}))
    return done.rowcount
