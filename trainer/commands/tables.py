"""Tables and small plots of rounds, for terminals."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.table import Column, Table

from trainer.rounds.reading import Series

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 28


def checkpoint_table(checkpoints: Sequence[Mapping[str, Any]]) -> Table:
    """Checkpoints on their KL axis."""
    table = Table("step", "KL k3", "KL k1", "reward", "accuracy", "tokens")
    table.add_column("candidate", no_wrap=True)
    for each in checkpoints:
        kl, error = each.get("kl", each.get("kl_k3")), each.get("kl_se", each.get("kl_k3_se"))
        lengths = each.get("length_quantiles") or {}
        named = each.get("policy") or each.get("refused") or ""
        table.add_row(
            str(each["step"]),
            _figure(kl) + ("" if error is None else f" ± {error:.3f}"),
            _figure(each.get("kl_k1")),
            _figure(each.get("reward")),
            _figure(each.get("accuracy")),
            _figure(lengths.get("0.5")),
            named,
        )
    return table


def round_table(rounds: Sequence[Mapping[str, Any]]) -> Table:
    """Rounds, the newest first; the end of an id is enough to name one."""
    named = ("round", "method", "state", "step", "policy", "asked", "by")
    table = Table(*(Column(name, no_wrap=True) for name in named), box=None, padding=(0, 2, 0, 0))
    for each in rounds:
        table.add_row(
            str(each["id"])[-12:],
            each["method"],
            each["state"],
            f"{each['step']}/{each['total_steps'] or '?'}",
            each["policy"],
            f"{each['created_at']:%m-%d %H:%M}",
            each["asked_by"],
        )
    return table


def spark_table(series: Series) -> Table:
    """Each metric as a line of bars, with its first and last value."""
    table = Table("metric", "first", "", "last")
    for name, points in series.items():
        values = [value for _, value in points]
        table.add_row(name, _figure(values[0]), sparkline(values), _figure(values[-1]))
    return table


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Values as bars, the lowest and the highest as they are; of many each bar is the mean of its share."""
    finite = [value for value in values if abs(value) < float("inf")]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [len(finite) * place // count for place in range(count + 1)]
    means = [sum(finite[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in means)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
