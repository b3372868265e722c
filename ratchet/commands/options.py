"""Options every command shares, and the one way results are printed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Data folder of the stack (default: RATCHET_HOME, else ./.ratchet).",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def emit(document: Any, as_json: bool, render: Callable[[Any], None]) -> None:
    """Prints a result: the JSON document itself, or its rendering for people.

    Args:
        document: JSON-able; dates and UUIDs become strings.
        as_json: Whether `--json` was given.
        render: Prints the document for people.
    """
    if as_json:
        sys.stdout.write(json.dumps(document, default=str, ensure_ascii=False, indent=2) + "\n")
    else:
        render(document)
