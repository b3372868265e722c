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


class RatingError(UsageError):
    """A rater's request that cannot be met; the message is for the rater."""


class UnknownRater(RatingError):
    """Nobody has this id, link or session."""


class SetAside(RatingError):
    """The rater failed gold items, or was closed by an operator."""


class QuotaReached(RatingError):
    """The rater had as many items as one day may bring."""


class LeaseLost(RatingError):
    """The item's time was over and it went back, or it was never this rater's."""


class NothingToUndo(RatingError):
    """No last vote that could be taken back."""
