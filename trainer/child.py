"""The child's side of `ratchet.subprogram`: stages on stderr, one JSON document on stdout."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from ratchet.errors import RatchetError
from ratchet.subprogram import STAGE


def say(stage: str) -> None:
    """Names the stage that begins."""
    sys.stderr.write(f"{STAGE}{stage}\n")
    sys.stderr.flush()


def answer(work: Callable[[], dict[str, Any]]) -> NoReturn:
    """Does the work, prints its result and ends the process.

    Libraries that print on stdout are led to stderr meanwhile, and their progress bars are off. An error made
    on purpose becomes the document's `error` and the process's exit code.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    stdout = os.dup(1)
    os.dup2(2, 1)
    code = 0
    try:
        document = work()
    except RatchetError as error:
        document = {"error": {"kind": type(error).__name__, "message": str(error)}}
        code = error.exit_code
    with os.fdopen(stdout, "w") as output:
        output.write(json.dumps(document, allow_nan=False) + "\n")
    sys.exit(code)
