"""Charts: well-formed SVG whose marks lie where the figures say, whatever the figures are."""

import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from gateway.dashboard.charts import BOTTOM, EMPTY, LEFT, RIGHT, TOP, Bound, distribution, sequence

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def point(minute: float, estimate: float | None, low: float | None, high: float | None) -> dict[str, Any]:
    return {
        "at": NOON + timedelta(minutes=minute),
        "stage": "a<b",
        "estimate": estimate,
        "low": low,
        "high": high,
    }


def points_of(chart: str, kind: str) -> list[tuple[float, float]]:
    for element in ElementTree.fromstring(chart).iter():  # noqa: S314
        if element.get("class") == kind and element.get("points"):
            return [tuple(map(float, pair.split(","))) for pair in element.attrib["points"].split()]  # type: ignore[misc]
    raise AssertionError(kind)


def test_a_band_surrounds_its_estimate_from_left_to_right() -> None:
    chart = sequence(
        [point(0, 0.1, -0.1, 0.3), point(10, 0.1, 0.0, 0.2)], [Bound("harm", 0.2)], "errors & more"
    )
    estimate, band = points_of(chart, "estimate"), points_of(chart, "band")
    assert [x for x, _ in estimate] == [LEFT, RIGHT]
    assert band[0][1] < band[1][1] < estimate[1][1] < band[2][1] < band[3][1]
    assert "errors &amp; more" in chart
    assert "a&lt;b" in chart
    drawn = ElementTree.fromstring(chart).iter()  # noqa: S314
    [line] = [mark for mark in drawn if mark.get("class") == "bound harm" and mark.get("x1")]
    assert abs(float(line.attrib["y1"]) - band[1][1]) < 0.11


def test_nothing_measured_is_said_in_words() -> None:
    assert sequence([point(0, None, None, None)], [], "x") == EMPTY
    assert distribution([], "tokens", "x") == EMPTY


figures = some.none() | some.floats(-1e6, 1e6)


@given(some.lists(some.tuples(figures, figures, figures), min_size=1, max_size=20))
def test_marks_stay_within_the_chart(looks: list[tuple[float | None, float | None, float | None]]) -> None:
    chart = sequence([point(n, *look) for n, look in enumerate(looks)], [Bound("margin", 0.1)], "x")
    if all(estimate is None for estimate, _, _ in looks):
        assert chart == EMPTY
        return
    for kind in ("band", "estimate"):
        for x, y in points_of(chart, kind):
            assert LEFT - 0.1 <= x <= RIGHT + 0.1
            assert TOP - 0.1 <= y <= BOTTOM + 0.1


def test_a_distribution_has_a_box_for_each_arm() -> None:
    chart = distribution([("baseline", [1, 2, 3, 4, 5]), ("candidate", [0, 0, 0, 0, 0])], "tokens", "lengths")
    boxes = [e for e in ElementTree.fromstring(chart).iter() if e.tag.endswith("rect")]  # noqa: S314
    assert [float(box.attrib["width"]) >= 1 for box in boxes] == [True, True]
