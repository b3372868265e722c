"""`ratchet lineage`: everything that led to a response, a policy, a round or a user's answers."""

import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.errors import NotFound
from ratchet.home import Home

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class Subject(StrEnum):
    """What a lineage is asked of."""

    RESPONSE = "response"
    ROUND = "round"
    POLICY = "policy"
    USER = "user"


def command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RESPONSE|ROUND|POLICY|USER",
            help="Id of a response (header x-ratchet-response-id) or round, policy (NAME@VERSION, or NAME "
            "for its newest version), or the client's name for a user.",
        ),
    ],
    of: Annotated[
        Subject | None,
        typer.Option("--as", help="What the word is, should it be more than one.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show everything that led to a response, a policy, a round or a user's answers.

    Of a response: its policy with digests, ancestors and provenance, its decode config, traffic plan, engine
    and the proof of that engine. Of a policy: ancestors, the rounds and snapshots that trained it and them,
    children, the plans it stood in, its engines and their proofs, its responses. Of a round: its policy, its
    configuration, all data under it, its candidates. Of a user: the responses, by the policy that gave them,
    and every snapshot and policy to redo once `ratchet forget` has removed them.
    """
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        document = _lineage(session, what, of)
    emit(document, as_json, _print)


def _lineage(session: "Session", what: str, of: Subject | None) -> dict[str, Any]:
    from ratchet import lineage
    from ratchet.registry import resolve

    def response() -> dict[str, Any]:
        try:
            identity = UUID(what)
        except ValueError:
            raise NotFound(f"{what!r} is no response id: the header x-ratchet-response-id has it") from None
        return lineage.of_response(session, identity)

    def training_round() -> dict[str, Any]:
        try:
            identity = UUID(what)
        except ValueError:
            raise NotFound(f"{what!r} is no round's id: `ratchet round list` shows them") from None
        return lineage.of_round(session, identity)

    readings = {
        Subject.RESPONSE: response,
        Subject.ROUND: training_round,
        Subject.POLICY: lambda: lineage.of_policy(session, resolve(session, what).ref),
        Subject.USER: lambda: lineage.of_user(session, what),
    }
    if of is not None:
        return readings[of]()
    for subject in (Subject.RESPONSE, Subject.ROUND, Subject.POLICY):
        with contextlib.suppress(NotFound):
            return readings[subject]()
    return readings[Subject.USER]()


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    def grow(branch: Tree, name: str, value: Any) -> None:
        if isinstance(value, list):
            value = {str(number): item for number, item in enumerate(value, start=1)}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if isinstance(value, dict) and value:
            twig = branch.add(Text(name, style="bold"))
            for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
                grow(twig, str(key), item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            shown = "-" if value is None or value == {} else str(value)  # pyright: ignore[reportUnknownArgumentType]
            branch.add(Text(f"{name}: {shown}", overflow="fold"))

    tree = Tree(Text(f"lineage of a {document['kind']}", style="bold"))
    for name, value in document.items():
        if name != "kind":
            grow(tree, name, value)
    Console().print(tree)
