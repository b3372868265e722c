"""Where a round tells what happens: rank 0 alone speaks, and a word comes back.

A sink must never be the reason that a round fails: one that cannot write for a while keeps what it was told
and tries again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from ratchet.errors import ConfigError
from trainer.durable import room

Word = Literal["ok", "stop"]
EVENTS = "events.jsonl"
CONTROL = "control"


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A candidate, or a reward model, on disk.

    Attributes:
        path: The exported folder: a Hugging Face model with its tokenizer.
        step: Optimiser steps behind it.
        kl_k1: KL(policy || reference) in nats an answer, by k1; None where none was measured.
        kl_k1_se: Its standard error.
        kl_k3: The same by k3.
        kl_k3_se: Its standard error.
        reward: Mean reward margin of validation pairs as a difference from the reference: dpo's implicit
            beta-scaled margin, rm's difference of scores; None for demonstrations.
        accuracy: Share of validation pairs ordered as the raters did; None for demonstrations.
        validation_loss: The loss on validation rows; of demonstrations in nats a token.
        length_quantiles: Tokens of answers sampled from the policy, by quantile ("0.1", "0.5", ...).
        digest: Weights digest of the folder (64 hex digits).
        is_last: Whether the round ends with it.
    """

    path: Path
    step: int
    kl_k1: float | None
    kl_k1_se: float | None
    kl_k3: float | None
    kl_k3_se: float | None
    reward: float | None
    accuracy: float | None
    validation_loss: float | None
    length_quantiles: dict[str, float]
    digest: str
    is_last: bool


@dataclass(frozen=True, slots=True)
class DataUse:
    """What became of a snapshot's rows.

    Attributes:
        used: Training examples.
        dropped: Training rows not used, by reason.
        validation_used: Validation examples.
        validation_dropped: Validation rows not used, by reason.
        tokens: Tokens of the training examples, prompts counted once.
        answer_tokens: Tokens of theirs that are learned.
        unknown: Demonstrations that say what the policy did not know; 0 where it was not asked.
    """

    used: int
    dropped: dict[str, int]
    validation_used: int
    validation_dropped: dict[str, int]
    tokens: int
    answer_tokens: int
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """How a round ended.

    Attributes:
        steps: Optimiser steps done, over all starts.
        reason: `complete`, or why it stopped early: `control`, `kl_budget`, `diverged`.
        data: What became of the rows.
        checkpoints: Every checkpoint of this start and of those it resumed.
        examples_per_second: Pairs or demonstrations learned a second, measurements and saves left out.
        tokens_per_second: Tokens computed a second, likewise.
        seconds: Time from start to end, of this start.
        peak_memory_bytes: Largest resident memory of any one process.
        peak_device_bytes: Largest memory allocated on any one accelerator; None on CPUs.
    """

    steps: int
    reason: str
    data: DataUse
    checkpoints: tuple[CheckpointRecord, ...]
    examples_per_second: float
    tokens_per_second: float
    seconds: float
    peak_memory_bytes: int
    peak_device_bytes: int | None = None


class Sink(Protocol):
    """Told of a round as it goes."""

    def started(self, first_step: int, total_steps: int, data: DataUse) -> None:
        """The loop begins: `first_step` is above 0 when it resumes."""
        ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of one step, numbered from 1."""
        ...

    def checkpoint(self, record: CheckpointRecord) -> None:
        """A checkpoint is on disk, whole. A round that resumes tells of the earlier ones again."""
        ...

    def alarm(self, kind: str, detail: str) -> None:
        """Something a person should look at; the round may go on."""
        ...

    def control(self) -> Word:
        """What the round shall do; asked at every step, so it must be quick."""
        ...

    def finished(self, summary: Summary) -> None:
        """The round ended as it should, or stopped early for a reason of its own."""
        ...


@dataclass
class FolderSink:
    """Writes one JSON object a line into the round's folder, and obeys a file there.

    Attributes:
        folder: The round's folder; `control` in it holds `ok` or `stop`.

    Raises:
        DiskFull: There is no room for a line, in any call but `control`.
    """

    folder: Path
    _events: Path = field(init=False)

    def __post_init__(self) -> None:
        self._events = self.folder / EVENTS

    def started(self, first_step: int, total_steps: int, data: DataUse) -> None:
        """See `Sink.started`."""
        self._write("started", {"first_step": first_step, "total_steps": total_steps, "data": asdict(data)})

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """See `Sink.metrics`."""
        self._write("metrics", {"step": step, **values})

    def checkpoint(self, record: CheckpointRecord) -> None:
        """See `Sink.checkpoint`."""
        self._write("checkpoint", asdict(record))

    def alarm(self, kind: str, detail: str) -> None:
        """See `Sink.alarm`."""
        self._write("alarm", {"kind": kind, "detail": detail})

    def control(self) -> Word:
        """See `Sink.control`."""
        return read_control(self.folder)

    def finished(self, summary: Summary) -> None:
        """See `Sink.finished`."""
        self._write("finished", asdict(summary))

    def _write(self, event: str, values: Mapping[str, Any]) -> None:
        line = json.dumps({"event": event, **values}, default=str, allow_nan=False) + "\n"
        with room(self.folder), self._events.open("a", encoding="utf-8") as file:
            file.write(line)


class SilentSink:
    """What the other ranks speak to: nothing is said, nothing is asked."""

    def started(self, first_step: int, total_steps: int, data: DataUse) -> None:
        """See `Sink.started`."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """See `Sink.metrics`."""

    def checkpoint(self, record: CheckpointRecord) -> None:
        """See `Sink.checkpoint`."""

    def alarm(self, kind: str, detail: str) -> None:
        """See `Sink.alarm`."""

    def control(self) -> Word:
        """See `Sink.control`."""
        return "ok"

    def finished(self, summary: Summary) -> None:
        """See `Sink.finished`."""


def read_control(folder: Path) -> Word:
    """The word in a round's folder; `ok` where none was ever written.

    Raises:
        ConfigError: The file holds another word.
    """
    try:
        word = (folder / CONTROL).read_text("utf-8").strip()
    except FileNotFoundError:
        return "ok"
    if word not in ("ok", "stop"):
        raise ConfigError(f"{folder / CONTROL} holds {word!r}; 'ok' or 'stop' is expected")
    return word  # type: ignore[return-value]


def write_control(folder: Path, word: Word) -> None:
    """Tells a round in a folder what to do; it obeys at its next step.

    Raises:
        DiskFull: There is no room for the word.
    """
    waiting = folder / f".{CONTROL}"
    with room(folder):
        waiting.write_text(word, "utf-8")
        waiting.replace(folder / CONTROL)
