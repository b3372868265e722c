"""`python -m gateway`: settings from the environment, one process or several, an orderly end on SIGTERM."""

import signal
import socket
import sys
from types import FrameType
from typing import Annotated

import typer
import uvicorn
from uvicorn.supervisors import Multiprocess

from gateway.app import create_app
from ratchet.errors import PortTaken, RatchetError
from ratchet.logs import configure as configure_logs
from ratchet.settings import GatewaySettings, load

GRACE_S = 3
"""Requests in flight may take so long to end; then they are cut, and the recorder has its turn."""
BACKLOG = 2048


def main(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes, each with a recorder of its own.")] = 1,
) -> None:
    """Serve the OpenAI-compatible API."""
    try:
        serve(host, port, workers)
    except RatchetError as error:
        sys.stderr.write(f"gateway: {error}\n")
        sys.exit(error.exit_code)


def serve(host: str, port: int, workers: int) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
        ConfigError: A setting is missing or wrong.
        PortTaken: The address is in use, or not ours.
    """
    settings = load(GatewaySettings)
    configure_logs(settings.log_level, settings.log_format)
    listener = listen(host, port)
    config = uvicorn.Config(
        "gateway.app:from_environment" if workers > 1 else create_app(settings),
        factory=workers > 1,
        workers=workers,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_S,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_well)
    if workers > 1:
        Multiprocess(config, [listener]).run()
        return
    server = uvicorn.Server(config)
    server.run([listener])
    if not server.started:
        sys.exit(1)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a taken port is known before anything else starts.

    Raises:
        PortTaken: It cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortTaken(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    listener.set_inheritable(True)
    return listener


def _end_well(_number: int, _frame: FrameType | None) -> None:
    """uvicorn raises the signal once more after it has stopped; by then all is done."""


if __name__ == "__main__":
    typer.run(main)
