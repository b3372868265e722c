"""`ratchet policy`: register and inspect policy versions."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.errors import UsageError
from ratchet.home import Home

if TYPE_CHECKING:
    from ratchet.registry import PolicyVersion

app = typer.Typer()


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The policy's name; clients ask for it as `model`.")],
    path: Annotated[
        Path, typer.Option("--path", metavar="DIR", help="A Hugging Face causal-LM folder (safetensors).")
    ],
    decode: Annotated[
        Path | None,
        typer.Option(
            "--decode",
            metavar="FILE",
            help="Decode config, TOML or JSON (default: as generation_config.json says, else temperature 1).",
            show_default=False,
        ),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option("--parent", metavar="REF", help="Policy it was trained from: NAME@VERSION, or NAME."),
    ] = None,
    provenance: Annotated[
        Path | None,
        typer.Option("--provenance", metavar="FILE", help="JSON object that says where it comes from."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Register a model folder as a policy version.

    The folder is copied into the data folder's store. Equal content gives the version that is there; changed
    weights, tokenizer, chat template or decode config give a new one.

    Fields of a decode config: temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty,
    repetition_penalty, max_tokens, stop, seed_policy (client, fixed or none), seed, logit_bias.
    """
    from ratchet.commands.operator import operator_engine
    from ratchet.commands.progress import shown
    from ratchet.decode import DecodeConfig
    from ratchet.registry import add_policy

    home = Home.resolve(data_dir)
    pinned = DecodeConfig.from_file(decode) if decode else None
    origin = _provenance(provenance) if provenance else None
    with operator_engine(home) as engine, shown() as work:
        added = add_policy(
            engine,
            home,
            name=name,
            path=path,
            decode=pinned,
            parent=parent,
            provenance=origin,
            report=work.stage,
            progress=work.advance,
        )
    document = {"created": added.created, **_document(added.policy)}
    emit(document, as_json, _print_added)


@app.command("list")
def list_versions(
    name: Annotated[str | None, typer.Argument(help="Only versions of this policy.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List policy versions, the newest first."""
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from ratchet.registry import list_policies

    with operator_engine(Home.resolve(data_dir)) as engine, session_scope(engine) as session:
        documents = [_document(policy) for policy in list_policies(session, name)]
    emit(documents, as_json, _print_list)


@app.command()
def show(
    policy: Annotated[
        str, typer.Argument(metavar="REF", help="NAME@VERSION, or NAME for its newest version.")
    ],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show one policy version: digests, decode config, architecture, provenance, golden log-probabilities."""
    from ratchet.artifacts import Kind, store_of
    from ratchet.commands.operator import operator_engine
    from ratchet.db.engine import session_scope
    from ratchet.registry import golden_entries, resolve

    home = Home.resolve(data_dir)
    with operator_engine(home) as engine, session_scope(engine) as session:
        found = resolve(session, policy)
        golden = golden_entries(session, found.ref)
    folder = store_of(home, Kind.POLICY).root / found.artifact
    document = {**_document(found), "folder": str(folder), "golden": golden}
    emit(document, as_json, _print_one)


def _provenance(file: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot read this provenance file: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file}: a provenance file holds one JSON object")
    return document  # pyright: ignore[reportUnknownVariableType]


def _document(policy: "PolicyVersion") -> dict[str, Any]:
    return {**vars(policy), "decode": policy.decode.content()}


def _print_added(document: dict[str, Any]) -> None:
    verb = "registered" if document["created"] else "already registered:"
    typer.echo(f"{verb} {document['ref']}")


def _print_list(documents: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for heading in ("policy", "created", "model", "parameters", "context", "parent"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "policy")
    for policy in documents:
        shape = policy["architecture"]
        table.add_row(
            policy["ref"],
            f"{policy['created_at']:%Y-%m-%d %H:%M}",
            shape["model_type"],
            f"{shape['parameters'] / 1e6:.1f} M {shape['dtype']}",
            str(shape["context_length"]),
            policy["parent"] or "-",
        )
    Console().print(table if documents else "no policies; `ratchet policy add NAME --path DIR` registers one")


def _print_one(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for field, value in document.items():
        if field == "golden":
            tokens = sum(len(entry["token_ids"]) for entry in value)
            text = f"{len(value)} known prompts, {tokens} tokens (--json shows them)"
        elif isinstance(value, dict):
            text = json.dumps(value, ensure_ascii=False, indent=2)
        else:
            text = "-" if value is None else str(value)
        grid.add_row(field, Text(text))
    Console().print(grid)
