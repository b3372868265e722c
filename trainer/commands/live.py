"""A round shown on stderr while it runs: a bar with the time left, the newest figures, candidates."""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from trainer.rounds.events import Event

FIRST = ("loss", "accuracy", "reward", "kl_k3", "validation_accuracy", "gradient_norm")
_SHOWN = 4
_LINES = 10
"""Lines that a round of any length writes where there is no terminal."""


class Live:
    """A `trainer.rounds.conduct.Show`: on a terminal one line moves, elsewhere each tenth is a line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._total = 0
        self._told = -1

    def stage(self, text: str) -> None:
        """See `Show.stage`."""
        self._print(text)

    def event(self, event: Event) -> None:
        """See `Show.event`."""
        match event.name:
            case "started":
                self._started(event.values)
            case "metrics":
                self._metrics(event.values)
            case "checkpoint":
                self._print(f"checkpoint at step {event.values['step']}: {_checkpoint(event.values)}")
            case "alarm":
                self._print(f"alarm {event.values['kind']}: {event.values['detail']}")
            case _:
                return

    def candidate(self, step: int, ref: str) -> None:
        """See `Show.candidate`."""
        self._print(f"candidate {ref} (step {step})")

    def _started(self, values: Mapping[str, Any]) -> None:
        data = values["data"]
        dropped = sum(data["dropped"].values())
        self._total = values["total_steps"]
        self._print(
            f"{self._total} steps over {data['used']} examples ({dropped} rows dropped), "
            f"{data['validation_used']} to validate on"
        )
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(
            "training", total=self._total, completed=values["first_step"], figures=""
        )

    def _metrics(self, values: Mapping[str, Any]) -> None:
        step = int(values["step"])
        text = figures(values)
        if self._task is not None:
            self._progress.update(self._task, completed=step, figures=text)
        tenth = step * _LINES // max(1, self._total)
        if not self._progress.console.is_terminal and tenth != self._told:
            self._told = tenth
            self._print(f"step {step} of {self._total}: {text}")

    def _print(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)


def figures(values: Mapping[str, Any]) -> str:
    """The figures of a step that matter most."""
    named = [name for name in FIRST if name in values]
    named += [name for name in values if name not in FIRST and name != "step"]
    return "  ".join(f"{name} {values[name]:.4g}" for name in named[:_SHOWN])


@contextmanager
def live() -> Generator[Live]:
    """Shows a round for as long as the block runs."""
    console = Console(file=sys.stderr, soft_wrap=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Live(progress)


def _checkpoint(values: Mapping[str, Any]) -> str:
    parts: list[str] = []
    if values["kl_k3"] is not None:
        error = "" if values["kl_k3_se"] is None else f" ± {values['kl_k3_se']:.3f}"
        parts.append(f"KL {values['kl_k3']:.3f}{error}")
    if values["accuracy"] is not None:
        parts.append(f"accuracy {values['accuracy']:.3f}")
    if values["reward"] is not None:
        parts.append(f"reward {values['reward']:+.3f}")
    return ", ".join(parts) or "nothing measured"
