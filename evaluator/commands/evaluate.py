"""`ratchet evaluate`: policies against a baseline on suites, and the report on a selection."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home

if TYPE_CHECKING:
    from evaluator.watching import Look

app = typer.Typer()
LOOK_EVERY_S = 5.0


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
def hold(
    file: Annotated[Path, typer.Argument(help='Prompts, one a line: text, or JSON with "prompt".')],
    suite: Annotated[str, typer.Option(help="The name they are held out under.")] = "prompts",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Hold prompts out: evaluations ask them, and nothing that is or overlaps one trains any more."""
    from evaluator.repository import OF_A_SUITE, TRAFFIC, hold_out
    from evaluator.suites.loaders import load_prompts
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role
    from ratchet.errors import UsageError

    if suite == TRAFFIC or suite.startswith(OF_A_SUITE):
        raise UsageError(f"prompts that are held out as {suite!r} are not an operator's: take another name")
    prompts = load_prompts(file)
    with role_engine(Home.resolve(data_dir), Role.EVALUATOR) as database, session_scope(database) as session:
        new = hold_out(session, suite, prompts)
    said = {"suite": suite, "prompts": len(prompts), "new": new}
    emit(said, as_json, lambda made: typer.echo(f"{made['new']} of {made['prompts']} prompts are new"))


@app.command()
def watch(
    round_id: Annotated[str, typer.Option("--round", metavar="ID", help="Which round.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|NAME", help="Suite with a floor; repeat it (default: those that come along)."
        ),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints that are looked at.")] = 1,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="What paths of data files in suites are relative to.")
    ] = Path(),
    seed: Annotated[int, typer.Option(help="Of samples and answers.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Look once instead of until the round ends.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Hold the newest checkpoint of a running round to the floors; a breach stops the round.

    The reason in the round's control row names the floor, and the checkpoint to restart from with a larger
    beta.
    """
    import time

    from evaluator.settings import load_settings
    from evaluator.watching import Watch, floored, look
    from evaluator.wiring import parts_of, suites_named
    from ratchet.commands.operator import role_engine
    from ratchet.db.roles import Role

    home = Home.resolve(data_dir)
    watched = Watch(round_id, floored(suites_named(suite or [])), every, data, seed)
    looks: list[dict[str, Any]] = []
    with role_engine(home, Role.EVALUATOR) as database:
        parts = parts_of(home, database, load_settings(), _say)
        goes_on = True
        while goes_on:
            before = watched.last
            watched, goes_on = look(watched, parts)
            if watched.last is not None and watched.last is not before:
                looks.append(_look(watched.last))
                _say(f"step {watched.last.step}: {', '.join(looks[-1]['breached']) or 'every floor holds'}")
            elif goes_on and not once:
                time.sleep(LOOK_EVERY_S)
            goes_on = goes_on and not once
    emit({"round": round_id, "looks": looks}, as_json, lambda _: None)


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
        UsageError: The file cannot be written.
    """
    from evaluator.report.gather import gather
    from evaluator.report.page import render
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role
    from ratchet.errors import UsageError

    with role_engine(home, Role.REPORT) as database, session_scope(database) as session:
        found = gather(session, selection)
    try:
        out.write_text(render(found), "utf-8")
    except OSError as error:
        raise UsageError(f"the report cannot be written: {out}: {error.strerror}") from error
    proxy = found["proxy"]
    return {
        "selection": found["id"],
        "file": str(out),
        "reward_hacking": None if proxy is None else proxy["reward_hacking"],
        "parting": None if proxy is None else proxy["reason"],
    }


def _look(seen: "Look") -> dict[str, Any]:
    return {
        "policy": seen.policy,
        "step": seen.step,
        "floors": {floor.name: floor.value.estimate for floor in seen.floors},
        "breached": [floor.name for floor in seen.breached],
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
