"""Shows long work on stderr: its stage, bytes where they count, and the time it takes."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


@dataclass(frozen=True)
class Shown:
    """Work that is shown.

    On a terminal one line moves; elsewhere each stage is a line.
    """

    _progress: Progress
    _task: TaskID

    def stage(self, text: str) -> None:
        """Names the stage that begins."""
        if self._progress.console.is_terminal:
            self._progress.reset(self._task, description=text)
        else:
            self._progress.console.print(text, markup=False, highlight=False)

    def advance(self, count: int) -> None:
        """Counts bytes of the present stage."""
        self._progress.advance(self._task, count)


@contextmanager
def shown(first: str) -> Generator[Shown]:
    """Shows work for as long as the block runs.

    Args:
        first: The first stage.
    """
    console = Console(file=sys.stderr, soft_wrap=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        work = Shown(progress, progress.add_task(first, total=None))
        work.stage(first)
        yield work
