"""Templates of the pages, and what they need to say figures in words."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

FOLDER = Path(__file__).parent


class Templates:
    """Renders templates."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=PackageLoader("gateway.dashboard"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(percent=percent, figure=figure, moment=moment)

    def __call__(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A template as an answer."""
        values.setdefault("operator", None)
        values.setdefault("form_token", "")
        return HTMLResponse(self._templates.get_template(template).render(values), status)


def percent(value: float | None, sign: bool = True) -> str:
    """A share in words."""
    if value is None:
        return "–"
    return f"{value:+.1%}" if sign else f"{value:.3g}%" if value >= 100 else f"{100 * value:.3g}%"


def figure(value: float | None) -> str:
    """A figure with three digits."""
    return "–" if value is None else f"{value:.3g}"


def moment(value: datetime | None) -> str:
    """A time in UTC."""
    return "–" if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
