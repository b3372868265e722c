"""`ratchet db`: addresses of the stack's database."""

import os
from typing import Annotated

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.db.roles import Role
from ratchet.errors import UsageError
from ratchet.home import Home

app = typer.Typer()


@app.command()
def url(
    role: Annotated[
        str,
        typer.Option(
            help=f"Whose address: {', '.join(role.service for role in Role)}; owner may do everything, the "
            "others only their part."
        ),
    ] = Role.OPERATOR.service,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print a role's database address, with its password: psql "$(ratchet db url)"."""
    try:
        chosen = Role(f"ratchet_{role}")
    except ValueError:
        known = ", ".join(role.service for role in Role)
        raise UsageError(f"no database role is called {role!r}; known: {known}") from None
    address = _address(Home.resolve(data_dir), chosen)
    emit({"role": role, "url": address}, as_json, lambda document: typer.echo(document["url"]))


def _address(home: Home, role: Role) -> str:
    from ratchet.secrets_store import role_url
    from ratchet.supervisor.database import embedded_at

    if role is not Role.OWNER:
        return role_url(home, role)
    return os.environ.get("RATCHET_DATABASE_URL") or embedded_at(home).owner_url
