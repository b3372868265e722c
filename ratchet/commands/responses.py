"""`ratchet responses`: look at what was answered."""

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.errors import NotFound, UsageError

if TYPE_CHECKING:
    from sqlalchemy import Select

    from ratchet.db.models.serving import Response

LISTED = (
    "id", "created_at", "status", "http_status", "policy", "decode", "arm", "stage", "model", "finish_reason",
    "prompt_tokens", "output_tokens", "ttft_ms", "duration_ms", "error", "error_code", "stamp", "user_id",
    "stream", "output",
)  # fmt: skip
GLANCE = 60
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

app = typer.Typer(help="Look at what was answered.")


class Status(StrEnum):
    """How a request ended."""

    OK = "ok"
    ERROR = "error"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    LOST = "lost"


@app.command("list")
def list_responses(
    policy: Annotated[
        str | None, typer.Option(help="A policy's name, or one version of it (NAME@VERSION).")
    ] = None,
    status: Annotated[Status | None, typer.Option(help="How the request ended.")] = None,
    user: Annotated[str | None, typer.Option(help="The client's name for its end user.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="No older than so long (90s, 30m, 2h, 7d, 1w) or than a time (ISO 8601, UTC)."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 20,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List responses, the newest first."""
    after = None if since is None else moment(since, now=datetime.now(UTC))
    rows = _fetch(data_dir, listing(policy=policy, status=status, user=user, after=after).limit(limit))
    documents = [{name: getattr(row, name) for name in LISTED} for row in rows]
    emit(documents, as_json, _print_list)


@app.command("show")
def show_response(
    response_id: Annotated[str, typer.Argument(metavar="ID", help="As in the header x-ratchet-response-id.")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show one response with everything that is known of it."""
    from sqlalchemy import inspect, select

    from ratchet.db.models.serving import Response

    try:
        identity = UUID(response_id)
    except ValueError as error:
        raise UsageError(
            f"{response_id!r} is no response id: give the value of the header x-ratchet-response-id"
        ) from error
    rows = _fetch(data_dir, select(Response).where(Response.id == identity))
    if not rows:
        raise NotFound(
            f"no response {identity}: `ratchet responses list` shows those stored; "
            "one that was just given may still be on its way from the gateway's spool"
        )
    document = {column.key: getattr(rows[0], column.key) for column in inspect(Response).column_attrs}
    emit(document, as_json, _print_one)


def listing(
    *, policy: str | None, status: Status | None, user: str | None, after: datetime | None
) -> "Select[Response]":
    """The query of `list`, the newest first; a time is a bound on the id, so that partitions are pruned."""
    from sqlalchemy import select

    from ratchet.db.models.serving import Response
    from ratchet.ids import floor_of

    query = select(Response).order_by(Response.id.desc())
    if policy is not None:
        whole = "@" in policy
        query = query.where(
            Response.policy == policy if whole else Response.policy.startswith(f"{policy}@", autoescape=True)
        )
    if status is not None:
        query = query.where(Response.status == status.value)
    if user is not None:
        query = query.where(Response.user_id == user)
    if after is not None:
        query = query.where(Response.id >= floor_of(after))
    return query


def moment(text: str, *, now: datetime) -> datetime:
    """The time a `--since` means: so long before now, or an ISO 8601 time (UTC unless it says otherwise).

    Raises:
        UsageError: Neither, or before 1970.
    """
    duration = _DURATION.fullmatch(text.strip())
    try:
        if duration is not None:
            found = now - timedelta(seconds=float(duration[1]) * _SECONDS[duration[2]])
        else:
            found = datetime.fromisoformat(text.strip())
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
        if found.timestamp() < 0:
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--since {text!r} is no time: give a duration such as 90s, 30m, 2h, 7d or 1w, "
            "or a time such as 2026-05-01T12:00"
        ) from error
    return found


def _fetch(data_dir: Any, query: "Select[Response]") -> "list[Response]":
    from ratchet.db.engine import open_engine, session_scope
    from ratchet.db.roles import Role
    from ratchet.home import Home
    from ratchet.secrets_store import role_url

    engine = open_engine(
        role_url(Home.resolve(data_dir), Role.OPERATOR), application="ratchet-cli", pool_size=1
    )
    try:
        with session_scope(engine) as session:
            return list(session.scalars(query))
    finally:
        engine.dispose()


def _print_list(documents: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_lines=False, header_style="bold")
    for heading in (
        "id",
        "when",
        "status",
        "policy",
        "arm/stage",
        "finish",
        "in/out",
        "ttft",
        "took",
        "user",
    ):
        table.add_column(heading, no_wrap=heading == "id", overflow="fold")
    table.add_column("output", overflow="ellipsis", no_wrap=True, max_width=GLANCE)
    for row in documents:
        cells = (
            row["id"],
            f"{row['created_at']:%m-%d %H:%M:%S}",
            row["status"] if row["status"] == "ok" else f"{row['status']} {row['http_status']}",
            row["policy"],
            f"{row['arm'] or '-'}/{row['stage'] or '-'}",
            row["finish_reason"],
            f"{_number(row['prompt_tokens'])}/{_number(row['output_tokens'])}",
            _milliseconds(row["ttft_ms"]),
            _milliseconds(row["duration_ms"]),
            row["user_id"],
            " ".join((row["output"] or row["error"] or "").split())[:GLANCE],
        )
        table.add_row(*(_shown(cell) for cell in cells))
    Console().print(table if documents else "no responses")


def _print_one(document: dict[str, Any]) -> None:
    import json

    from rich.console import Console
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in document.items():
        if isinstance(value, dict | list):
            grid.add_row(name, _shown(json.dumps(value, ensure_ascii=False, indent=2)))
        else:
            grid.add_row(name, _shown(value))
    Console().print(grid)


def _shown(value: Any) -> Any:
    """A cell without markup and without control characters, which could command the terminal."""
    from rich.text import Text

    text = "-" if value is None else str(value)
    return Text(
        "".join(
            "\ufffd" if unicodedata.category(character) == "Cc" and character not in "\n\t" else character
            for character in text
        )
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
