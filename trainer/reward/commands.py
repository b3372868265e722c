"""`ratchet reward`: reward models, what was measured of them, and a server for one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home

if TYPE_CHECKING:
    from ratchet.db.models.training import RewardModel

app = typer.Typer()

_LOOK_EVERY_S = 0.5

Model = Annotated[str, typer.Argument(metavar="REF", help="NAME@VERSION, or NAME for its newest version.")]


@app.command("list")
def list_models(
    name: Annotated[str | None, typer.Argument(help="Only versions of this name.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List reward models, the newest first, with accuracy and its interval."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from trainer.reward.registry import listed

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        documents = [_line(row) for row in listed(session, name)]
    emit(documents, as_json, _print_list)


@app.command()
def show(model: Model, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show one reward model: where it comes from, its report, and what was measured since."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from trainer.reward.registry import find, measurements

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        row = find(session, model)
        document = {
            **_line(row),
            "report": row.report,
            "provenance": row.provenance,
            "measurements": [
                {name: getattr(each, name) for name in ("created_at", "policy", "snapshot", "report")}
                for each in measurements(session, row.ref)
            ],
        }
    emit(document, as_json, _print_one)


@app.command()
def report(
    model: Model,
    snapshot: Annotated[
        str,
        typer.Option(help="Fresh pairs to measure on: latest, a digest or its beginning, or a folder."),
    ] = "latest",
    rows: Annotated[int, typer.Option(min=1, help="Validation pairs at most.")] = 512,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure a reward model again, and compare with what it was when it was trained.

    An accuracy that fell beyond its interval raises the alarm reward-model-drift.
    """
    from ratchet.commands.operator import role_engine
    from ratchet.commands.progress import shown
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role
    from trainer.reward.remeasure import remeasure
    from trainer.rounds.asking import find_data

    home = Home.resolve(data_dir)
    with role_engine(home, Role.TRAINER) as engine:
        with session_scope(engine) as session:
            data = find_data(session, snapshot, "pairs")
        with shown() as work:
            document = remeasure(engine, home, model, data, rows=rows, report=work.stage)
    emit(document, as_json, _print_measured)


@app.command()
def serve(model: Model, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Serve a reward model on a socket in the data folder, until Ctrl-C or SIGTERM.

    The model is opened into a folder of this user's alone for as long as the server runs. POST /classify on
    the socket takes token ids and gives raw scores; only their differences on one prompt mean anything.
    """
    import signal
    import sys
    import time
    from types import FrameType

    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from ratchet.errors import EnvironmentFault
    from ratchet.sealed import reward_store
    from trainer.reward.registry import find
    from trainer.reward.serve import served

    def end(_: int, __: FrameType | None) -> None:
        raise typer.Exit

    home = Home.resolve(data_dir)
    with operator_engine(home) as engine, session_scope(engine) as session:
        row = find(session, model)
        ref, artifact = row.ref, row.artifact
        max_length = int(row.provenance["config"]["data"]["max_length"])
    signal.signal(signal.SIGTERM, end)
    socket = home.run / f"reward-{ref.rpartition('@')[2]}.sock"
    log = home.logs / "reward.log"
    with (
        reward_store(home).opened(artifact) as folder,
        served(folder, ref, socket, log, max_length) as server,
    ):
        document = {"model": ref, "socket": str(socket), "pid": server.pid, "log": str(log)}
        emit(document, as_json, _print_served)
        sys.stdout.flush()
        try:
            while not server.has_ended():
                time.sleep(_LOOK_EVERY_S)
        except KeyboardInterrupt:
            raise typer.Exit from None
        raise EnvironmentFault(f"the reward server is gone: {server.why()} (log: {log})")


def _line(row: "RewardModel") -> dict[str, Any]:
    return {
        "ref": row.ref,
        "parent": row.parent,
        "snapshot": row.snapshot,
        "round": row.round_id,
        "created_at": row.created_at,
        "pairs": row.report["pairs"],
        "accuracy": row.report["accuracy"],
    }


def _print_list(documents: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for heading in ("reward model", "created", "accuracy", "pairs", "grown from", "data"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "reward model")
    for each in documents:
        table.add_row(
            each["ref"],
            f"{each['created_at']:%Y-%m-%d %H:%M}",
            _interval(each["accuracy"]),
            str(each["pairs"]),
            each["parent"] or "-",
            each["snapshot"][:12],
        )
    Console().print(table if documents else "no reward models; `ratchet train rm --config FILE` trains one")


def _print_one(document: dict[str, Any]) -> None:
    typer.echo(f"{document['ref']}, grown from {document['parent']} on {document['snapshot'][:12]}")
    _print_report(document["report"])
    for each in document["measurements"]:
        typer.echo(
            f"measured {each['created_at']:%Y-%m-%d %H:%M} on pairs of {each['policy'] or 'several'}: "
            f"accuracy {_interval(each['report']['accuracy'])}"
        )


def _print_measured(document: dict[str, Any]) -> None:
    typer.echo(f"{document['ref']} on {document['snapshot'][:12]}")
    _print_report(document["report"])
    found = document["drift"]
    word = (
        "fallen: the alarm reward-model-drift is raised" if found["fallen"] else "no fall beyond its interval"
    )
    typer.echo(f"accuracy less that of its training data: {_interval(found['change'], signed=True)}; {word}")


def _print_report(report: dict[str, Any]) -> None:
    calibration, length = report["calibration"], report["length"]
    error = _interval(calibration["expected_calibration_error"])
    typer.echo(f"accuracy            {_interval(report['accuracy'])} of {report['pairs']} pairs")
    typer.echo(
        f"calibration error   {error}; up to {calibration['calibrated_up_to']:.3f} is what a calibrated "
        "model shows"
    )
    if length["model_prefers_longer"] is not None:
        typer.echo(
            f"prefers the longer  {_interval(length['model_prefers_longer'])}; raters did in "
            f"{length['raters_chose_longer']['value']:.3f}"
        )
    if length["correlation"] is not None:
        typer.echo(f"length correlation  {_interval(length['correlation'], signed=True)}")
    differences = report["difference_from_reference"]
    for side in ("chosen", "rejected") if differences is not None else ():
        quantiles = differences[side]["quantiles"]
        typer.echo(
            f"{side:<9}less reference  mean {differences[side]['mean']:+.3f}, quantiles "
            + ", ".join(f"{float(q):.0%} {value:+.2f}" for q, value in quantiles.items())
        )


def _print_served(document: dict[str, Any]) -> None:
    typer.echo(f"{document['model']} answers at {document['socket']} (log: {document['log']})")


def _interval(found: dict[str, float], *, signed: bool = False) -> str:
    form = "+.3f" if signed else ".3f"
    return f"{found['value']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"
