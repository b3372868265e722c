"""`ratchet round`: rounds as rows: ask for one, look at them, compare, stop, resume, export."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.account import account
from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from trainer.config import Method
    from trainer.rounds.asking import Build

app = typer.Typer()

Round = Annotated[str, typer.Argument(help="A round's id, its beginning or end, or last.")]
Why = Annotated[str, typer.Option("--reason", help="Why, for those who read it later.")]


@app.command()
def start(
    method: Annotated[str, typer.Option(help="sft, rm or dpo.")] = "dpo",
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file of the round (default: every key's default).")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Over the file; the key is dotted.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Policy to train on: NAME@VERSION, NAME, current, or current:MODEL.")
    ] = "current",
    snapshot: Annotated[
        str | None,
        typer.Option(
            help="Train on this snapshot and do nothing else: latest, a digest or its beginning, a folder.",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        str, typer.Option(help="Whose answers the new snapshot holds: current, lineage, or all.")
    ] = "current",
    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|NAME", help="Suite to select by; repeat it (default: those that come along)."
        ),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Judge to select by (default: none, task metrics only).")
    ] = None,
    primary: Annotated[
        str | None, typer.Option(metavar="SUITE", help="Suite that ranks (default: judged, else trained).")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What paths of data files in suites are relative to.")
    ] = None,
    release: Annotated[
        bool,
        typer.Option("--release", help="Release what is selected, without asking (default: propose it)."),
    ] = False,
    plan: Annotated[
        str, typer.Option(metavar="FILE|NAME", help="Release plan: a TOML file, default or small.")
    ] = "default",
    reason: Why = "ratchet round start",
    wait: Annotated[bool, typer.Option("--wait", help="Show it until it ends.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Ask for a turn of the loop: a snapshot of fresh pairs, a round on it, a selection, a release.

    Each step is carried out by the process it belongs to; `ratchet loop show` follows them, `ratchet loop
    stop` and `retry` steer them. A turn that selects nothing ends well, and says so. With --snapshot only a
    round is asked for, on what was frozen before; a reward model (rm) is only trained.
    """
    from ratchet.commands.operator import operator_engine
    from ratchet.errors import UsageError
    from trainer.config import Method, RoundConfig, load
    from trainer.rounds.turn import Selecting, ask_for_turn

    try:
        wanted = Method(method)
    except ValueError:
        raise UsageError(f"--method is sft, rm or dpo, not {method!r}") from None

    def build(given: dict[str, Any]) -> RoundConfig:
        if config is None:
            return load(Path("/dev/null"), overrides or (), method=wanted.value, **given)
        return load(config, overrides or (), **given)

    home = Home.resolve(data_dir)
    if snapshot is not None:
        _ask_for_round(home, wanted, build, policy, snapshot, reason, wait=wait, as_json=as_json)
        return
    selecting = Selecting(tuple(suite or ()), judge, primary, data)
    with operator_engine(home) as engine:
        identity = ask_for_turn(
            engine, wanted, build, policy=policy, pairs=pairs, selecting=selecting,
            release_plan=plan if release else None, by=account(), reason=reason,
        )  # fmt: skip
        _show_turn(engine, str(identity), wait=wait, as_json=as_json)


def _ask_for_round(
    home: Home, method: "Method", build: "Build", policy: str, snapshot: str, reason: str, *,
    wait: bool, as_json: bool,
) -> None:  # fmt: skip
    from ratchet.commands.operator import operator_engine
    from trainer.rounds.asking import ask_for, prepare

    with operator_engine(home) as engine:
        prepared = prepare(engine, home, method, build, policy=policy, snapshot=snapshot)
        identity = ask_for(engine, home, prepared, by=account(), reason=reason)
        if wait:
            from trainer.commands.follow import follow

            follow(engine, identity)
    emit(_read(home.root, str(identity), _document), as_json, _print_round)


def _show_turn(engine: "Engine", name: str, *, wait: bool, as_json: bool) -> None:
    from ratchet.commands.loop import follow, print_turn
    from ratchet.db.engine import session_scope
    from ratchet.loop import find_loop
    from ratchet.loop_story import turn

    if wait:
        document = follow(engine, name)
    else:
        with session_scope(engine) as session:
            document = turn(session, find_loop(session, name))
    if as_json or not wait:
        emit(document, as_json, print_turn)


@app.command("list")
def list_all(
    limit: Annotated[int, typer.Option(min=1, help="Rounds at most.")] = 20,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List rounds, the newest first."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from trainer.rounds.reading import line
    from trainer.rounds.repository import list_rounds

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        rounds = [line(row) for row in list_rounds(session, limit=limit)]
    emit(rounds, as_json, _print_list)


@app.command()
def show(
    name: Round,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw its figures into this file (.png, .svg or .pdf).")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a round: its checkpoints on their KL axis, its figures, what was said to it."""
    from trainer.rounds.export import write_picture

    document = _read(data_dir, name, _document_with_series)
    if plot is not None:
        title = f"{document['method']} round {document['id']} of {document['policy']}"
        write_picture(plot, document["series"], document["checkpoints"], title)
    emit(document, as_json, _print_round)


@app.command()
def diff(one: Round, other: Round, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what differs between two rounds: data, policy, every key of the configuration, outcome."""
    from trainer.rounds.reading import difference

    found = difference(_read(data_dir, one, _document), _read(data_dir, other, _document))
    emit(found, as_json, _print_difference)


@app.command()
def stop(name: Round, reason: Why, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Stop a round: one that runs keeps a last checkpoint, one that waits is never begun."""
    from trainer.rounds import repository

    def act(session: "Session", identity: Any) -> None:
        repository.stop(session, identity, who=account(), why=reason)

    emit(_act(data_dir, name, act), as_json, _print_state)


@app.command()
def resume(name: Round, reason: Why, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Ask for the rest of a round that failed or was stopped."""
    from trainer.rounds import repository

    def act(session: "Session", identity: Any) -> None:
        repository.resume(session, identity, who=account(), why=reason)

    emit(_act(data_dir, name, act), as_json, _print_state)


@app.command()
def export(
    name: Round,
    csv: Annotated[Path | None, typer.Option(help="File for one line a step, one column a metric.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for an event file.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a round's figures as CSV or for TensorBoard."""
    from ratchet.errors import UsageError
    from trainer.rounds.export import write_csv, write_tensorboard

    if csv is None and tensorboard is None:
        raise UsageError("say where to: --csv FILE, --tensorboard FOLDER, or both")
    document = _read(data_dir, name, _document_with_series)
    written: dict[str, Any] = {"id": document["id"]}
    if csv is not None:
        written["csv"] = {"path": str(csv), "steps": write_csv(csv, document["series"])}
    if tensorboard is not None:
        values = write_tensorboard(tensorboard, document["series"], document["checkpoints"])
        written["tensorboard"] = {"path": str(tensorboard), "values": values}
    emit(written, as_json, _print_written)


def _read(
    data_dir: Path | None, name: str, read: "Callable[[Session, Any], dict[str, Any]]"
) -> dict[str, Any]:
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from trainer.rounds.repository import find_round

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        return read(session, find_round(session, name))


def _document(session: "Session", row: Any) -> dict[str, Any]:
    from trainer.rounds.reading import document

    return document(session, row)


def _document_with_series(session: "Session", row: Any) -> dict[str, Any]:
    from trainer.rounds.reading import document, series

    return {**document(session, row), "series": series(session, row.id)}


def _act(data_dir: Path | None, name: str, act: "Callable[[Session, Any], None]") -> dict[str, Any]:
    def acted(session: "Session", row: Any) -> dict[str, Any]:
        act(session, row.id)
        session.refresh(row)
        return {"id": row.id, "state": row.state}

    return _read(data_dir, name, acted)


def _print_list(rounds: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from trainer.commands.tables import round_table

    Console().print(round_table(rounds))


def _print_round(document: dict[str, Any]) -> None:
    from rich.console import Console

    from trainer.commands.tables import checkpoint_table, spark_table

    out = Console()
    lines = [
        f"round {document['id']}: {document['method']}, {document['state']}",
        f"policy {document['policy']}, reference {document['reference']}",
        f"snapshot {document['snapshot']}",
        f"asked {document['created_at']:%Y-%m-%d %H:%M} by {document['asked_by']}: {document['reason']}",
        f"step {document['step']} of {document['total_steps'] or '?'}, attempt {document['attempts']}",
    ]
    if document["error"]:
        lines.append(f"error: {document['error']}")
    if document["data"]:
        dropped = sum(document["data"]["dropped"].values())
        lines.append(f"data: {document['data']['used']} used, {dropped} dropped")
    lines += [
        f"{each['created_at']:%Y-%m-%d %H:%M} {each['who']} said {each['word']}: {each['why']}"
        for each in document["control"]
    ]
    for text in lines:
        out.print(text, markup=False, highlight=False)
    if document["checkpoints"]:
        out.print(checkpoint_table(document["checkpoints"]))
    if document.get("series"):
        out.print(spark_table(document["series"]))


def _print_difference(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *(str(identity)[-12:] for identity in found["rounds"]))
    for part in ("what", "config", "outcome"):
        for name, (left, right) in found[part].items():
            table.add_row(name, _cell(left), _cell(right))
        table.add_section()
    Console().print(table)


def _print_state(document: dict[str, Any]) -> None:
    typer.echo(f"round {document['id']} is {document['state']}")


def _print_written(document: dict[str, Any]) -> None:
    for form in ("csv", "tensorboard"):
        if form in document:
            typer.echo(f"{form}: {document[form]['path']}")


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
