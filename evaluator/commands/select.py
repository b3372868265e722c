"""`ratchet select`: which checkpoint of a round is proposed, or none, and why."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home


def command(
    round_id: Annotated[str, typer.Option("--round", metavar="ID", help="Whose candidates.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|NAME", help="Suite to ask; repeat it (default: those that come along)."),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="JUDGE", help="NAME@VERSION or NAME (default: none, task metrics only)."),
    ] = None,
    raters: Annotated[
        int, typer.Option(min=0, help="Ask the evaluation raters instead of a judge: votes for each pair.")
    ] = 0,
    primary: Annotated[
        str | None, typer.Option(metavar="SUITE", help="Suite that ranks (default: judged, else trained).")
    ] = None,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="What paths of data files in suites are relative to.")
    ] = Path(),
    seed: Annotated[int, typer.Option(help="Of samples, answers and intervals.")] = 0,
    again: Annotated[bool, typer.Option("--again", help="Evaluate anew; records are never changed.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as one HTML file too.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the candidates of a round on held-out ground and propose one of them, or none.

    Each answers under its own pinned decode config and is compared with what is in production. The reward it
    was trained on is no input: this runs as a role that cannot read it. The record is written once; asked
    again, the command shows it. A run that was cut off goes on where it was.
    """
    from evaluator.harness import RunPlan
    from evaluator.judges import get_judge
    from evaluator.records import select_for_round
    from evaluator.repository import read_round
    from evaluator.settings import load_settings
    from evaluator.wiring import parts_of, suites_named
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role
    from ratchet.errors import UsageError

    home = Home.resolve(data_dir)
    suites = suites_named(suite or [])
    with role_engine(home, Role.EVALUATOR) as database:
        with session_scope(database) as session:
            found = read_round(session, round_id)
            chosen = get_judge(session, home, judge) if judge else None
        if found.state in ("asked", "running"):
            raise UsageError(f"round {found.id} is {found.state}: select when it has ended")
        if not found.candidates:
            raise UsageError(f"round {found.id} is {found.state} and has no registered candidate")
        plan = RunPlan(
            policies=tuple(one.policy for one in found.candidates),
            baseline=found.production,
            suites=suites,
            round_id=found.id,
            reference=found.reference,
            judge=chosen,
            raters=raters,
            data=data,
            seed=seed,
            primary=primary,
        )
        row = select_for_round(plan, found, parts_of(home, database, load_settings(), _say), again=again)
    emit(
        {"id": row.id, "digest": row.digest, "created_at": row.created_at, **row.record},
        as_json,
        print_record,
    )
    if report is not None:
        from evaluator.commands.evaluate import write_report

        write_report(home, str(row.id), report)


def print_record(record: dict[str, Any]) -> None:
    """The record as a table, and the reason in words."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for heading in ("candidate", "step", "KL", "ranked by", "p", "floors", "frontier", "refused"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "candidate")
    for one in record["candidates"]:
        first = one["primary"]
        table.add_row(
            ("* " if one["policy"] == record["chosen"] else "  ") + one["policy"],
            str(one["step"]),
            f"{one['kl']:.3g}",
            "-" if first is None else interval_words(first),
            "-" if first is None else f"{first['p_value']:.3f}",
            "hold" if one["floors_passed"] else "breached",
            "yes" if one["on_frontier"] else "no",
            "; ".join(one["refused"]) or "-",
        )
    console = Console()
    console.print(f"candidates beside {record['baseline']}, which was in production")
    console.print(table)
    if record["note"]:
        console.print(record["note"])
    for one in record["candidates"]:
        for flag in one["flags"]:
            console.print(f"{one['policy']}: {flag}")
    console.print(record["reason"])


def interval_words(value: dict[str, Any]) -> str:
    """An estimate with its interval."""
    if value["estimate"] is None:
        return "unknown"
    ends = "" if value["low"] is None else f" [{value['low']:.3f}, {value['high']:.3f}]"
    return f"{value['estimate']:.3f}{ends}"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
