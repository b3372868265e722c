"""What `ratchet up` says while it works: a line for each thing that happened."""

import contextlib
import time

from rich.console import Console
from rich.text import Text

from ratchet.logs import redact_text

_STAGE_WIDTH = 16
_STYLES = {"done": "green", "wait": "cyan", "trouble": "yellow", "end": "dim"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Goes on: rich would end the process."""


class Show:
    """Prints lines with the seconds since the start; a terminal that is gone is no reason to end.

    Args:
        to_stderr: Whether stdout is kept for one JSON document.
    """

    def __init__(self, *, to_stderr: bool) -> None:
        self._console = _Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self._began = time.monotonic()

    def done(self, stage: str, text: str) -> None:
        """Something was reached."""
        self._line("done", stage, text)

    def wait(self, stage: str, text: str) -> None:
        """Something was begun that takes a while."""
        self._line("wait", stage, text)

    def trouble(self, stage: str, text: str) -> None:
        """Something went wrong, and is being mended."""
        self._line("trouble", stage, text)

    def end(self, stage: str, text: str) -> None:
        """Something was stopped."""
        self._line("end", stage, text)

    def plain(self, text: str) -> None:
        """A line as it is."""
        self._print(Text(text))

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def _line(self, kind: str, stage: str, text: str) -> None:
        self._print(
            Text(f"{self.seconds():7.1f} s  ", style="dim"),
            Text(stage.ljust(_STAGE_WIDTH), style=_STYLES[kind]),
            Text(redact_text(text)),
        )

    def _print(self, *parts: Text) -> None:
        with contextlib.suppress(OSError):
            self._console.print(*parts, sep="")
