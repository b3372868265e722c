"""What a round wrote into its folder, read while it writes.

The file is the durable half of the story: whoever reads it from its beginning knows all of it, whatever
became of the process that read it before.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.logs import get_logger
from trainer.sink import EVENTS, CheckpointRecord, DataUse, Summary

_BEGINNING = b'{"event": '

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """One line: its name, and its values in JSON types."""

    name: str
    values: dict[str, Any]


class EventReader:
    """Reads the events of a round's folder in order, each once, and whole lines only."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS
        self._position = 0

    def read(self) -> list[Event]:
        """What was written since the last call; nothing while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        return [event for line in whole.splitlines() if (event := parse(line)) is not None]


def parse(line: bytes) -> Event | None:
    """One line as an event.

    A process that is killed while it writes leaves half a line, and the next start writes behind it: then
    the last event on the line is the one that is whole. A line without any is nothing.
    """
    for beginning in (0, line.rfind(_BEGINNING)):
        try:
            values = json.loads(line[beginning:] if beginning >= 0 else b"")
        except ValueError:
            continue
        if isinstance(values, dict) and isinstance(name := values.pop("event", None), str):
            return Event(name, values)
    log.warning("half a line among a round's events", line=line[:200].decode("utf-8", "replace"))
    return None


def checkpoint_of(values: dict[str, Any]) -> CheckpointRecord:
    """A checkpoint's record from its event."""
    return CheckpointRecord(**{**values, "path": Path(values["path"])})


def data_of(values: dict[str, Any]) -> DataUse:
    """What became of the rows, from its event."""
    return DataUse(**values)


def summary_of(values: dict[str, Any]) -> Summary:
    """The summary from its event."""
    checkpoints = tuple(checkpoint_of(each) for each in values["checkpoints"])
    return Summary(**{**values, "data": data_of(values["data"]), "checkpoints": checkpoints})
