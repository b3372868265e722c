"""A round's figures for other programs: CSV, TensorBoard, and a picture."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import EnvironmentFault, UsageError
from trainer.rounds.reading import Series

PICTURES = (".png", ".svg", ".pdf")
_COLUMNS = 3


def write_csv(path: Path, series: Series) -> int:
    """Writes one line a step, one column a metric; a figure that a step lacks is empty.

    Returns:
        Lines, without the heading.

    Raises:
        EnvironmentFault: The file cannot be written.
    """
    values = {name: dict(points) for name, points in series.items()}
    steps = sorted({step for points in values.values() for step in points})
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(["step", *values])
            for step in steps:
                lines.writerow([step, *(values[name].get(step, "") for name in values)])
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be written: {error.strerror}") from error
    return len(steps)


def write_tensorboard(folder: Path, series: Series, checkpoints: Sequence[Mapping[str, Any]]) -> int:
    """Writes an event file that TensorBoard reads: metrics by step, and what was measured of checkpoints.

    Returns:
        Values written.

    Raises:
        EnvironmentFault: The folder cannot be written.
    """
    from tensorboardX import SummaryWriter

    points = {f"round/{name}": found for name, found in series.items()}
    for name in ("kl_k1", "kl_k3", "reward", "accuracy"):
        points[f"checkpoint/{name}"] = [
            (each["step"], each[name]) for each in checkpoints if each[name] is not None
        ]
    written = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with SummaryWriter(str(folder)) as writer:
            for name, found in points.items():
                for step, value in found:
                    writer.add_scalar(name, value, step)
                    written += 1
    except OSError as error:
        raise EnvironmentFault(f"{folder} cannot be written: {error.strerror}") from error
    return written


def write_picture(path: Path, series: Series, checkpoints: Sequence[Mapping[str, Any]], title: str) -> None:
    """Draws every metric over the steps, and reward and accuracy over KL.

    Raises:
        UsageError: The ending is of no picture.
        EnvironmentFault: The file cannot be written.
    """
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"{path}: a picture ends in {', '.join(PICTURES)}")
    from matplotlib.figure import Figure

    measured = [each for each in checkpoints if each["kl_k3"] is not None]
    beside = [name for name in ("reward", "accuracy") if any(each[name] is not None for each in measured)]
    count = len(series) + len(beside)
    rows = -(-count // _COLUMNS) or 1
    figure = Figure(figsize=(4.5 * _COLUMNS, 2.8 * rows), layout="constrained")
    figure.suptitle(title)
    places = iter(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    for name, points in series.items():
        axes = next(places)
        axes.plot([step for step, _ in points], [value for _, value in points], linewidth=1)
        axes.set(title=name, xlabel="step")
    for name in beside:
        axes = next(places)
        known = [each for each in measured if each[name] is not None]
        axes.errorbar(
            [each["kl_k3"] for each in known],
            [each[name] for each in known],
            xerr=[each["kl_k3_se"] or 0.0 for each in known],
            marker="o",
            capsize=2,
        )
        axes.set(title=f"{name} of checkpoints", xlabel="KL from the reference, nats an answer")
    for axes in places:
        axes.set_visible(False)
    try:
        figure.savefig(path)
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be written: {error.strerror}") from error
