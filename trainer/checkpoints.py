"""What a round needs to go on after it was stopped or killed, saved whole or not at all.

    state/step-00000040/           progress.json, and in ranks/ DeepSpeed's files of every rank
    checkpoints/step-00000040/     candidates (`publish`)

A save is written beside, synced to the disk, and renamed; so the highest-numbered folder is always whole. The
one before it stays until then.
"""

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.durable import INCOMING, place, room, write_text
from trainer.engine import Engine
from trainer.errors import ResumeRefused
from trainer.sink import CheckpointRecord

STATE = "state"
CHECKPOINTS = "checkpoints"
PROGRESS = "progress.json"
RANKS = "ranks"
_STEP = re.compile(r"step-(\d{8})")


@dataclass
class Identity:
    """What must be the same for a round to go on.

    Attributes:
        config: Digest of the configuration.
        reference: Weights digest of the reference.
        examples: Digest of the training examples.
        processes: Number of ranks.
    """

    config: str
    reference: str
    examples: str
    processes: int


@dataclass
class Progress:
    """How far a round is.

    Attributes:
        step: Optimiser steps done.
        kl_reached: Distances of the KL schedule that lie behind.
        first_loss: Loss of the first step.
        flat_steps: Steps in a row whose gradient was near zero.
        diverged_steps: Steps in a row whose loss had diverged.
        examples: Examples learned.
        tokens: Tokens computed.
        seconds: Time spent learning, measurements and saves left out.
        records: Checkpoints so far.
    """

    step: int = 0
    kl_reached: int = 0
    first_loss: float | None = None
    flat_steps: int = 0
    diverged_steps: int = 0
    examples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    records: list[CheckpointRecord] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """In JSON types."""
        values = asdict(self)
        values["records"] = [record | {"path": str(record["path"])} for record in values["records"]]
        return values

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Progress":
        """From `content`."""
        records = [
            CheckpointRecord(**record | {"path": Path(record["path"])}) for record in values["records"]
        ]
        return cls(**values | {"records": records})


def step_name(step: int) -> str:
    """Name of a step's folder."""
    return f"step-{step:08d}"


def latest(folder: Path) -> Path | None:
    """The newest save of a round, or None."""
    root = folder / STATE
    found = [path for path in root.iterdir() if _STEP.fullmatch(path.name)] if root.is_dir() else []
    return max(found, default=None, key=lambda path: path.name)


def save(engine: Engine, folder: Path, identity: Identity, progress: Progress) -> None:
    """Saves a round; all ranks take part.

    Raises:
        DiskFull: There is no room; the save before stays.
    """
    root = folder / STATE
    name = step_name(progress.step)
    incoming = root / f"{INCOMING}{name}"
    world = engine.world
    if world.first:
        for abandoned in root.glob(f"{INCOMING}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        with room(folder):
            incoming.mkdir(parents=True)
    world.wait()
    try:
        with room(folder):
            engine.save(incoming, RANKS)
        world.wait()
        if world.first:
            with room(folder):
                write_text(
                    incoming / PROGRESS,
                    json.dumps({"identity": asdict(identity), "progress": progress.content()}),
                )
            place(incoming, root / name)
            for path in root.iterdir():
                if _STEP.fullmatch(path.name) and path.name < name:
                    shutil.rmtree(path)
    finally:
        if world.first:
            shutil.rmtree(incoming, ignore_errors=True)
    world.wait()


def resume(engine: Engine, folder: Path, identity: Identity) -> Progress:
    """Takes up a round where its newest save left it; at the start where there is none.

    Raises:
        ResumeRefused: The save is of another configuration, reference, data or number of processes, or is
            damaged.
    """
    saved = latest(folder)
    if saved is None:
        return Progress()
    try:
        document = json.loads((saved / PROGRESS).read_text("utf-8"))
        before, progress = Identity(**document["identity"]), Progress.of(document["progress"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResumeRefused(f"{saved / PROGRESS} is missing or damaged: {error}") from error
    for name, was in asdict(before).items():
        now = getattr(identity, name)
        if was != now:
            raise ResumeRefused(
                f"this round began with {name} {_short(was)} and would go on with {_short(now)}: put it back "
                "as it was, or start a new round"
            )
    engine.load(saved, RANKS)
    return progress


def _short(value: Any) -> str:
    return str(value)[:12]
