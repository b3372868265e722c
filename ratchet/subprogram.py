"""Runs a program of another package as a child, so that what it loads (torch) never enters this process.

The child writes a line beginning with `-> ` on stderr for each stage, and one JSON document on stdout: its
result, or `{"error": {"kind": <class of ratchet.errors>, "message": ...}}`. `trainer.child` is its side.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ratchet import errors
from ratchet.errors import EnvironmentFault, RatchetError

STAGE = "-> "
_TAIL_LINES = 20


def run(module: str, arguments: Sequence[str], report: Callable[[str], None]) -> dict[str, Any]:
    """Runs `python -m module arguments` to its end.

    The child inherits this process's environment without our own variables, which hold secrets of other
    processes.

    Args:
        module: The program.
        arguments: Its arguments.
        report: Told each stage.

    Returns:
        The document it printed.

    Raises:
        RatchetError: Of the kind the child named.
        EnvironmentFault: The child ended without a document.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            errors="replace",
        ) as child:
            assert child.stderr is not None  # noqa: S101
            try:
                for line in child.stderr:
                    if line.startswith(STAGE):
                        report(line.removeprefix(STAGE).rstrip())
                    elif line.strip():
                        tail.append(line.strip())
                code = child.wait()
            except BaseException:
                child.kill()
                raise
        output.seek(0)
        return _result(module, code, output.read(), tail)


def _result(module: str, code: int, output: str, tail: Sequence[str]) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(output)
    except ValueError:
        how = f"was killed by signal {-code} (out of memory?)" if code < 0 else f"ended with code {code}"
        words = f": {tail[-1]}" if tail else ""
        raise EnvironmentFault(f"python -m {module} {how}{words}") from None
    error = document.get("error")
    if error is None:
        return document
    kind = getattr(errors, error["kind"], RatchetError)
    raise kind(error["message"])
