"""`ratchet judge`: register judges, and find out what they are worth before they select."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.errors import UsageError
from ratchet.home import Home

if TYPE_CHECKING:
    from ratchet.db.models.evaluation import CalibrationRow, Judge

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="JUDGE", help="NAME@VERSION, or NAME for its newest version.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    endpoint: Annotated[
        str,
        typer.Option(help="Name of its endpoint in RATCHET_EVALUATOR_JUDGES; the address is there alone."),
    ],
    model: Annotated[str, typer.Option(help="Model name it is asked as.")],
    provenance: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="JSON: `lineage`, `training_data` and `labelling`, each a list of names."
        ),
    ],
    dimension: Annotated[
        list[str] | None,
        typer.Option(
            help="What it judges, by a prompt that comes along; repeat it.", show_default="helpfulness"
        ),
    ] = None,
    template: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A prompt of one's own, TOML; repeat it.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of a reply.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Of a reply.")] = 0.0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Register a judge behind an OpenAI-compatible endpoint.

    There is no default judge. Its origin is declared, and a run refuses a judge that shares any of it with a
    policy or a reward model.
    """
    from evaluator.judges import NewJudge, add_judge, built_in_templates, load_template
    from evaluator.provenance import parse_declared
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    home = Home.resolve(data_dir)
    own = [load_template(path) for path in template or []]
    chosen = dimension if dimension is not None else ([] if own else ["helpfulness"])
    new = NewJudge(
        name,
        endpoint,
        model,
        [*built_in_templates(chosen), *own],
        parse_declared(_document(provenance), str(provenance)),
        max_tokens,
        temperature,
    )
    with role_engine(home, Role.EVALUATOR) as engine, session_scope(engine) as session:
        judge, created = add_judge(session, home, new)
    report = {"created": created, "ref": judge.ref, **new.content()}
    verb = "registered" if created else "already registered:"
    emit(report, as_json, lambda made: typer.echo(f"{verb} {made['ref']}"))


@app.command("list")
def list_versions(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List judges, the newest first, and whether they may select."""
    from evaluator.judges import calibrations, list_judges
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    with role_engine(Home.resolve(data_dir), Role.EVALUATOR) as engine, session_scope(engine) as session:
        documents = [
            {**_judge(row), "calibrated": _standing(calibrations(session, row.ref))}
            for row in list_judges(session)
        ]
    emit(documents, as_json, _print_list)


@app.command()
def show(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show a judge: its prompts, its origin, and every calibration."""
    from evaluator.judges import calibrations, get_judge, list_judges
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    home = Home.resolve(data_dir)
    with role_engine(home, Role.EVALUATOR) as engine, session_scope(engine) as session:
        judge = get_judge(session, home, name)
        row = next(row for row in list_judges(session) if row.ref == judge.ref)
        document = {
            **_judge(row),
            "prompts": {
                dimension: {"system": one.system, "user": one.user}
                for dimension, one in judge.templates.items()
            },
            "calibrations": [_calibration(each) for each in calibrations(session, judge.ref)],
        }
    emit(document, as_json, _print_one)


@app.command("calibrate")
def calibrate(
    name: Name,
    labels: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="JSON lines with question, better and worse, or HH transcripts; plain or .gz.",
        ),
    ],
    dimension: Annotated[str, typer.Option(help="Which of its prompts.")] = "helpfulness",
    limit: Annotated[int | None, typer.Option(min=1, help="Pairs at most, a seeded sample.")] = None,
    repeats: Annotated[int, typer.Option(min=2, help="Times each order is asked.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the sample and the intervals.")] = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure a judge on labelled pairs: accuracy, position bias, length bias, consistency, with intervals.

    Below the bar it is refused for selection, and the command ends with exit code 1.
    """
    from evaluator.calibrate import calibrate_judge
    from evaluator.judges import get_judge
    from evaluator.labelled import load_labelled
    from evaluator.settings import load_settings
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    home = Home.resolve(data_dir)
    pairs = load_labelled(labels, limit, seed)
    with role_engine(home, Role.EVALUATOR) as engine:
        with session_scope(engine) as session:
            judge = get_judge(session, home, name)
        row = calibrate_judge(
            engine,
            load_settings(),
            judge,
            dimension,
            pairs,
            labels=labels.name,
            repeats=repeats,
            seed=seed,
        )
    emit(_calibration(row), as_json, _print_calibration)
    if not row.passed:
        raise typer.Exit(1)


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot read this provenance file: {error}") from error


def _judge(row: "Judge") -> dict[str, Any]:
    names = ("ref", "endpoint", "model", "templates", "parameters", "provenance", "digest", "created_at")
    return {name: getattr(row, name) for name in names}


def _calibration(row: "CalibrationRow") -> dict[str, Any]:
    names = ("id", "judge", "dimension", "labels", "labels_digest", "pairs", "figures", "bar", "passed",
             "shortcomings", "created_at")  # fmt: skip
    return {name: getattr(row, name) for name in names}


def _standing(rows: "list[CalibrationRow]") -> dict[str, bool]:
    return {row.dimension: row.passed for row in reversed(rows)}


def _print_list(documents: list[dict[str, Any]]) -> None:
    for each in documents:
        standing = ", ".join(
            f"{dimension}: {'good' if each['calibrated'][dimension] else 'below the bar'}"
            if dimension in each["calibrated"]
            else f"{dimension}: not calibrated"
            for dimension in each["templates"]
        )
        typer.echo(f"{each['ref']}  {each['model']} at {each['endpoint']}  ({standing})")
    if not documents:
        typer.echo("no judge: `ratchet judge add` registers one; without one, selection goes by task metrics")


def _print_one(document: dict[str, Any]) -> None:
    typer.echo(f"{document['ref']}: {document['model']} at endpoint {document['endpoint']}")
    for field, names in document["provenance"].items():
        typer.echo(f"  {field}: {', '.join(names) or 'nothing declared'}")
    for each in document["calibrations"]:
        _print_calibration(each)
    if not document["calibrations"]:
        typer.echo("  never calibrated")


def _print_calibration(document: dict[str, Any]) -> None:
    figures = document["figures"]
    typer.echo(
        f"{document['judge']}, {document['dimension']}, {document['pairs']} pairs of {document['labels']}"
    )
    for name in ("accuracy", "position_bias", "length_bias", "order_disagreement", "self_consistency",
                 "unscored"):  # fmt: skip
        typer.echo(f"  {name.replace('_', ' ')}: {_interval(figures[name])}")
    typer.echo("  may select" if document["passed"] else f"  refused: {'; '.join(document['shortcomings'])}")


def _interval(value: dict[str, float | None]) -> str:
    if value["estimate"] is None:
        return "unknown"
    ends = "" if value["low"] is None else f" [{value['low']:.1%}, {value['high']:.1%}]"
    return f"{value['estimate']:.1%}{ends}"
