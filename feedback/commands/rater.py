"""`ratchet rater`: who compares answers, and how they sign in."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from feedback.raters import DEFAULT_QUOTA, LINK_DAYS
from ratchet.commands.options import AsJson, DataDir, emit

app = typer.Typer()


class Pool(StrEnum):
    """What a rater's votes are for; a person stays in one pool for ever."""

    PREFERENCE = "preference"
    EVALUATION = "evaluation"


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Who it is, such as an e-mail address.")],
    pool: Annotated[
        Pool,
        typer.Option(help="preference feeds training; evaluation judges candidates. It is never changed."),
    ] = Pool.PREFERENCE,
    daily_quota: Annotated[int, typer.Option(min=1, help="Items in one day at most.")] = DEFAULT_QUOTA,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add a rater."""
    from feedback.commands.connection import engine_as
    from feedback.raters import add_rater
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    with engine_as(Role.OPERATOR, data_dir) as engine, session_scope(engine) as session:
        identity = add_rater(session, name, pool.value, daily_quota)
    document = {"id": identity, "name": name, "pool": pool.value, "daily_quota": daily_quota}
    emit(document, as_json, lambda made: typer.echo(f"{made['name']} is in the {made['pool']} pool"))


@app.command("list")
def list_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List raters with their votes and gold results."""
    from feedback.commands.connection import engine_as
    from feedback.raters import list_raters
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    with engine_as(Role.OPERATOR, data_dir) as engine, session_scope(engine) as session:
        raters = list_raters(session)
    emit(raters, as_json, _print_raters)


@app.command()
def link(
    name: Annotated[str, typer.Argument(help="The rater's name.")],
    url: Annotated[
        str,
        typer.Option(
            help="Address of the rating page, as `ratchet up` prints it.",
            envvar="RATCHET_FEEDBACK_PUBLIC_URL",
        ),
    ],
    days: Annotated[float, typer.Option(min=0.01, help="Days the link is good for.")] = LINK_DAYS,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a sign-in link for a rater and print it, once."""
    from feedback.commands.connection import engine_as
    from feedback.raters import make_link
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role

    with engine_as(Role.OPERATOR, data_dir) as engine, session_scope(engine) as session:
        token, expires = make_link(session, name, now=datetime.now(UTC), days=days)
    address = f"{url.rstrip('/')}/sign-in/{token}"
    document = {"name": name, "link": address, "token": token, "expires_at": expires}
    emit(document, as_json, lambda made: typer.echo(made["link"]))


def _print_raters(raters: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "pool", "status", "votes", "skips", "gold", "median s")
    for rater in raters:
        seconds = rater["median_seconds"]
        gold = f"{rater['gold_right']}/{rater['gold']}"
        spent = "" if seconds is None else f"{seconds:.1f}"
        cells = (rater["name"], rater["pool"], rater["status"], rater["votes"], rater["skips"], gold, spent)
        table.add_row(*map(str, cells))
    Console().print(table)
