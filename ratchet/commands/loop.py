"""`ratchet loop`: turns of the loop, from a snapshot of what people preferred to a released policy."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.account import account
from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.errors import UsageError
from ratchet.home import Home

if TYPE_CHECKING:
    from rich.console import RenderableType
    from sqlalchemy import Engine

app = typer.Typer()
LOOK_EVERY_S = 1.0
MARKS = {"waiting": "·", "running": "…", "done": "✓", "skipped": "-", "failed": "✗", "stopped": "■"}

Turn = Annotated[str, typer.Argument(help="A turn's id, its beginning or end, or last.")]
Document = dict[str, Any]


@app.command("list")
def list_all(
    model: Annotated[
        str | None, typer.Option(help="Whose turns (default: everyone's).", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Turns at most.")] = 20,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List turns, the newest first: what each gained on held-out ground, and how stale its data were."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from ratchet.loop_story import turns

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        found = turns(session, model=model, limit=limit)
    emit(found, as_json, _print_list)


@app.command()
def show(
    name: Turn = "last",
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until it is over.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a turn: its timeline, what became of every datum, what was chosen."""
    from ratchet.commands.operator import operator_engine

    if watch and as_json:
        raise UsageError("--json prints one document: leave --watch out")
    with operator_engine(Home.resolve(data_dir)) as engine:
        document = follow(engine, name) if watch else _read(engine, name)
    if not watch:
        emit(document, as_json, print_turn)


@app.command()
def stop(
    name: Turn,
    reason: Annotated[str, typer.Option("--reason", help="Why, for those who read it later.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Stop a turn: the step under way stops, those after it are not begun. A release is aborted by itself."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from ratchet.loop import find_loop
    from ratchet.loop import stop as stop_turn

    with operator_engine(Home.resolve(data_dir)) as engine:
        with session_scope(engine) as session:
            stop_turn(session, find_loop(session, name).id, who=account(), why=reason)
        emit(_read(engine, name), as_json, print_turn)


@app.command()
def retry(name: Turn, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Take a turn up again at the step that failed or was stopped; what was done already stays done."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from ratchet.loop import find_loop
    from ratchet.loop import retry as retry_turn

    with operator_engine(Home.resolve(data_dir)) as engine:
        with session_scope(engine) as session:
            retry_turn(session, find_loop(session, name).id)
        emit(_read(engine, name), as_json, print_turn)


def follow(engine: "Engine", name: str) -> Document:
    """Shows a turn on stderr until it is over.

    Args:
        engine: As the operator.
        name: As `ratchet.loop.find_loop` understands it.

    Returns:
        The turn as it ended.
    """
    from rich.console import Console
    from rich.live import Live

    document = _read(engine, name)
    with Live(_story(document), console=Console(stderr=True), refresh_per_second=4) as live:
        while document["state"] in ("waiting", "running"):
            time.sleep(LOOK_EVERY_S)
            document = _read(engine, document["loop"])
            live.update(_story(document))
    return document


def print_turn(document: Document) -> None:
    """A turn as people read it."""
    from rich.console import Console

    Console().print(_story(document))


def _read(engine: "Engine", name: str) -> Document:
    from ratchet.db.engine import session_scope
    from ratchet.loop import find_loop
    from ratchet.loop_story import turn

    with session_scope(engine) as session:
        return turn(session, find_loop(session, name))


def _story(document: Document) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    steps = Table(box=None, show_header=False)
    for step in document["steps"]:
        told = step["error"] or ", ".join(f"{name} {value}" for name, value in step["detail"].items())
        steps.add_row(
            MARKS[step["state"]], step["step"], step["state"], _clock(step["ended_at"] or step["started_at"]),
            Text(step["subject"] or ""), Text(told, overflow="fold"),
        )  # fmt: skip
    lines = [
        f"turn {document['loop']} of {document['model']}: {document['method']} on {document['policy']}",
        f"asked {document['created_at']:%Y-%m-%d %H:%M} by {document['asked_by']}: {document['reason']}",
    ]
    parts: list[RenderableType] = [Text("\n".join(lines)), steps]
    if document["ledger"] is not None:
        parts.append(Text(_ledger_words(document["ledger"], document["stale_share"])))
    if document["gain"] is not None:
        parts.append(Text(f"held-out gain: {_interval(document['gain'])} ({document['gain']['name']})"))
    parts.append(Text(document["words"], style="bold"))
    return Group(*parts)


def _ledger_words(ledger: Document, stale: float | None) -> str:
    left = _counts(ledger["left_out"]) or "none"
    rows = "" if ledger["rows_trained_on"] is None else f"; {ledger['rows_trained_on']} rows trained on"
    dropped = _counts(ledger["rows_left_out"] or {})
    return (
        f"{ledger['data']} data: {ledger['in_the_snapshot']} in the snapshot, {ledger['held_out']} held out,"
        f" left out: {left}{rows}{f', rows left out: {dropped}' if dropped else ''}"
        f"{'' if stale is None else f'; {stale:.0%} of rows are stale'}"
    )


def _counts(by_reason: dict[str, int]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in by_reason.items())


def _print_list(found: list[Document]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for heading in ("turn", "model", "asked", "state", "held-out gain", "stale", "so far"):
        table.add_column(heading, overflow="fold")
    for one in found:
        stale = "-" if one["stale_share"] is None else f"{one['stale_share']:.0%}"
        table.add_row(
            one["loop"][-12:], one["model"], f"{one['created_at']:%Y-%m-%d %H:%M}", one["state"],
            "-" if one["gain"] is None else _interval(one["gain"]), stale, one["words"],
        )  # fmt: skip
    Console().print(table)


def _interval(value: Document) -> str:
    if value["estimate"] is None:
        return "unknown"
    ends = "" if value["low"] is None else f" [{value['low']:+.3f}, {value['high']:+.3f}]"
    return f"{value['estimate']:+.3f}{ends}"


def _clock(moment: Any) -> str:
    return "" if moment is None else f"{moment:%H:%M:%S}"
