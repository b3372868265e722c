"""Rounds as people and programs read them: a line of a list, the whole of one, what differs between two."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from ratchet.db.models.training import Checkpoint, RoundControl, RoundMetric, TrainingRound

_LINE = (
    "id", "method", "state", "policy", "reference", "snapshot", "sweep", "step", "total_steps", "asked_by",
    "reason", "created_at", "started_at", "ended_at", "attempts", "error",
)  # fmt: skip
_MORE = (
    "config", "config_digest", "reference_digest", "worker", "beat_at", "data", "summary", "code_version",
    "folder",
)  # fmt: skip
_CHECKPOINT = (
    "step", "policy", "kl_k1", "kl_k1_se", "kl_k3", "kl_k3_se", "reward", "accuracy", "length_quantiles",
    "digest", "path", "is_last", "created_at",
)  # fmt: skip
_CONTROL = ("word", "who", "why", "created_at")

Series = dict[str, list[tuple[int, float]]]
"""Name of a metric to its (step, value), by step."""


def line(row: TrainingRound) -> dict[str, Any]:
    """A round in a list."""
    return {name: getattr(row, name) for name in _LINE}


def document(session: Session, row: TrainingRound) -> dict[str, Any]:
    """A round, its checkpoints and what was said to it."""
    checkpoints = select(Checkpoint).where(Checkpoint.round_id == row.id).order_by(Checkpoint.step)
    words = select(RoundControl).where(RoundControl.round_id == row.id).order_by(RoundControl.created_at)
    return {
        **line(row),
        **{name: getattr(row, name) for name in _MORE},
        "checkpoints": [_fields(each, _CHECKPOINT) for each in session.scalars(checkpoints)],
        "control": [_fields(each, _CONTROL) for each in session.scalars(words)],
    }


def series(session: Session, identity: UUID) -> Series:
    """The metrics of a round."""
    found: Series = {}
    rows = select(RoundMetric.name, RoundMetric.step, RoundMetric.value)
    for name, step, value in session.execute(
        rows.where(RoundMetric.round_id == identity).order_by(RoundMetric.name, RoundMetric.step)
    ):
        found.setdefault(name, []).append((step, value))
    return found


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What differs between two rounds' documents.

    Returns:
        `what`: policy, reference, snapshot and code where they differ; `config`: dotted keys to both values;
        `outcome`: last checkpoints and data beside each other.
    """
    named = ("method", "policy", "reference", "snapshot", "code_version")
    left, right = flat(one["config"]), flat(other["config"])
    keys = sorted(left.keys() | right.keys())
    return {
        "rounds": [one["id"], other["id"]],
        "what": {name: [one[name], other[name]] for name in named if one[name] != other[name]},
        "config": {key: [left.get(key), right.get(key)] for key in keys if left.get(key) != right.get(key)},
        "outcome": {name: [_outcome(each).get(name) for each in (one, other)] for name in _OUTCOME},
    }


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[f"{before}{key}"] = value
    return found


_OUTCOME = ("state", "step", "used", "kl_k3", "kl_k3_se", "reward", "accuracy")


def _outcome(shown: Mapping[str, Any]) -> dict[str, Any]:
    last: dict[str, Any] = shown["checkpoints"][-1] if shown["checkpoints"] else {}
    used = (shown["data"] or {}).get("used")
    return {**last, "state": shown["state"], "step": shown["step"], "used": used}


def _fields(row: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}
