"""Values of one key compared in short rounds, by accuracy on validation rows, before the whole round."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from ratchet.errors import UsageError
from ratchet.ids import new_id
from trainer.rounds.asking import Prepared
from trainer.rounds.conduct import Ended

SHORT = {"beta": "loss.beta", "lr": "optim.lr"}
"""Keys that may be said without their section."""

Prepare = Callable[[list[str]], Prepared]
Run = Callable[[Prepared, UUID], Ended]


def values_of(text: str) -> tuple[str, list[str]]:
    """Reads `KEY=A,B,...`.

    Returns:
        The dotted key and the values.

    Raises:
        UsageError: It is not of this form, or names fewer than two values.
    """
    key, equals, listed = text.partition("=")
    values = list(dict.fromkeys(value.strip() for value in listed.split(",") if value.strip()))
    if not equals or not key.strip() or len(values) < 2:
        raise UsageError(
            f"--sweep {text}: KEY=A,B,... with two values or more is expected, such as beta=0.05,0.1"
        )
    return SHORT.get(key.strip(), key.strip()), values


def _shortened(prepared: Prepared, steps: int) -> Prepared:
    config = prepared.config
    short = config.model_copy(
        update={
            "optim": config.optim.model_copy(update={"steps": steps, "epochs": None}),
            "checkpoints": config.checkpoints.model_copy(update={"kl_at": (), "every": None}),
        }
    )
    return replace(prepared, config=short)


def choose(text: str, steps: int, prepare: Prepare, run: Run) -> dict[str, Any]:
    """Runs a short round for each value and picks the one whose policy orders most validation pairs rightly.

    The accuracy of an implicit reward does not depend on how beta scales it, so values of beta are compared
    fairly. Of equal accuracies the one nearer to the reference wins, then the one named first. Short rounds
    register no candidates.

    Args:
        text: `KEY=A,B,...`.
        steps: Optimiser steps of each short round.
        prepare: Prepares a round with overrides.
        run: Carries a prepared round out.

    Returns:
        `key`, `rounds` with what each value came to, and `chosen`, an override.

    Raises:
        UsageError: The values cannot be read, or no short round measured an accuracy.
    """
    key, values = values_of(text)
    shared = new_id()
    prepared = {value: _shortened(prepare([f"{key}={value}"]), steps) for value in values}
    rounds: list[dict[str, Any]] = []
    for value in values:
        ended = run(prepared[value], shared)
        last = (ended.summary or {"checkpoints": []})["checkpoints"][-1:]
        measured = {name: last[0][name] if last else None for name in ("accuracy", "kl", "reward")}
        rounds.append(
            {"value": value, "round": str(ended.id), "state": ended.state, "error": ended.error, **measured}
        )
    known = [each for each in rounds if each["accuracy"] is not None]
    if not known:
        raise UsageError(
            f"no value of {key} was measured: give data.validation_rows above 0, and a snapshot with "
            "validation rows"
        )
    best = max(known, key=lambda each: (each["accuracy"], -(each["kl"] or 0.0)))
    return {"key": key, "sweep": str(shared), "rounds": rounds, "chosen": f"{key}={best['value']}"}
