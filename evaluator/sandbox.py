"""Runs code that nobody vouches for: own namespaces, no network, no file of ours, limits, killed as a whole.

The launcher (`sandbox_launcher.py`) makes new mount, process, network, IPC and host-name namespaces, a root
of read-only system folders and one small scratch folder in memory, gives up every privilege, and only then
runs the code. A normal user needs a kernel that allows user namespaces. Where none of this can be had nothing
is run.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from ratchet.errors import EnvironmentFault

LAUNCHER = Path(__file__).with_name("sandbox_launcher.py")
GRACE_SECONDS = 10.0

End = Literal["finished", "failed", "timed_out"]


class SandboxUnavailable(EnvironmentFault):
    """This machine does not allow what the sandbox is made of; code is not run without it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the code may use, all its processes together unless said otherwise."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 5
    """For each process."""
    memory_bytes: int = 512 * 1024**2
    """Address space of each process."""
    processes: int = 16
    """Threads count too."""
    open_files: int = 64
    """For each process."""
    file_bytes: int = 4 * 1024**2
    """Of any one file, the output included."""
    scratch_bytes: int = 16 * 1024**2
    """Of all files."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How the code ended."""

    end: End
    exit_code: int | None
    """Negative for a signal; null where the time was up."""
    stdout: str
    stderr: str


def run_python(code: str, limits: Limits | None = None) -> Ran:
    """Runs Python code with the standard library, in an empty folder, without arguments, input or
    environment.

    Raises:
        SandboxUnavailable: The machine lacks what the sandbox is made of.
    """
    limits = limits or Limits()
    ready, told = os.pipe()
    with (
        tempfile.TemporaryDirectory(prefix="ratchet-sandbox-") as root,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        order = {
            "root": root,
            "code": code,
            "report_fd": told,
            "python": os.path.realpath(sys.executable),
            "prefix": sys.base_prefix,
            **asdict(limits),
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(LAUNCHER)],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env={},
            pass_fds=(told,),
            start_new_session=True,
        )
        os.close(told)
        with os.fdopen(ready) as report:
            try:
                process.communicate(json.dumps(order).encode(), timeout=limits.wall_seconds + GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise SandboxUnavailable(
                    "the sandbox's launcher hangs: is the machine out of memory?"
                ) from None
            words = report.read().split("\n")
        return _ran(words, _text(stdout, limits), _text(stderr, limits))


def _ran(words: list[str], stdout: str, stderr: str) -> Ran:
    if words[0] != "ready":
        cause = words[0] or stderr.strip().rpartition("\n")[2] or "it ended without a word"
        raise SandboxUnavailable(
            f"code cannot be run safely on this machine ({cause}); allow user namespaces"
            " (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0)"
            " or leave code suites out"
        )
    if words[1] == "timed_out":
        return Ran("timed_out", None, stdout, stderr)
    code = int(words[1])
    return Ran("finished" if code == 0 else "failed", code, stdout, stderr)


def _text(file: BinaryIO, limits: Limits) -> str:
    file.seek(0)
    return file.read(limits.file_bytes).decode(errors="replace")
