"""`ratchet keys`: create, list and revoke API keys."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home
from ratchet.keys import KeyRole

if TYPE_CHECKING:
    from ratchet.db.models.serving import ApiKey

app = typer.Typer()


@app.command()
def create(
    role: Annotated[
        KeyRole,
        typer.Option(
            help="client asks for answers; rater signs in to the rating page; operator runs releases; "
            "service asks on behalf of Ratchet itself."
        ),
    ],
    name: Annotated[str, typer.Option(help="Whose key it is, for people.")] = "",
    rpm: Annotated[
        int | None, typer.Option(min=1, help="Requests a minute (default: no limit).", show_default=False)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests in flight (default: no limit).", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it, once: only its hash is stored."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from ratchet.keys import create_key

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        row, text = create_key(session, role, name or role.value, rpm=rpm, concurrency=concurrency)
        document = {**_document(row), "key": text}
    emit(document, as_json, lambda created: typer.echo(created["key"]))


@app.command("list")
def list_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List keys, also those revoked, the newest first."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from ratchet.keys import list_keys

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        documents = [_document(row) for row in list_keys(session)]
    emit(documents, as_json, _print_list)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID|PREFIX|KEY", help="Id, shown prefix, or the key itself.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key; running gateways refuse it within moments."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from ratchet.keys import revoke_key

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        document = _document(revoke_key(session, key))
    emit(document, as_json, lambda gone: typer.echo(f"revoked {gone['prefix']}... ({gone['name']})"))


def _document(row: "ApiKey") -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "role": row.role,
        "prefix": row.prefix,
        "limits": row.limits,
        "created_at": row.created_at,
        "revoked_at": row.revoked_at,
    }


def _print_list(documents: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for heading in ("key", "role", "name", "limits", "created", "revoked"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "key")
    for key in documents:
        table.add_row(
            f"{key['prefix']}...",
            key["role"],
            escape(key["name"]),
            ", ".join(f"{name} {value}" for name, value in key["limits"].items()) or "-",
            f"{key['created_at']:%Y-%m-%d %H:%M}",
            f"{key['revoked_at']:%Y-%m-%d %H:%M}" if key["revoked_at"] else "-",
        )
    Console().print(table if documents else "no keys; `ratchet keys create --role client` makes one")
