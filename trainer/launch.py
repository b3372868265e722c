"""Starts a round's processes on this machine: DeepSpeed's launcher, or one process by itself.

`python -m trainer.launch FOLDER` turns into the launcher, so that whoever started it holds the processes
themselves. It is `deepspeed.launcher.launch`, which the `deepspeed` command starts on each machine: when one
process ends badly it ends the others.
"""

import argparse
import base64
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError
from trainer.config import RoundConfig
from trainer.errors import RoundFailed

_TAIL = 2000


def command(config: RoundConfig, folder: Path) -> list[str]:
    """The command that runs a prepared round, or goes on with it, to its end."""
    return [sys.executable, "-m", "trainer.launch", str(folder), "--processes", str(config.engine.processes)]


def launch(config: RoundConfig, folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a prepared round to its end, here and now.

    Args:
        config: Of the round.
        folder: From `round.prepare`.
        environment: Beside this process's own.

    Returns:
        The summary, in JSON types.

    Raises:
        RoundFailed: A process ended badly; the message is its own, or the end of what it wrote.
    """
    with (folder / "log").open("ab") as log:
        start = log.tell()
        ended = subprocess.run(
            command(config, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    if ended.returncode:
        raise failure(folder, start)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text("utf-8"))
    return summary


def failure(folder: Path, start: int = 0) -> RatchetError:
    """Why a round's processes ended badly: what they said on purpose, else the end of their log.

    Args:
        folder: Of the round.
        start: Where this run began to write into the log.
    """
    try:
        said = json.loads((folder / "error.json").read_text("utf-8"))
        return RoundFailed(said["message"])
    except (OSError, ValueError, KeyError):
        with (folder / "log").open("rb") as log:
            log.seek(start)
            tail = log.read().decode("utf-8", "replace")[-_TAIL:]
        return RoundFailed(f"a process of the round in {folder} died: ...{tail}")


def main() -> None:
    """Becomes the launcher."""
    parser = argparse.ArgumentParser(prog="python -m trainer.launch", description="Runs a prepared round.")
    parser.add_argument("folder", metavar="FOLDER", help="the round's folder")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share the work")
    arguments = parser.parse_args()
    processes: int = arguments.processes
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))
    program = processes_of("trainer.run", [arguments.folder], processes)
    os.execve(sys.executable, program, environment)  # noqa: S606


def processes_of(module: str, arguments: Sequence[str], processes: int) -> list[str]:
    """The command that runs a module in so many processes on this machine, which find each other."""
    if processes == 1:
        return [sys.executable, "-m", module, *arguments]
    world = base64.urlsafe_b64encode(json.dumps({"localhost": list(range(processes))}).encode()).decode()
    return [
        sys.executable,
        "-m",
        "deepspeed.launcher.launch",
        f"--world_info={world}",
        "--master_addr=127.0.0.1",
        f"--master_port={_free_port()}",
        "--module",
        module,
        *arguments,
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
