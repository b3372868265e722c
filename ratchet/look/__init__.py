"""The one look of every page: colours, light and dark, and what all pages are made of; scales of charts."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
"""Served below `/look` by each application that has pages."""


def css() -> str:
    """The style sheet, for a page that is one file."""
    return (FOLDER / "base.css").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value between `low` and `high` lies between `start` and `end`, in a drawing's own units."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) * (self.end - self.start) / ((self.high - self.low) or 1.0)
