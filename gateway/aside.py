"""What PostgreSQL will never take, and what is not as it was written: kept in a folder for a person."""

import os
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from gateway.jsonable import dumps
from gateway.replay import Record

FOLDER = "rejected"


class Aside:
    """The folder `rejected` of a spool: `<id>.json` for a record, `<folder>-<segment>.damaged` for a segment.

    Args:
        root: The spool, which holds the folders of all gateway processes.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER

    def path(self, record: Record) -> Path:
        """Where a record is kept, if it is."""
        return self.folder / f"{UUID(bytes=record.id)}.json"

    def put(self, record: Record, reason: str) -> None:
        """Keeps a record with every text exact, safe from a loss of power.

        Raises:
            OSError: It cannot be written now.
        """
        document = {
            "reason": reason,
            "opening": _text(record.opening),
            "texts": {str(index): _text(text) for index, text in record.texts.items()},
            "closing": None if record.closing is None else _text(record.closing),
        }
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.path(record)
        unfinished = path.with_suffix(".tmp")
        with unfinished.open("wb") as file:
            file.write(dumps(document)[0])
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)

    def keep(self, segment: Path) -> Path:
        """Keeps a segment beyond its removal from the spool; needs no room on the disk.

        Raises:
            OSError: It cannot be kept now.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        kept = self.folder / f"{segment.parent.name}-{segment.stem}.damaged"
        with suppress(FileExistsError, FileNotFoundError):
            os.link(segment, kept)
        return kept


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "surrogatepass")
