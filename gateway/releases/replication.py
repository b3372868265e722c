"""Did the gain that selection predicted show in traffic? Kept with a release when it is closed or aborted.

Effects are worsenings, as everywhere in releases: below 0 is a gain. A selection's task metrics stand beside
the task metrics of traffic of the same name. Its win rate, or other primary figure, stands beside users'
thumbs; the two have scales of their own, so of those only the direction is compared.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.releases.plan import TASK_PREFIX, Source
from ratchet.db.models.evaluation import SelectionRow
from ratchet.db.models.releases import AnalysisRow, Look, Release
from ratchet.errors import ConfigError

Interval = dict[str, Any]
DIRECTION_ONLY = "direction_only"
"""Key of an effect whose size cannot be compared with what traffic measures."""


class Effect(BaseModel):
    """An effect that somebody predicts, as a worsening: below 0 is a gain."""

    model_config = ConfigDict(extra="forbid")

    estimate: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat


def observed_of(session: Session, release: Release) -> dict[str, Any]:
    """The effect that traffic showed beside the predicted one, for each metric.

    The last look at a metric before the release was promoted counts: afterwards nobody is left to compare
    with, but for a holdback.
    """
    rows = session.execute(
        select(AnalysisRow)
        .join(Look, Look.id == AnalysisRow.look_id)
        .where(Look.release_id == release.id, AnalysisRow.estimate.is_not(None))
        .order_by(Look.id)
    ).scalars()
    seen = {row.metric: {"estimate": row.estimate, "low": row.low, "high": row.high} for row in rows}
    predicted: dict[str, Interval] = release.predicted or {}
    return {
        "effects": seen,
        "gaps": [words for name, effect in predicted.items() if (words := gap(name, effect, seen.get(name)))],
    }


def selection_of(session: Session, policy: str) -> SelectionRow | None:
    """The newest selection record that chose a policy; None where none did."""
    return session.scalars(
        select(SelectionRow).where(SelectionRow.chosen == policy).order_by(SelectionRow.id.desc()).limit(1)
    ).first()


def predicted_by(selection: SelectionRow) -> dict[str, Interval] | None:
    """The effects that a selection record predicts of the policy it chose."""
    shown: list[dict[str, Any]] = selection.record["candidates"]
    source = f"selection {selection.id}"
    return next((effects_of(one, source) for one in shown if one["policy"] == selection.chosen), None)


def effects_of(candidate: dict[str, Any], source: str) -> dict[str, Interval]:
    """The effects that a selection record shows of one candidate.

    Args:
        candidate: Its entry in the record.
        source: Kept with each effect.
    """
    found = {f"{TASK_PREFIX}{change['name']}": _worsening(change["gain"]) for change in candidate["changes"]}
    primary = candidate["primary"]
    if primary is not None:
        effect = _worsening(primary, primary["nothing_gained"])
        found[Source.THUMBS] = {**effect, DIRECTION_ONLY: True} if effect else {}
    return {metric: {**effect, "source": source} for metric, effect in found.items() if effect}


def _worsening(gain: dict[str, Any], nothing_gained: float = 0.0) -> Interval:
    """The same effect as a worsening; empty where it is undefined."""
    if None in (gain["estimate"], gain["low"], gain["high"]):
        return {}
    return {
        "estimate": nothing_gained - gain["estimate"],
        "low": nothing_gained - gain["high"],
        "high": nothing_gained - gain["low"],
    }


def gap(metric: str, predicted: Interval, observed: Interval | None) -> str | None:
    """Names a gap beyond both intervals; None where they agree as far as can be told.

    Args:
        metric: Its name.
        predicted: `estimate`, `low` and `high` of selection, as worsening (below 0 is a gain).
        observed: The same of traffic; None where traffic never measured it.
    """
    if observed is None:
        return f"{metric}: predicted {predicted['estimate']:+.1%}, and traffic never measured it"
    if observed["low"] is None or observed["high"] is None:
        return None
    if predicted.get(DIRECTION_ONLY):
        agrees = predicted["high"] >= 0 or observed["low"] < 0
    else:
        agrees = observed["low"] <= predicted["high"] and predicted["low"] <= observed["high"]
    if agrees:
        return None
    gained = predicted["estimate"] < 0 <= observed["estimate"]
    words = "the offline gain did not replicate" if gained else "traffic and selection disagree"
    return (
        f"{metric}: {words}: predicted {predicted['estimate']:+.1%} [{predicted['low']:+.1%},"
        f" {predicted['high']:+.1%}], observed {observed['estimate']:+.1%} [{observed['low']:+.1%},"
        f" {observed['high']:+.1%}]"
    )


def read_predicted(path: Path) -> dict[str, Any]:
    """The effects that selection predicted, from a JSON file.

    Raises:
        ConfigError: It cannot be read, or an effect lacks a number or has more.
    """
    wanted = f"{path}: not a JSON object of metric to estimate, low and high"
    try:
        effects = _EFFECTS.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{wanted}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{wanted}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return {metric: effect.model_dump() for metric, effect in effects.items()}


_EFFECTS = TypeAdapter(dict[str, Effect])
