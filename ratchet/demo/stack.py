"""The stack the demonstration runs: a real `ratchet up` in a process of its own, spoken to from outside."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import EnvironmentFault

READY_TIMEOUT_S = 600
STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class RunningStack:
    """A stack that answers.

    Attributes:
        data_dir: Its data folder.
        base_url: Address of its gateway, without a path.
        process: The `ratchet up` process.
    """

    data_dir: Path
    base_url: str
    process: subprocess.Popen[bytes]

    def ratchet(self, *arguments: str) -> Any:
        """Runs a `ratchet` command on this stack from outside, as an operator would, and returns its JSON.

        Raises:
            EnvironmentFault: The command failed; the message is its own.
        """
        command = [
            sys.executable,
            "-m",
            "ratchet.cli",
            *arguments,
            "--json",
            "--data-dir",
            str(self.data_dir),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentFault(f"`ratchet {' '.join(arguments)}` failed: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout)


@contextmanager
def running_stack(
    data_dir: Path, port: int, model: str, *extra: str, variables: Mapping[str, str] | None = None
) -> Generator[RunningStack]:
    """Starts a stack, waits until it can generate a token, and stops it in the end.

    Args:
        data_dir: Its data folder.
        port: Port of its gateway.
        model: As `ratchet up --model`.
        extra: Further options of `ratchet up`.
        variables: Settings that differ from the shell's.

    Raises:
        EnvironmentFault: The stack ended before it was ready, or was not ready in time.
    """
    command = [sys.executable, "-m", "ratchet.cli", "up", "--data-dir", str(data_dir), "--port", str(port),
               "--model", model, *extra]  # fmt: skip
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(variables or {})}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    stack = RunningStack(data_dir, f"http://127.0.0.1:{port}", process)
    try:
        _wait_until_ready(stack)
        yield stack
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(stack: RunningStack) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if stack.process.poll() is not None:
            raise EnvironmentFault(
                f"`ratchet up` ended with code {stack.process.returncode} before it was ready"
            )
        try:
            with urllib.request.urlopen(f"{stack.base_url}/readyz", timeout=5) as answer:  # noqa: S310
                if answer.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass
        try:
            stack.process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    raise EnvironmentFault(
        f"the stack was not ready within {READY_TIMEOUT_S} s; its logs: {stack.data_dir}/logs"
    )
