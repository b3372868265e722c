"""Charts of the report as SVG text: no script and no library; colours come from the page's style sheet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from evaluator.overoptimisation import Fit
from ratchet.look import Scale

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 40
TICKS = 4
CURVE_POINTS = 60
ROW = 34


@dataclass(frozen=True, slots=True)
class Dot:
    """A point with its interval."""

    x: float
    value: Mapping[str, float | None]
    """`estimate`, `low`, `high`."""
    label: str
    kind: str
    """Class in the style sheet: `chosen`, `frontier` or `other`."""


def frontier(
    dots: Sequence[Dot],
    *,
    title: str,
    y_title: str,
    level: float | None = None,
    level_words: str = "",
    fit: Fit | None = None,
    percent: bool = True,
) -> str:
    """Candidates by their KL from the reference, with intervals.

    Args:
        dots: One for each candidate; those without estimate are left out.
        title: Read out by screen readers.
        y_title: What is measured.
        level: A line across: that of no gain.
        level_words: What the line says.
        fit: A curve R(sqrt(KL)) to draw, relative to the level.
        percent: Whether the values are shares.
    """
    known = [dot for dot in dots if dot.value["estimate"] is not None]
    if not known:
        return '<p class="empty">Nothing could be measured.</p>'
    most = max(dot.x for dot in known) or 1.0
    base = level or 0.0
    curve = [] if fit is None else [
        (most * step / CURVE_POINTS, base + fit.at((most * step / CURVE_POINTS) ** 0.5))
        for step in range(CURVE_POINTS + 1)
    ]  # fmt: skip
    ends = [end for dot in known for end in dot.value.values() if end is not None]
    low, high = _room([*ends, *(value for _, value in curve), *([level] if level is not None else [])])
    x = Scale(0.0, most * 1.08, LEFT, WIDTH - RIGHT)
    y = Scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = [_open(title, HEIGHT)]
    for step in range(TICKS + 1):
        value = low + (high - low) * step / TICKS
        shown = f"{value:.0%}" if percent else f"{value:.2g}"
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text class="tick" x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{shown}</text>'
        )
        place = most * step / TICKS
        parts.append(
            f'<text class="tick" x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{place:.2g}</text>"
        )
    parts.append(
        f'<text class="axis" x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
        "KL from the reference, nats an answer</text>"
        f'<text class="axis" x="{LEFT}" y="{TOP - 2}">{escape(y_title)}</text>'
    )
    if level is not None:
        parts.append(
            f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}"/>'
            f'<text class="tick" x="{WIDTH - RIGHT}" y="{y(level) - 5:.1f}" text-anchor="end">'
            f"{escape(level_words)}</text>"
        )
    if curve:
        drawn = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in curve)
        parts.append(f'<polyline class="fit" points="{drawn}"/>')
    parts += [_dot(dot, x, y) for dot in known]
    return "".join(parts) + "</svg>"


def bars(rows: Sequence[tuple[str, Mapping[str, float | None], str]], *, title: str, middle: float) -> str:
    """Shares with intervals, one below the other, from a middle line.

    Args:
        rows: Words, `estimate`/`low`/`high`, and a remark.
        title: Read out by screen readers.
        middle: Where the line stands, such as one half.
    """
    height = ROW * len(rows) + BOTTOM - 14
    x = Scale(0.0, 1.0, 190, WIDTH - 90)
    parts = [_open(title, height)]
    for step in range(5):
        parts.append(
            f'<text class="tick" x="{x(step / 4):.1f}" y="{height - 8}" text-anchor="middle">'
            f"{step / 4:.0%}</text>"
        )
    parts.append(f'<line class="level" x1="{x(middle):.1f}" x2="{x(middle):.1f}" y1="4" y2="{height - 22}"/>')
    for number, (words, value, remark) in enumerate(rows):
        at = ROW * number + ROW / 2
        parts.append(f'<text class="tick" x="4" y="{at + 4:.1f}">{escape(words)}</text>')
        parts.append(
            f'<text class="tick" x="{WIDTH - 4}" y="{at + 4:.1f}" text-anchor="end">{escape(remark)}</text>'
        )
        estimate, low, high = value["estimate"], value["low"], value["high"]
        if estimate is None:
            continue
        if low is not None and high is not None:
            parts.append(
                f'<line class="interval" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
            )
        parts.append(f'<circle class="other" r="4.5" cx="{x(estimate):.1f}" cy="{at:.1f}"/>')
    return "".join(parts) + "</svg>"


def spreads(rows: Sequence[tuple[str, Sequence[float], str]], *, title: str) -> str:
    """Distributions by their quantiles: 5 to 95 % as a line, 25 to 75 % as a box, the median across.

    Args:
        rows: Words, five quantiles, class in the style sheet.
        title: Read out by screen readers.
    """
    most = max((quantiles[-1] for _, quantiles, _ in rows), default=0.0) or 1.0
    height = ROW * len(rows) + BOTTOM - 14
    x = Scale(0.0, most * 1.05, 190, WIDTH - RIGHT)
    parts = [_open(title, height)]
    for step in range(TICKS + 1):
        value = most * step / TICKS
        parts.append(
            f'<text class="tick" x="{x(value):.1f}" y="{height - 8}" text-anchor="middle">{value:.0f}</text>'
        )
    for number, (words, (p5, p25, p50, p75, p95), kind) in enumerate(rows):
        at = ROW * number + ROW / 2
        parts.append(
            f'<g class="{kind}"><text class="tick" x="4" y="{at + 4:.1f}">{escape(words)}</text>'
            f'<line class="interval" x1="{x(p5):.1f}" x2="{x(p95):.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<rect x="{x(p25):.1f}" y="{at - 8:.1f}" width="{max(1.0, x(p75) - x(p25)):.1f}" height="16"/>'
            f'<line class="median" x1="{x(p50):.1f}" x2="{x(p50):.1f}" y1="{at - 10:.1f}"'
            f' y2="{at + 10:.1f}"/></g>'
        )
    return "".join(parts) + "</svg>"


def fit_of(values: Mapping[str, Any] | None) -> Fit | None:
    """A curve from its values in the record of a report."""
    return None if values is None else Fit(values["a"], values["b"], values["residual"])


def _dot(dot: Dot, x: "Scale", y: "Scale") -> str:
    estimate, low, high = dot.value["estimate"], dot.value["low"], dot.value["high"]
    assert estimate is not None  # noqa: S101
    whiskers = ""
    if low is not None and high is not None:
        whiskers = (
            f'<line class="interval" x1="{x(dot.x):.1f}" x2="{x(dot.x):.1f}"'
            f' y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
        )
    return (
        f'<g class="{dot.kind}"><title>{escape(dot.label)}</title>{whiskers}'
        f'<circle r="{6.5 if dot.kind == "chosen" else 4.5}" cx="{x(dot.x):.1f}" cy="{y(estimate):.1f}"/></g>'
    )


def _open(title: str, height: float) -> str:
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img"><title>{escape(title)}</title>'


def _room(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    spare = (high - low or 0.1) * 0.12
    return low - spare, high + spare
