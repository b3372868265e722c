"""`ratchet feedback`: what operators add to the feedback service, and what they ask of it."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit

app = typer.Typer()


class MetricType(StrEnum):
    """What a metric's values are."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    CATEGORY = "category"


class Pool(StrEnum):
    """Whose raters gold items test."""

    PREFERENCE = "preference"
    EVALUATION = "evaluation"


@app.command("metric")
def metric(
    name: Annotated[str, typer.Argument(help="Its name, as clients send it.")],
    type: Annotated[MetricType, typer.Option(help="What its values are.")],
    description: Annotated[str, typer.Option(help="What it says, for people.")],
    low: Annotated[float | None, typer.Option(help="Of a number, the least.")] = None,
    high: Annotated[float | None, typer.Option(help="Of a number, the most.")] = None,
    category: Annotated[list[str] | None, typer.Option(help="A value of a category; repeat it.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Register a metric that clients may report with `POST /v1/feedback`."""
    from feedback.commands.connection import engine_as
    from feedback.registrations import add_metric
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    with engine_as(Role.OPERATOR, data_dir) as engine, session_scope(engine) as session:
        add_metric(session, name, type.value, description, low=low, high=high, categories=category)
    emit({"name": name, "type": type.value}, as_json, lambda made: typer.echo(f"registered {made['name']}"))


@app.command("metrics")
def metrics(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List registered metrics."""
    from feedback.commands.connection import engine_as
    from feedback.registrations import list_metrics
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    with engine_as(Role.OPERATOR, data_dir) as engine, session_scope(engine) as session:
        found = list_metrics(session)
    emit(found, as_json, _print_metrics)


@app.command("gold")
def gold(
    path: Annotated[
        Path,
        typer.Argument(
            help='JSON lines: {"prompt": ..., "a": ..., "b": ..., "expected": "a|b|tie|both_bad"}.',
        ),
    ],
    pool: Annotated[Pool, typer.Option(help="Whose raters they test.")] = Pool.PREFERENCE,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add gold items: comparisons with a known answer, mixed in to tell who pays attention."""
    from feedback.commands.connection import engine_as
    from feedback.registrations import add_gold, read_gold
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    items = read_gold(path)
    with engine_as(Role.FEEDBACK, data_dir) as engine, session_scope(engine) as session:
        made = add_gold(session, items, pool.value)
    report = {"items": len(items), "new": made, "pool": pool.value}
    emit(report, as_json, lambda done: typer.echo(f"{done['new']} of {done['items']} gold items are new"))


@app.command("sample")
def sample(
    policies: Annotated[tuple[str, str], typer.Argument(help="Two policy versions, NAME@VERSION.")],
    count: Annotated[int, typer.Option(min=1, help="Prompts at most.")] = 50,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Have two policies answer logged prompts anew, for raters to compare; the worker does it."""
    from feedback.commands.connection import engine_as
    from feedback.samples import request_samples
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    with engine_as(Role.FEEDBACK, data_dir) as engine, session_scope(engine) as session:
        asked = request_samples(session, policies, count, ("language", "length"), now=datetime.now(UTC))
    report = {"policies": list(policies), "asked": asked}
    emit(report, as_json, lambda done: typer.echo(f"asked for {done['asked']} comparisons"))


def _print_metrics(metrics: list[dict[str, Any]]) -> None:
    for each in metrics:
        typer.echo(f"{each['name']} ({each['type']}): {each['description']}")
