"""Alarms and heartbeats as a scrape shows them."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from ratchet.db.engine import open_engine, session_scope
from ratchet.db.models.operations import Alarm, Heartbeat
from ratchet.db.roles import Role
from ratchet.ids import new_id
from ratchet.telemetry import Telemetry, configure
from ratchet.vitals import observe_vitals


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = configure("feedback", "test", None)
    yield made
    made.shutdown()


def scraped(telemetry: Telemetry, name: str) -> dict[str, float]:
    """The one label of each sample to its value."""
    text = telemetry.prometheus_text().decode()
    return {label: float(value) for label, value in re.findall(name + r'{\w+="([^"]+)"} (\S+)', text)}


def test_standing_alarms_are_counted_by_kind_and_cleared_ones_are_not(
    engine_of: Callable[[Role], Engine], telemetry: Telemetry
) -> None:
    engine = engine_of(Role.FEEDBACK)
    observe_vitals(telemetry, engine)
    alarms = [("stamp_mismatch", "a", None), ("stamp_mismatch", "b", None), ("spool", "g", None)]
    with session_scope(engine) as session:
        for kind, subject, cleared in [*alarms, ("spool", "h", datetime.now(UTC))]:
            session.add(Alarm(id=new_id(), kind=kind, subject=subject, detail={}, cleared_at=cleared))
    assert scraped(telemetry, "ratchet_alarms_standing") == {"stamp_mismatch": 2, "spool": 1}


def test_a_heartbeat_shows_its_age_until_it_is_a_day_old(
    engine_of: Callable[[Role], Engine], telemetry: Telemetry
) -> None:
    engine = engine_of(Role.EVALUATOR)
    observe_vitals(telemetry, engine)
    with session_scope(engine) as session:
        for process, age in (("worker", timedelta(minutes=10)), ("removed", timedelta(days=2))):
            session.add(Heartbeat(process=process, beat_at=datetime.now(UTC) - age, detail={}))
    ages = scraped(telemetry, "ratchet_heartbeat_age_seconds")
    assert ages.keys() == {"worker"}
    assert 600 <= ages["worker"] < 900


def test_a_scrape_survives_a_database_that_is_away(telemetry: Telemetry) -> None:
    engine = open_engine("postgresql://nobody:x@127.0.0.1:1/none", application="test", pool_size=1)
    observe_vitals(telemetry, engine)
    assert scraped(telemetry, "ratchet_alarms_standing") == {}
    engine.dispose()
