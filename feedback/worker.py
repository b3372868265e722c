"""The feedback's Celery app: its own queue, thin tasks, schedules from the settings.

A task opens a transaction, calls one function, and commits. None carries anything but the id of a row, so a
message that is lost, late or doubled changes nothing in the end.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, ParamSpec
from uuid import UUID

import httpx
from celery import Celery, signals
from celery.schedules import schedule
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from feedback import builds, samples
from feedback.comparisons import Plan, make_comparisons
from feedback.events import infer_events, join_events
from feedback.leases import expire_leases
from feedback.loop import take_steps
from feedback.privacy import Masker
from feedback.reconcile import ATTEMPTS, Wish, attempt, due
from feedback.reconcile import reconcile as reconcile_rows
from feedback.retention import ensure_partitions, retire
from feedback.settings import DEFAULT_SCHEDULE, FeedbackSettings
from ratchet.broker import celery_settings, forget_delivered
from ratchet.db.engine import open_engine, session_scope
from ratchet.heartbeat import beat
from ratchet.home import Home
from ratchet.logs import configure as configure_logs
from ratchet.logs import get_logger
from ratchet.settings import load

QUEUE = "feedback"
VISIBILITY_S = 900
"""Seconds after which Redis delivers a message again that no worker acknowledged."""
PASSES = 20
"""Batches a scan works off before it leaves the worker to others."""

P = ParamSpec("P")

app = Celery("feedback")
log = get_logger(__name__)


@cache
def _settings() -> FeedbackSettings:
    return load(FeedbackSettings)


@cache
def _engine() -> Engine:
    url = _settings().database_url.get_secret_value()
    return open_engine(url, application=_settings().instance, pool_size=2)


def _celery() -> dict[str, Any]:
    settings = _settings()
    beats = {
        task: {
            "task": f"feedback.{task}",
            "schedule": schedule(timedelta(seconds=settings.every(task))),
            "options": {"expires": settings.every(task)},
        }
        for task in DEFAULT_SCHEDULE
        if settings.every(task) > 0
    }
    values = celery_settings(QUEUE, settings.broker_url.get_secret_value(), beats)
    if settings.broker_url.get_secret_value().startswith("redis"):
        values["broker_transport_options"]["visibility_timeout"] = VISIBILITY_S
    return values


app.add_defaults(_celery)  # pyright: ignore[reportUnknownMemberType]


@signals.setup_logging.connect  # pyright: ignore[reportUnknownMemberType]
def _set_up_logging(**_: Any) -> None:
    configure_logs(_settings().log_level, _settings().log_format)


def _task(name: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Registers a function as the task `feedback.<name>`; it stays the plain function it is."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        app.task(function, name=f"{QUEUE}.{name}")  # pyright: ignore[reportUnknownMemberType]
        return function

    return register


def _now() -> datetime:
    return datetime.now(UTC)


def _masker() -> Masker | None:
    return Masker() if _settings().feedback_mask_at_rest else None


def _plan() -> Plan:
    settings = _settings()
    return Plan(
        per_day=settings.feedback_comparisons_per_day,
        wanted=settings.feedback_votes_wanted,
        strata=settings.feedback_strata,
        masker=_masker(),
    )


@_task("heartbeat")
def heartbeat() -> None:
    """Says in `operations.heartbeat` that this worker takes tasks."""
    with session_scope(_engine()) as session:
        beat(session, _settings().instance, {"pid": os.getpid(), "queue": QUEUE})


@_task("join")
def join() -> None:
    """Joins new events to their responses."""
    for _ in range(PASSES):
        with session_scope(_engine()) as session:
            if join_events(session, now=_now(), masker=_masker()).seen == 0:
                return


@_task("infer")
def infer() -> None:
    """Infers events from new responses."""
    for _ in range(PASSES):
        with session_scope(_engine()) as session:
            if not infer_events(session):
                return


@_task("compare")
def compare() -> None:
    """Makes comparisons from traffic."""
    with session_scope(_engine()) as session:
        make_comparisons(session, _plan(), now=_now())


@_task("expire")
def expire() -> None:
    """Gives items back whose time is over."""
    with session_scope(_engine()) as session:
        expire_leases(session, now=_now())


@_task("samples")
def send_samples() -> None:
    """Sends a message for every wish for samples that has none."""
    _send("sample_request", "answer_sample")


@_task("builds")
def send_builds() -> None:
    """Sends a message for every wish for a snapshot that has none."""
    _send("snapshot_build", "build")


@_task("loops")
def loops() -> None:
    """Asks for the snapshots of turns of the loop, and says what became of them."""
    with session_scope(_engine()) as session:
        take_steps(session)
    send_builds()


def _send(wish: Wish, task: str) -> None:
    with session_scope(_engine()) as session:
        waiting = due(session, wish, now=_now())
    for identity in waiting:
        app.send_task(f"{QUEUE}.{task}", args=[str(identity)])  # pyright: ignore[reportUnknownMemberType]


@_task("answer_sample")
def answer_sample(identity: str) -> None:
    """Carries out one wish for samples."""
    settings, request = _settings(), UUID(identity)
    if settings.feedback_gateway_url is None or settings.feedback_gateway_key is None:
        reason = "set RATCHET_FEEDBACK_GATEWAY_URL and RATCHET_FEEDBACK_GATEWAY_KEY for the feedback worker"
        _in_session(lambda session: samples.give_up(session, request, reason, now=_now()))
        return
    gateway = samples.Gateway(settings.feedback_gateway_url, settings.feedback_gateway_key.get_secret_value())
    tries = _in_session(lambda session: attempt(session, "sample_request", request))
    if tries is None:
        return
    try:
        with session_scope(_engine()) as session:
            samples.answer_sample(session, request, gateway, _plan(), now=_now())
    except httpx.HTTPError as error:
        log.warning("sample not answered", request=identity, attempt=tries, error=str(error))
        if tries >= ATTEMPTS:
            reason = f"{tries} attempts, the last: {error}"
            _in_session(lambda session: samples.give_up(session, request, reason, now=_now()))


@_task("build")
def build(identity: str) -> None:
    """Carries out one wish for a snapshot."""
    wish = UUID(identity)
    tries = _in_session(lambda session: attempt(session, "snapshot_build", wish))
    if tries is None:
        return
    if tries > ATTEMPTS:
        reason = f"{ATTEMPTS} attempts were cut off; the worker's log says by what"
        _in_session(lambda session: builds.give_up(session, wish, reason, now=_now()))
        return
    builds.carry_out(_engine(), Home.resolve().snapshots, wish, now=_now(), masker=_masker())


def _in_session(work: Callable[[Session], Any]) -> Any:
    with session_scope(_engine()) as session:
        return work(session)


@_task("reconcile")
def reconcile() -> None:
    """Finds what messages were lost for."""
    with session_scope(_engine()) as session:
        reconcile_rows(session, now=_now(), masker=_masker())
        forget_delivered(session)


@_task("partitions")
def partitions() -> None:
    """Makes the partitions of the months ahead."""
    with session_scope(_engine()) as session:
        ensure_partitions(session)


@_task("retention")
def retention() -> None:
    """Drops the months that are older than rows are kept; without a setting none are."""
    days = _settings().feedback_retention_days
    if days is not None:
        with session_scope(_engine()) as session:
            retire(session, now=_now(), keep=timedelta(days=days))
