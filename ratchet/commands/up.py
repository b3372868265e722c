"""`ratchet up`: the whole stack on this machine, in the foreground."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir
from ratchet.home import DEFAULT_HOME

INTERRUPTED = 130


def command(
    host: Annotated[str, typer.Option("--host", help="Address the gateway listens on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", min=1, max=65_535, help="Port of the gateway; the next three are for pages."),
    ] = 8000,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME|PATH",
            help="A registered policy, or a model folder to register (default: what the traffic plans say; "
            "smollm2 in a new data folder).",
            show_default=False,
        ),
    ] = None,
    gateway_workers: Annotated[
        int, typer.Option("--gateway-workers", min=1, max=64, help="Processes of the gateway.")
    ] = 1,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Start the whole stack on this machine, and keep it running.

    PostgreSQL (embedded, or RATCHET_DATABASE_URL), migrations, one vLLM server for each served policy, the
    gateway, and the workers and pages of feedback, trainer and evaluator. Ctrl-C stops everything in order;
    twice, at once. With --json, one document is printed on stdout when the stack is ready, and it goes on.
    """
    from ratchet.supervisor.settings import load_settings
    from ratchet.supervisor.show import Show
    from ratchet.supervisor.stack import Wish, run

    show = Show(to_stderr=as_json)

    def when_ready(document: dict[str, Any]) -> None:
        if as_json:
            sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
            sys.stdout.flush()
        _summary(show, document, data_dir)

    try:
        run(Wish(data_dir, host, port, model, gateway_workers), load_settings(), show, when_ready)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _summary(show: Any, document: dict[str, Any], data_dir: Path | None) -> None:
    name = next(iter(document["models"]))
    url = document["url"]
    where = (
        ""
        if data_dir is None and document["data_dir"] == str(Path(DEFAULT_HOME).resolve())
        else (f" --data-dir {document['data_dir']}")
    )
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello!"}]})
    show.done("ready", f"a token can be generated, {document['ready_s']:.0f} s after the start")
    lines = [
        "",
        *(f"  {service:<10} {address}" for service, address in document["addresses"].items()),
        *(f"  {model:<10} answered by {policy}" for model, policy in document["models"].items()),
        f"  {'data':<10} {document['data_dir']}",
        f"  {'logs':<10} {document['logs']}",
        "",
        "From another shell:",
        f"  ratchet keys create --role client{where}",
        f"  curl {url}/v1/chat/completions -H 'Authorization: Bearer KEY' "
        f"-H 'Content-Type: application/json' -d '{body}'",
        f"  ratchet responses list{where}",
        "",
        "Ctrl-C stops everything.",
    ]
    show.plain("\n".join(lines))
