"""Shows long work on stderr: its stage, bytes where they count, and the time it takes."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Shown:
    """Work that is shown: on a terminal one line moves, elsewhere each stage is a line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def stage(self, text: str) -> None:
        """Names the stage that begins."""
        if not self._progress.console.is_terminal:
            self._progress.console.print(text, markup=False, highlight=False)
            return
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(text, total=None)

    def advance(self, count: int) -> None:
        """Counts bytes of the present stage."""
        if self._task is not None:
            self._progress.advance(self._task, count)


@contextmanager
def shown() -> Generator[Shown]:
    """Shows work for as long as the block runs."""
    console = Console(file=sys.stderr, soft_wrap=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Shown(progress)
