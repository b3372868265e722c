"""Starts the processes that train: DeepSpeed's launcher on the round's folder, on a leash of this process."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.supervisor import leash
from trainer.config import RoundConfig
from trainer.rounds.conduct import LOG


def leashed(command: Sequence[str], folder: Path) -> "subprocess.Popen[Any]":
    """Starts a command that ends when this process does; call it from the main thread.

    It inherits none of our own variables, which hold the database's address, and writes into the folder's
    log.

    Args:
        command: Program and arguments.
        folder: The round's folder.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def launch(config: RoundConfig, folder: Path) -> "subprocess.Popen[Any]":
    """Starts a configured round in its folder."""
    from trainer import launch as launching

    return leashed(launching.command(config, folder), folder)
