"""What a round will hold in memory on each device, derived part by part.

All sizes are bytes. With P parameters, of which T are trained, N processes, w bytes a weight (2 in bf16, 4 in
fp32) and the stages of ZeRO (Rajbhandari et al. 2020, section 5):

- weights: `w P`, divided by N in stage 3.
- gradients: `w T`, divided by N from stage 2 on; bf16 adds them up in float32, which is another `4 T / N`.
- optimiser: AdamW's two moments in float32, `8 T`, and where weights are bf16 or ZeRO divides them a float32
  master copy, `4 T`; divided by N from stage 1 on.
- activations: what a block keeps of each token for the backward pass (`_kept_by_layer`), times blocks; with
  gradient checkpointing the blocks' inputs, `w h` each, and one block whole.
- logits: `w V` for each place that predicts an answer token, and nowhere else.
- key-value cache: `2 w layers kv_heads head_size` for each token of each answer that is sampled at once.

The peak is the larger of two moments: a backward pass that begins while gradients are there (`step`), and a
measurement of KL or a rollout, in which answers are sampled and nothing is kept for a backward pass
(`sample`).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from trainer.config import Packing, ReferenceWay
from trainer.plan.shape import Shape

MIB = 1 << 20
RUNTIME = {"cpu": 520 * MIB, "cuda": 600 * MIB}
"""A process before it holds a weight: interpreter and libraries on a CPU, context and kernels on a GPU."""


class Phase(StrEnum):
    """When something is in memory."""

    ALWAYS = "always"
    STEP = "step"
    SAMPLE = "sample"


@dataclass(frozen=True)
class Part:
    """One thing in memory.

    Attributes:
        name: What it is.
        bytes: How large, on one device.
        phase: When.
        why: The arithmetic, with its numbers.
    """

    name: str
    bytes: int
    phase: Phase
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
        """Bytes at each of the two moments, with what is always there."""
        always = self._sum(Phase.ALWAYS)
        return {phase: always + self._sum(phase) for phase in (Phase.STEP, Phase.SAMPLE)}

    @property
    def peak(self) -> int:
        """Bytes at the larger of the two moments."""
        return max(self.phases.values())

    def _sum(self, phase: Phase) -> int:
        return sum(part.bytes for part in self.parts if part.phase is phase)


def load_of(examples: Examples, layout: Layout, processes: int = 1) -> Load:
    """The largest micro-batch that a layout makes of examples as long as these.

    A prompt of p tokens with k answers of a tokens takes `p + k a` positions as branches, which is one prompt
    for all of its answers, and `k (p + a)` packed side by side or padded. Each branch copies the keys and
    values it sees, `p + a`, into one stretch.
    """
    prompt, answer, answers = examples.prompt, examples.answer, examples.answers
    branches = layout.packing is Packing.BRANCHES
    size = prompt + answers * answer if branches else answers * (prompt + answer)
    share = -(-layout.batch // processes)
    together = max(1, min(layout.capacity // size, share))
    return Load(
        tokens=together * size,
        joined=together * answers * (prompt + answer) if branches and answers > 1 else 0,
        scored=together * answers * answer,
        batches=-(-share // together),
    )


def memory_plan(setup: Setup, load: Load) -> MemoryPlan:
    """Predicts what one device holds.

    Args:
        setup: Model, engine and companions.
        load: The largest micro-batch (`load_of`).
    """
    shape, w = setup.shape, setup.weight_bytes
    head = -shape.vocabulary * shape.hidden * (not shape.tied) if setup.scores else 0
    total = shape.parameters + head
    trained = total if setup.adapter is None else shape.adapter(*setup.adapter)
    weights = total + (0 if setup.adapter is None else trained)
    parts = [
        Part("runtime", RUNTIME[setup.device], Phase.ALWAYS, f"measured once, on {setup.device}"),
        *_trained(setup, "policy", weights, trained),
    ]
    if setup.critic != "none":
        size = shape.hidden + 1 if setup.critic == "head" else shape.parameters
        parts += _trained(setup, "critic", size, size)
    if setup.reference is not None:
        parts += _reference(setup)
    if setup.reward_model is not None:
        size = setup.reward_model.parameters
        parts.append(
            Part("reward model", w * size // setup.frozen_shards, Phase.ALWAYS, f"{w} B x {size:,} frozen")
        )
    parts += _kept(setup, load)
    if setup.sampling is not None:
        parts += _sampled(setup, setup.sampling)
    merged = [part for part in parts if part.bytes]
    return MemoryPlan(tuple(merged), load)


def kv_cache_bytes(shape: Shape, tokens: int, weight_bytes: int) -> int:
    """Keys and values of so many tokens: `2 w layers kv_heads head_size` each."""
    return 2 * weight_bytes * shape.layers * shape.key_value * tokens


def _trained(setup: Setup, name: str, weights: int, trained: int) -> list[Part]:
    w, n, stage = setup.weight_bytes, setup.processes, setup.zero_stage
    on_host = setup.device == "cuda"
    divided = {False: 1, True: n}
    weight_shards = divided[stage == 3]
    gradient_shards = divided[stage >= 2]
    state_shards = divided[stage >= 1]
    half = setup.precision == "bf16"
    master = 4 * trained // state_shards if half or stage >= 1 else 0
    summed = 4 * trained // state_shards if half or stage >= 1 else 0
    parts = [
        Part(
            f"{name} weights",
            w * weights // weight_shards,
            Phase.ALWAYS,
            f"{w} B x {weights:,} / {weight_shards}",
        ),
        Part(f"{name} master weights", master, Phase.ALWAYS, f"4 B x {trained:,} / {state_shards}"),
        Part(
            f"{name} moments",
            8 * trained // state_shards,
            Phase.ALWAYS,
            f"8 B x {trained:,} / {state_shards}",
        ),
        Part(
            f"{name} gradients",
            w * trained // gradient_shards,
            Phase.STEP,
            f"{w} B x {trained:,} / {gradient_shards}",
        ),
        Part(f"{name} gradients, added up", summed, Phase.STEP, f"4 B x {trained:,} / {state_shards}"),
    ]
    if on_host and setup.offload in ("optimizer", "all"):
        moved = {f"{name} master weights", f"{name} moments", f"{name} gradients, added up"}
        parts = [part for part in parts if part.name not in moved]
    if on_host and setup.offload == "all":
        layer = w * max(setup.shape.layer, setup.shape.embedding)
        parts = [part for part in parts if part.name != f"{name} weights"]
        parts.append(
            Part(f"{name} weights at hand", layer, Phase.ALWAYS, "the largest layer, fetched from the host")
        )
    return parts


def _reference(setup: Setup) -> list[Part]:
    size = setup.weight_bytes * setup.shape.parameters // setup.frozen_shards
    why = f"{setup.weight_bytes} B x {setup.shape.parameters:,} / {setup.frozen_shards}"
    if setup.reference is ReferenceWay.ADAPTER:
        return []
    if setup.reference_on_host and setup.device == "cuda":
        return []
    if setup.reference is ReferenceWay.MODEL:
        return [Part("reference", size, Phase.ALWAYS, f"{why}, frozen")]
    if setup.sampling is None:
        return []
    return [Part("reference", size, Phase.SAMPLE, f"{why}, loaded to measure KL")]


def _kept(setup: Setup, load: Load) -> list[Part]:
    shape, w = setup.shape, setup.weight_bytes
    layer = _kept_by_layer(setup, load)
    if setup.checkpointing:
        kept = shape.layers * w * shape.hidden * load.tokens + layer
        why = f"{shape.layers} x {w} B x {shape.hidden} x {load.tokens:,} tokens, and one block whole"
    else:
        kept = shape.layers * layer
        why = f"{shape.layers} x {layer / max(1, load.tokens):,.0f} B x {load.tokens:,} tokens"
    last_norm = (4 + w) * shape.hidden * load.tokens
    largest = w * shape.embedding * (2 if shape.tied and not setup.scores else 1)
    flight = largest if setup.adapter is None else 0
    parts = [
        Part("activations", kept + last_norm, Phase.STEP, why),
        Part("gradient of the largest layer", flight, Phase.STEP, "on its way to the sum"),
    ]
    if not setup.scores:
        logits = w * shape.vocabulary * load.scored
        parts.append(
            Part("logits", logits, Phase.STEP, f"{w} B x {shape.vocabulary:,} words x {load.scored:,} places")
        )
    return parts


def _kept_by_layer(setup: Setup, load: Load) -> int:
    """Bytes that one block keeps of a micro-batch for its backward pass.

    A norm keeps its input in float32 (`4 h`), what it normalised (`w h`, for the gradient of its weight) and
    its result, which is the next layers' input (`w h`); there are two. The attention keeps queries and its
    result (`w q` each), keys and values (`w kv` each) and a float32 normaliser a head; the feed-forward keeps
    gate, its activation, up, and their product (`w i` each). Branches keep the copies of the keys and values
    they see, and the attention's result once more, put together.
    """
    shape, w = setup.shape, setup.weight_bytes
    weights_of_norms = 2 if setup.adapter is None else 0
    token = (8 + (2 + weights_of_norms) * w) * shape.hidden
    token += w * (2 * shape.query + 2 * shape.key_value + 4 * shape.intermediate)
    token += 4 * (2 + shape.heads)
    if setup.adapter is not None:
        rank, targets = setup.adapter
        token += w * rank * len(set(targets))
    branches = load.joined * 2 * shape.key_value * w + (load.tokens * shape.query * w if load.joined else 0)
    return token * load.tokens + branches


def _sampled(setup: Setup, sampling: Sampling) -> list[Part]:
    shape, w = setup.shape, setup.weight_bytes
    tokens = sampling.sequences * sampling.tokens
    cache = kv_cache_bytes(shape, tokens, w)
    words = 4 * shape.vocabulary * sampling.sequences * 3
    return [
        Part(
            "logits of sampled answers",
            w * shape.vocabulary * sampling.scored,
            Phase.SAMPLE,
            f"{w} B x {shape.vocabulary:,} words x {sampling.scored:,} places",
        ),
        Part(
            "key-value cache",
            cache,
            Phase.SAMPLE,
            f"2 x {w} B x {shape.layers} x {shape.key_value} x {tokens:,} tokens",
        ),
        Part(
            "words to choose from", words, Phase.SAMPLE, f"12 B x {shape.vocabulary:,} x {sampling.sequences}"
        ),
    ]
