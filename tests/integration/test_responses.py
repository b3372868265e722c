"""`ratchet responses` on a real database."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine, inspect, text
from sqlalchemy.dialects import postgresql
from typer.testing import CliRunner, Result

from gateway import records
from gateway.recorder import Recorder
from ratchet.cli import build
from ratchet.commands.responses import Status, listing, moment
from ratchet.db.models.serving import Response
from ratchet.db.roles import Role
from ratchet.errors import NotFound, UsageError
from ratchet.ids import floor_of
from tests.conftest import Database
from tests.support.recording import closing, opening, settings

NOW = datetime.now(UTC)
NEWEST, HOUR_OLD, DAY_OLD, WEEK_OLD = (
    UUID(int=floor_of(NOW - age).int | 7 << 76 | 2 << 62 | 1)
    for age in (timedelta(seconds=5), timedelta(hours=1), timedelta(days=1), timedelta(days=7))
)
LEAST = {
    "id", "policy", "decode", "arm", "stage", "model", "finish_reason", "prompt_tokens", "output_tokens",
    "ttft_ms", "duration_ms", "error", "output",
}  # fmt: skip


@pytest.fixture
def run(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `ratchet responses` where four responses of different ages are stored."""
    recorder = Recorder(settings(database.url(Role.GATEWAY), tmp_path), "gateway")
    recorder.start()
    ann, bob = {"user_id": "ann"}, {"user_id": "bob"}
    for identity, fields, status in (
        (WEEK_OLD, ann, "ok"),
        (DAY_OLD, {**bob, "policy": "smollm2@ffffffffffff"}, "error"),
        (HOUR_OLD, {**bob, "policy": "other_smollm2@0123456789ab"}, "ok"),
        (NEWEST, ann, "ok"),
    ):
        handle = recorder.begin(opening(identity, **fields))
        handle.delta(0, "red [bold]green\x1b[2J")
        handle.end(closing(status=status, error=None if status == "ok" else "the engine died"))
    recorder.stop(10)
    monkeypatch.setenv("RATCHET_OPERATOR_DATABASE_URL", database.url(Role.OPERATOR))
    monkeypatch.setenv("COLUMNS", "300")

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(build("responses"), ["responses", *arguments])

    return invoke


def ids(result: Result) -> list[UUID]:
    assert result.exit_code == 0, result.output
    return [UUID(row["id"]) for row in json.loads(result.stdout)]


def test_the_list_is_newest_first_with_the_keys_promised(run: Callable[..., Result]) -> None:
    result = run("list", "--json")
    assert ids(result) == [NEWEST, HOUR_OLD, DAY_OLD, WEEK_OLD]
    row = json.loads(result.stdout)[2]
    assert set(row) >= LEAST
    assert {name: row[name] for name in ("policy", "status", "error", "ttft_ms", "output", "user_id")} == {
        "policy": "smollm2@ffffffffffff",
        "status": "error",
        "error": "the engine died",
        "ttft_ms": 12.5,
        "output": "red [bold]green\x1b[2J",
        "user_id": "bob",
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--policy", "smollm2"), [NEWEST, DAY_OLD, WEEK_OLD]),
        (("--policy", "smollm2@ffffffffffff"), [DAY_OLD]),
        (("--policy", "smollm_"), []),
        (("--status", "error"), [DAY_OLD]),
        (("--user", "bob"), [HOUR_OLD, DAY_OLD]),
        (("--since", "2h"), [NEWEST, HOUR_OLD]),
        (("--since", "1.5d", "--user", "ann"), [NEWEST]),
        (("--since", (NOW - timedelta(days=2)).isoformat()), [NEWEST, HOUR_OLD, DAY_OLD]),
        (("--limit", "1"), [NEWEST]),
    ],
)
def test_filters(run: Callable[..., Result], options: tuple[str, ...], expected: list[UUID]) -> None:
    assert ids(run("list", "--json", *options)) == expected


def test_show_has_every_column(run: Callable[..., Result]) -> None:
    result = run("show", str(NEWEST), "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    assert set(document) == {column.key for column in inspect(Response).column_attrs}
    assert (document["id"], document["kind"], document["messages"]) == (
        str(NEWEST),
        "chat",
        [{"role": "user", "content": "Why is the sky blue?"}],
    )


def test_people_see_text_as_it_is_and_no_terminal_commands(run: Callable[..., Result]) -> None:
    listed, shown = run("list").output, run("show", str(NEWEST)).output
    assert str(NEWEST) in listed
    for output in (listed, shown):
        assert "red [bold]green\ufffd[2J" in output
        assert "\x1b[2J" not in output
    assert "no responses" in run("list", "--user", "nobody").output


def test_bad_input_is_one_clear_error(run: Callable[..., Result]) -> None:
    for arguments, error in (
        (("show", "nonsense"), UsageError),
        (("show", str(UUID(int=7))), NotFound),
        (("list", "--since", "yesterday"), UsageError),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, error)
        assert result.exception.exit_code == 2
        assert "\n" not in str(result.exception)
    assert run("list", "--limit", "0").exit_code == 2
    assert run("list", "--status", "fine").exit_code == 2


def test_a_time_filter_reads_only_the_partitions_it_needs(
    database: Database, engine_of: Callable[[Role], Engine]
) -> None:
    with psycopg.connect(database.url(Role.OPERATOR)) as connection:
        connection.execute("SELECT serving.ensure_response_partitions(4)")
    this_month = NOW.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    query = listing(policy=None, status=None, user=None, after=this_month + timedelta(days=70))
    compiled = query.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True})
    with engine_of(Role.OPERATOR).connect() as connection:
        plan = "\n".join(connection.execute(text(f"EXPLAIN {compiled}")).scalars())
    assert f"response_{this_month:%Y_%m} " not in plan
    assert "response_other" in plan


@pytest.mark.parametrize(
    ("given", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5d", 129600), ("1w", 604800)]
)
def test_durations(given: str, seconds: int) -> None:
    assert moment(given, now=NOW) == NOW - timedelta(seconds=seconds)


def test_times_without_a_zone_are_utc() -> None:
    assert moment("2026-05-01T12:00", now=NOW) == datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert moment("2026-05-01T12:00+02:00", now=NOW) == datetime(2026, 5, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize("given", ["", "2", "h", "2y", "-2h", "99999999999w", "1960-01-01", "nan", "1e3s"])
def test_what_is_no_time_is_refused_with_what_would_be(given: str) -> None:
    with pytest.raises(UsageError, match="30m, 2h"):
        moment(given, now=NOW)


def test_statuses_are_those_of_the_rows() -> None:
    assert {status.value for status in Status} == set(get_args(records.Status))
