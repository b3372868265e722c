"""Is everything alive: alarms and signs of life as metrics, and whether the rows can be had."""

from collections.abc import Iterable

from sqlalchemy import Engine, Executable, func, select, text

from ratchet.db.engine import session_scope
from ratchet.db.models.operations import Alarm, Heartbeat
from ratchet.errors import DatabaseUnavailable
from ratchet.logs import get_logger
from ratchet.telemetry import Attr, MetricName, Point, Telemetry

FORGOTTEN_AFTER_S = 86_400
"""A process that was silent for so long is taken for one that was removed on purpose."""

log = get_logger(__name__)


def observe_vitals(telemetry: Telemetry, engine: Engine) -> None:
    """Registers the gauges of standing alarms and of heartbeats; each scrape asks the database.

    Args:
        telemetry: Of a process whose `/metrics` may wait for the database.
        engine: As a role that may read the schema `operations`.
    """

    def rows(query: Executable) -> list[tuple[str, float]]:
        try:
            with session_scope(engine) as session:
                return [(str(name), float(value)) for name, value in session.execute(query)]
        except DatabaseUnavailable as error:
            log.warning("alarms and heartbeats cannot be read", reason=str(error))
            return []

    def alarms() -> Iterable[Point]:
        standing = select(Alarm.kind, func.count()).where(Alarm.cleared_at.is_(None)).group_by(Alarm.kind)
        return [(count, {Attr.ALARM.value: kind}) for kind, count in rows(standing)]

    def ages() -> Iterable[Point]:
        age = func.extract("epoch", func.now() - Heartbeat.beat_at)
        known = select(Heartbeat.process, age).where(age < FORGOTTEN_AFTER_S)
        return [(seconds, {Attr.PROCESS.value: process}) for process, seconds in rows(known)]

    telemetry.observe(MetricName.ALARMS, alarms)
    telemetry.observe(MetricName.HEARTBEAT_AGE, ages)


def trouble(engine: Engine) -> str | None:
    """Why the database cannot be asked; None when it can."""
    try:
        with session_scope(engine) as session:
            session.execute(text("SELECT 1"))
    except DatabaseUnavailable as error:
        return str(error)
    return None
