"""What can be wrong with a data set that comes in or is opened."""

from pathlib import Path

from ratchet.errors import UsageError


class FormatError(UsageError):
    """A file that is not what its format says; the message names file and line."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        self.path = path
        self.line = line
        super().__init__(f"{path}: {reason}" if line is None else f"{path}, line {line}: {reason}")


class SnapshotError(UsageError):
    """A snapshot folder that is incomplete, or whose rows are not those it was named after."""
