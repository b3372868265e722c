"""Files and folders that appear whole or not at all, also when the power fails or the disk is full."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from trainer.errors import DiskFull

INCOMING = ".incoming-"
_FULL = ("No space left", "File too large", "PytorchStreamWriter failed", "iostream error", "unexpected pos")
"""How torch and safetensors say that a write came to its end too early; they keep no error number."""


def write_text(path: Path, text: str) -> None:
    """Replaces a file.

    Raises:
        DiskFull: There is no room; the file is as it was.
    """
    incoming = path.with_name(f"{INCOMING}{os.getpid()}-{path.name}")
    with room(path.parent):
        try:
            incoming.write_text(text, "utf-8")
            _sync(incoming)
            incoming.replace(path)
        finally:
            incoming.unlink(missing_ok=True)
    _sync(path.parent)


def place(incoming: Path, final: Path) -> None:
    """Gives a finished folder its name, after all of it is on the disk; one of that name gives way.

    Raises:
        DiskFull: There is no room for what was written.
    """
    with room(final.parent):
        for path in (*incoming.rglob("*"), incoming):
            _sync(path)
        if final.exists():
            shutil.rmtree(final)
        incoming.rename(final)
    _sync(final.parent)


@contextmanager
def room(folder: Path) -> Iterator[None]:
    """Inside, an error for want of disk space becomes one that says so.

    Raises:
        DiskFull: There was no room.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not _is_full(error):
            raise
        free = shutil.disk_usage(folder).free
        raise DiskFull(
            f"no room to save in {folder} ({free / 1e6:.0f} MB free): make room and resume the round; what "
            "was saved before is whole"
        ) from error


def _is_full(error: BaseException) -> bool:
    causes = [error, error.__cause__, error.__context__]
    if any(
        isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        for cause in causes
    ):
        return True
    said = " ".join(str(cause) for cause in causes if not isinstance(cause, OSError))
    return any(words in said for words in _FULL)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
