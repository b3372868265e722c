"""`ratchet forget`: remove a person."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit


def command(
    user: Annotated[str, typer.Option("--user", help="The user, as clients name them.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Leave the files of withdrawn snapshots where they are.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove a person's prompts, answers, events and pairs; withdraw the snapshots and mark the policies.

    It cannot be taken back. Policies that were trained on the person's data are marked, not removed:
    `ratchet lineage` shows them.
    """
    from feedback.commands.connection import engine_as
    from feedback.forget import forget_user
    from ratchet.db.roles import Role

    if not yes:
        typer.confirm(f"Remove everything of user {user!r}, for good?", abort=True, err=True)
    with engine_as(Role.OPERATOR, data_dir) as engine:
        report = forget_user(engine, user, now=datetime.now(UTC), keep_files=keep_files)
    emit({"user": user, **report}, as_json, _print_report)


def _print_report(report: dict[str, Any]) -> None:
    removed = ", ".join(
        f"{report[kind]} {kind}" for kind in ("responses", "events", "comparisons", "pairs", "demonstrations")
    )
    typer.echo(f"removed: {removed}")
    for kind in ("snapshots", "policies", "removed_folders"):
        for name in report[kind]:
            typer.echo(f"{kind.replace('_', ' ').rstrip('s')}: {name}")
