"""What decides how much memory a round takes, and what is said of it."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from trainer.config import Packing, ReferenceWay
from trainer.plan.shape import Shape


class Phase(StrEnum):
    """A moment at which memory is fullest."""

    STEP = "step"
    UPDATE = "update"
    SAMPLE = "sample"


ALWAYS = tuple(Phase)
LEARNING = (Phase.STEP, Phase.UPDATE)


@dataclass(frozen=True)
class Part:
    """One thing in memory.

    Attributes:
        name: What it is.
        bytes: How large, on one device.
        phases: When it is there.
        why: The arithmetic, with its numbers.
    """

    name: str
    bytes: int
    phases: tuple[Phase, ...]
    why: str


@dataclass(frozen=True)
class Examples:
    """The longest examples of the data.

    Attributes:
        prompt: Tokens of a prompt.
        answer: Tokens of an answer, its end included.
        answers: Answers to a prompt: 2 of a pair, 1 of a demonstration.
    """

    prompt: int
    answer: int
    answers: int

    def grown(self, factor: float) -> "Examples":
        """The same with answers that are longer by a factor."""
        return replace(self, answer=round(self.answer * factor))


@dataclass(frozen=True)
class Layout:
    """How examples become micro-batches (`trainer.config.DataConfig`, `OptimConfig`).

    Attributes:
        packing: How a micro-batch is laid out.
        capacity: Tokens it holds at most; one example that is larger is one by itself.
        batch: Examples of an optimiser step, over all processes.
    """

    packing: Packing
    capacity: int
    batch: int


@dataclass(frozen=True)
class Load:
    """One micro-batch.

    Attributes:
        tokens: Positions computed.
        joined: Keys and values that are copied together for branches, in tokens.
        scored: Places where logits are computed.
        batches: Micro-batches of a step on one process.
    """

    tokens: int
    joined: int
    scored: int
    batches: int


@dataclass(frozen=True)
class Sampling:
    """Answers sampled at once.

    Attributes:
        sequences: How many.
        tokens: Tokens of each at most, its prompt included.
        scored: Tokens of sampled answers whose log-probabilities are taken together afterwards.
    """

    sequences: int
    tokens: int
    scored: int


@dataclass(frozen=True)
class Setup:
    """Everything that decides how much memory a round takes.

    Attributes:
        shape: The policy's size.
        processes: Devices that share the work.
        zero_stage: What ZeRO divides.
        offload: What is kept in host memory instead.
        precision: Of weights and arithmetic.
        checkpointing: Whether activations are computed again.
        device: `cuda`, or `cpu`, where host memory is the device's and offloading saves nothing.
        scores: Whether answers are scored by one number (a reward model) instead of word by word.
        adapter: Rank and target layers of LoRA; None trains every weight.
        reference: Where the reference's log-probabilities come from; None where there is no reference.
        reference_on_host: Whether a second model is kept in host memory.
        sampling: Answers sampled at once for KL or as rollouts; None samples none.
        reward_model: Size of a frozen reward model on the same device.
        critic: A value head on the policy's own trunk, or a second trained model.
    """

    shape: Shape
    processes: int = 1
    zero_stage: Literal[0, 1, 2, 3] = 0
    offload: Literal["none", "optimizer", "all"] = "none"
    precision: Literal["fp32", "bf16"] = "fp32"
    checkpointing: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    scores: bool = False
    adapter: tuple[int, Collection[str]] | None = None
    reference: ReferenceWay | None = ReferenceWay.CACHE
    reference_on_host: bool = False
    sampling: Sampling | None = None
    reward_model: Shape | None = None
    critic: Literal["none", "head", "model"] = "none"

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight."""
        return 2 if self.precision == "bf16" else 4

    @property
    def frozen_shards(self) -> int:
        """Into how many parts weights are divided."""
        return self.processes if self.zero_stage == 3 else 1


@dataclass(frozen=True)
class MemoryPlan:
    """What one device holds.

    Attributes:
        parts: Part by part.
        load: The micro-batch it was made for.
    """

    parts: tuple[Part, ...]
    load: Load

    @property
    def phases(self) -> dict[Phase, int]:
        """Bytes at each moment."""
        return {phase: sum(part.bytes for part in self.parts if phase in part.phases) for phase in Phase}

    @property
    def fullest(self) -> Phase:
        """The moment at which most is held."""
        return max(Phase, key=self.phases.__getitem__)

    @property
    def peak(self) -> int:
        """Bytes at the fullest moment."""
        return self.phases[self.fullest]
