"""The memory plan of a configured round, as a document and as a table."""

from pathlib import Path
from typing import Any

from trainer.config import RoundConfig
from trainer.plan.device import Device, here
from trainer.plan.fit import GROWTH, Fit, fit, layout_of, mib, setup_of
from trainer.plan.reading import examples_of
from trainer.plan.setup import Examples
from trainer.plan.shape import Shape


def fit_of(
    config: RoundConfig, model: Path, examples: Examples, *, device: Device, growth: float = GROWTH
) -> Fit:
    """Plans a configured round.

    Args:
        config: The round.
        model: The folder whose size counts.
        examples: The longest examples.
        device: What it runs on.
        growth: How much longer answers become.

    Raises:
        UsageError: The model is of a kind that the plan does not know.
    """
    setup = setup_of(config, Shape.of_folder(model), device.kind)
    capacity = device.share(config.engine.processes)
    return fit(setup, examples, layout_of(config), capacity=capacity, growth=growth)


def memory_of(config: RoundConfig, model: Path, snapshot: Path, kind: str) -> dict[str, Any]:
    """The memory plan of a round on this machine, as a document.

    Raises:
        UsageError: The model is of a kind that the plan does not know, or the snapshot cannot be read.
    """
    device = here()
    examples = examples_of(snapshot, kind, model, config.data.max_length)
    return document(fit_of(config, model, examples, device=device), device, examples)


def document(found: Fit, device: Device, examples: Examples) -> dict[str, Any]:
    """A plan as JSON types; sizes are bytes on one device."""
    later = {part.name: part.bytes for part in found.grown.parts}
    return {
        "device": device.kind,
        "capacity": found.capacity,
        "growth": found.growth,
        "examples": {"prompt": examples.prompt, "answer": examples.answer, "answers": examples.answers},
        "micro_batch": {"tokens": found.now.load.tokens, "answer_tokens": found.now.load.scored},
        "parts": [
            {
                "name": part.name,
                "bytes": part.bytes,
                "grown": later.get(part.name, 0),
                "when": [phase.value for phase in part.phases],
                "why": part.why,
            }
            for part in found.now.parts
        ],
        "phases": {phase.value: size for phase, size in found.now.phases.items()},
        "peak": found.now.peak,
        "grown_peak": found.grown.peak,
        "headroom": found.headroom,
        "fits": found.fits,
    }


def print_memory(memory: dict[str, Any]) -> None:
    """Prints the document for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table("part", "now", "grown", "when", "arithmetic")
    for part in memory["parts"]:
        table.add_row(
            part["name"],
            mib(part["bytes"]),
            mib(part["grown"]),
            "always" if len(part["when"]) == len(memory["phases"]) else ", ".join(part["when"]),
            part["why"],
        )
    out = Console()
    out.print(table)
    verdict = "room is left" if memory["fits"] else "this does not fit"
    out.print(
        f"one {memory['device']} device holds {mib(memory['peak'])} at its peak, {mib(memory['grown_peak'])} "
        f"with answers {memory['growth']:g} times as long; {mib(memory['capacity'])} are there: {verdict}",
        markup=False,
    )
