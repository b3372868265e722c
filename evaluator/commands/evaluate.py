"""`ratchet evaluate`: policies against a baseline on suites, and the report on a selection."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home

app = typer.Typer()


@app.command()
def run(
    policies: Annotated[
        list[str], typer.Argument(metavar="POLICY...", help="NAME@VERSION, or NAME for its newest version.")
    ],
    against: Annotated[str, typer.Option(metavar="POLICY", help="What they are compared with.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|NAME", help="Suite to ask; repeat it (default: those that come along)."),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="JUDGE", help="NAME@VERSION or NAME (default: none, task metrics only)."),
    ] = None,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="What paths of data files in suites are relative to.")
    ] = Path(),
    seed: Annotated[int, typer.Option(help="Of samples, answers and intervals.")] = 0,
    again: Annotated[bool, typer.Option("--again", help="Evaluate anew.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate policies on suites. Nothing is selected; `ratchet select` does that for a round."""
    from evaluator.harness import ONLY_TASKS, RunPlan, evaluate, finish
    from evaluator.judges import get_judge
    from evaluator.records import policy_document
    from evaluator.settings import load_settings
    from evaluator.wiring import parts_of, suites_named
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role
    from ratchet.registry import resolve

    home = Home.resolve(data_dir)
    suites = suites_named(suite or [])
    with role_engine(home, Role.EVALUATOR) as database:
        with session_scope(database) as session:
            baseline = resolve(session, against).ref
            named = dict.fromkeys(resolve(session, one).ref for one in policies)
            chosen = get_judge(session, home, judge) if judge else None
        plan = RunPlan(
            policies=tuple(one for one in named if one != baseline),
            baseline=baseline,
            suites=suites,
            judge=chosen,
            data=data,
            seed=seed,
        )
        parts = parts_of(home, database, load_settings(), _say)
        result = evaluate(plan, parts, again=again)
        base = result.measured[baseline]
        document = {
            "run": result.id,
            "baseline": baseline,
            "judge": None if chosen is None else chosen.ref,
            "note": ONLY_TASKS if chosen is None else None,
            "policies": [policy_document(result.measured[one], base, plan) for one in plan.everyone()],
        }
        finish(parts, result.id, {"policies": len(plan.policies)})
    emit(document, as_json, _print_run)


@app.command()
def show(
    selection: Annotated[str, typer.Argument(metavar="ID", help="Of the selection, or of its round.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a selection record as it was written."""
    from evaluator.commands.select import print_record
    from evaluator.records import read_selection
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    with role_engine(Home.resolve(data_dir), Role.EVALUATOR) as database, session_scope(database) as session:
        row = read_selection(session, selection)
        document = {"id": row.id, "digest": row.digest, "created_at": row.created_at, **row.record}
    emit(document, as_json, print_record)


@app.command()
def report(
    selection: Annotated[str, typer.Argument(metavar="ID", help="Of the selection, or of its round.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="HTML file to write.")] = Path("selection.html"),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write the report on a selection as one HTML file, and say whether proxy and held-out figure part.

    This runs as the report role, which may join a round's rewards only now that the record is written.
    """
    said = write_report(Home.resolve(data_dir), selection, out)
    emit(said, as_json, lambda made: typer.echo(f"{made['file']}: {made['parting'] or 'no rewards to join'}"))


def write_report(home: Home, selection: str, out: Path) -> dict[str, Any]:
    """Writes the report on a selection; says where, and what it found of proxy and judge.

    Raises:
        NotFound: There is no such record.
    """
    from evaluator.report.gather import gather
    from evaluator.report.page import render
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    with role_engine(home, Role.REPORT) as database, session_scope(database) as session:
        found = gather(session, selection)
    out.write_text(render(found), "utf-8")
    proxy = found["proxy"]
    return {
        "selection": found["id"],
        "file": str(out),
        "reward_hacking": None if proxy is None else proxy["reward_hacking"],
        "parting": None if proxy is None else proxy["reason"],
    }


def _print_run(document: dict[str, Any]) -> None:
    from evaluator.commands.select import interval_words

    for policy in document["policies"]:
        typer.echo(policy["policy"] + (" (baseline)" if policy["policy"] == document["baseline"] else ""))
        for name, metric in policy["metrics"].items():
            lost = f", {metric['truncated']} truncated, {metric['unscored']} unscored"
            typer.echo(f"  {name}: {interval_words(metric['accuracy'])}{lost}")
        for one in policy["judged"]:
            typer.echo(f"  {one['suite']} against {one['against']}: {interval_words(one['win_rate'])}")
    if document["note"]:
        typer.echo(document["note"])


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
