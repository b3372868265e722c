"""The whole stack as a user starts it: `ratchet up`, with real PostgreSQL, vLLM, gateway and workers."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.demo.stack import RunningStack, running_stack
from tests.support.tiny_model import make_tiny_model


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="package")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama made on the spot."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder, seed=0)
    return folder


@pytest.fixture(scope="package")
def tiny_stack(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[RunningStack]:
    """A stack that serves the small Llama."""
    with running_stack(tmp_path_factory.mktemp("home"), free_port(), str(tiny_folder)) as stack:
        yield stack


@pytest.fixture(scope="package")
def smollm2_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A stack that serves SmolLM2-135M-Instruct, fetched as a user would."""
    with running_stack(tmp_path_factory.mktemp("home"), free_port(), "smollm2") as stack:
        yield stack
