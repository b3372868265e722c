"""Charts as SVG text, drawn here without script or library; colours by the style sheet, words escaped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from ratchet.look import Scale

WIDTH, HEIGHT = 560, 200
LEFT, RIGHT, TOP, BOTTOM = 58, 550, 12, 176
LABELS = 88
TICKS = 4
ROW = 34
EMPTY = '<p class="empty">No measurement yet.</p>'


@dataclass(frozen=True, slots=True)
class Bound:
    """A line that a metric is held against: its class in the style sheet, and its place."""

    kind: str
    value: float


def sequence(points: Sequence[Mapping[str, Any]], bounds: Sequence[Bound], title: str) -> str:
    """A confidence sequence over time: its band, the estimate, and the bounds it is held against.

    Args:
        points: One for each look, oldest first: `at`, `stage`, `estimate`, `low`, `high` (None: not known).
        bounds: Lines across.
        title: Read out by screen readers.
    """
    known = [point for point in points if point["estimate"] is not None]
    if not known:
        return EMPTY
    near = [bound.value for bound in bounds]
    low, high = _room([*_trimmed(known, near), *near, 0.0])
    times = [point["at"].timestamp() for point in known]
    x, y = Scale(min(times), max(times), LEFT, RIGHT), Scale(low, high, BOTTOM, TOP)

    def path(name: str, unknown: float) -> list[str]:
        values = [unknown if point[name] is None else point[name] for point in known]
        return [
            f"{x(time):.1f},{y(min(max(value, low), high)):.1f}"
            for time, value in zip(times, values, strict=True)
        ]

    band = " ".join([*path("high", high), *reversed(path("low", low))])
    drawn = [*_grid(low, high, y), *_stages(known, times, x), f'<polygon class="band" points="{band}"/>']
    for number, bound in enumerate(bounds):
        x_of_words, anchor = ((LEFT + RIGHT) / 2, "middle") if number % 2 else (RIGHT, "end")
        drawn += [
            _line(f"bound {bound.kind}", LEFT, y(bound.value), RIGHT, y(bound.value)),
            _words(f"bound {bound.kind}", x_of_words, y(bound.value) - 4, bound.kind, anchor),
        ]
    drawn.append(f'<polyline class="estimate" points="{" ".join(path("estimate", 0.0))}"/>')
    return _svg(title, HEIGHT, drawn)


def distribution(arms: Sequence[tuple[str, Sequence[float]]], unit: str, title: str) -> str:
    """A distribution of each arm: 5 to 95 % as a line, 25 to 75 % as a box, the median across.

    Args:
        arms: Its name, which is its class in the style sheet too, and its five quantiles in order.
        unit: Of the figures.
        title: Read out by screen readers.
    """
    if not arms:
        return EMPTY
    most = max(quantiles[-1] for _, quantiles in arms) or 1.0
    x = Scale(0.0, most * 1.05, LABELS, RIGHT)
    height = ROW * len(arms) + 24
    steps = [most * step / TICKS for step in range(TICKS + 1)]
    drawn = [_words("tick", x(value), height - 6, _short(value), "middle") for value in steps]
    drawn.append(_words("tick", 4, height - 6, unit, "start"))
    for number, (name, (p5, p25, p50, p75, p95)) in enumerate(arms):
        middle = ROW * number + ROW / 2 + 2
        width = max(1.0, x(p75) - x(p25))
        box = f'<rect x="{x(p25):.1f}" y="{middle - 9:.1f}" width="{width:.1f}" height="18"/>'
        drawn += [
            f'<g class="{name}">',
            _words("tick", 4, middle + 4, name, "start"),
            _line("range", x(p5), middle, x(p95), middle),
            box,
            _line("median", x(p50), middle - 11, x(p50), middle + 11),
            "</g>",
        ]
    return _svg(title, height, drawn)


def _svg(title: str, height: float, drawn: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img">'
    return f"{head}<title>{escape(title)}</title>{''.join(drawn)}</svg>"


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _words(kind: str, x: float, y: float, words: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _grid(low: float, high: float, y: Scale) -> list[str]:
    values = [low + (high - low) * step / TICKS for step in range(TICKS + 1)]
    lines = [_line("grid", LEFT, y(value), RIGHT, y(value)) for value in values]
    return lines + [_words("tick", LEFT - 6, y(value) + 4, f"{value:+.1%}", "end") for value in values]


def _stages(points: Sequence[Mapping[str, Any]], times: Sequence[float], x: Scale) -> list[str]:
    """Where each stage begins, and the time of the first and the last look."""
    drawn: list[str] = []
    before = None
    for time, point in zip(times, points, strict=True):
        if point["stage"] != before:
            before = point["stage"]
            drawn += [
                _line("stage", x(time), TOP, x(time), BOTTOM),
                _words("stage", x(time) + 3, TOP + 8, str(before), "start"),
            ]
    for point, place, anchor in ((points[0], LEFT, "start"), (points[-1], RIGHT, "end")):
        moment: datetime = point["at"]
        drawn.append(_words("tick", place, HEIGHT - 6, f"{moment:%m-%d %H:%M}", anchor))
    return drawn


def _room(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    spare = (high - low or 0.1) * 0.08
    return low - spare, high + spare


def _trimmed(points: Sequence[Mapping[str, Any]], near: Sequence[float]) -> list[float]:
    """The ends of the intervals as far as they matter: the first looks know nearly nothing."""
    reach = 4 * max([abs(value) for value in near] or [0.25])
    ends = [point[name] for point in points for name in ("low", "high", "estimate")]
    return [min(max(end, -reach), reach) for end in ends if end is not None]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
