"""Starts the processes that train: DeepSpeed's launcher on the round's folder, on a leash of this process."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.supervisor import leash
from trainer.config import RoundConfig
from trainer.durable import write_text
from trainer.launch import command
from trainer.rounds.conduct import LOG

CONFIG = "config.json"
"""Where `trainer.round` looks for a round's configuration."""


def leashed(argv: Sequence[str], folder: Path) -> "subprocess.Popen[Any]":
    """Starts a command that ends when this process does; call it from the main thread.

    It inherits none of our own variables, which hold the database's address, and writes into the folder's
    log.

    Args:
        argv: Program and arguments.
        folder: The round's folder.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def launch(config: RoundConfig, folder: Path) -> "subprocess.Popen[Any]":
    """Starts a configured round in its folder, or goes on with it."""
    write_text(folder / CONFIG, json.dumps(config.content(), indent=2) + "\n")
    return leashed(command(config, folder), folder)
