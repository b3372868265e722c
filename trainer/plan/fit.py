"""Whether a round fits: its memory plan now, and once answers have grown."""

from dataclasses import dataclass, replace
from typing import Literal

from ratchet.errors import UsageError
from trainer.config import Method, ReferenceWay, RoundConfig
from trainer.plan.memory import MIB, load_of, memory_plan
from trainer.plan.setup import Examples, Layout, MemoryPlan, Part, Sampling, Setup
from trainer.plan.shape import Shape

GROWTH = 1.5
"""Answers tend to grow while a policy learns: by half, where nothing else is stated."""


class DoesNotFit(UsageError):
    """A plan has no room on the device, now or once answers have grown."""


@dataclass(frozen=True)
class Fit:
    """A plan beside the memory there is.

    Attributes:
        now: With answers as long as the data's longest.
        grown: With answers longer by `growth`.
        growth: The factor.
        capacity: Bytes of one device that the round may use.
    """

    now: MemoryPlan
    grown: MemoryPlan
    growth: float
    capacity: int

    @property
    def fits(self) -> bool:
        """Whether there is room now, and for grown answers."""
        return self.headroom >= 0

    @property
    def headroom(self) -> int:
        """Bytes left at the fuller of both times; negative where they are missing.

        That may be now: longer answers leave fewer prompts, whose keys branches copy, in a micro-batch.
        """
        return self.capacity - max(self.now.peak, self.grown.peak)

    def require(self) -> None:
        """Refuses a plan without headroom.

        Raises:
            DoesNotFit: With the largest part, and what makes it smaller.
        """
        if self.fits:
            return
        full_now = self.now.peak > self.capacity
        plan = self.now if full_now else self.grown
        parts = [part for part in plan.parts if plan.fullest in part.phases]
        largest = max(parts, key=lambda part: part.bytes)
        when = "now" if full_now else f"once answers are {self.growth:g} times as long"
        raise DoesNotFit(
            f"no room {when}: {mib(plan.peak)} are needed and {mib(self.capacity)} are there; "
            f"the largest part is {largest.name} with {mib(largest.bytes)}: {_advice(largest)}"
        )


def setup_of(config: RoundConfig, shape: Shape, device: Literal["cpu", "cuda"]) -> Setup:
    """What decides the memory of a configured round."""
    engine = config.engine
    return Setup(
        shape=shape,
        processes=engine.processes,
        zero_stage=engine.zero_stage,
        offload=engine.offload,
        precision=engine.precision,
        checkpointing=engine.gradient_checkpointing,
        device=device,
        scores=config.method is Method.RM,
        adapter=None if config.lora is None else (config.lora.rank, config.lora.targets),
        reference=None if config.method is Method.RM else config.reference_policy.way,
        reference_on_host=config.reference_policy.device == "cpu",
        sampling=_sampling(config) if config.method is not Method.RM else None,
    )


def _sampling(config: RoundConfig) -> Sampling | None:
    """What a measurement of KL samples at once: what a micro-batch holds, at least one prompt's answers."""
    checkpoints, capacity = config.checkpoints, config.optim.micro_tokens
    prompts = -(-checkpoints.kl_prompts // config.engine.processes)
    if not prompts:
        return None
    tokens = config.data.max_length
    together = min(prompts, max(1, capacity // (tokens * checkpoints.kl_samples)))
    every = prompts * checkpoints.kl_samples * checkpoints.kl_tokens
    return Sampling(together * checkpoints.kl_samples, tokens, min(every, capacity))


def layout_of(config: RoundConfig) -> Layout:
    """How a configured round lays its examples out."""
    return Layout(config.data.packing, config.optim.micro_tokens, config.optim.batch)


def fit(setup: Setup, examples: Examples, layout: Layout, *, capacity: int, growth: float = GROWTH) -> Fit:
    """Plans a round twice: for the data as it is, and for answers that have grown.

    Args:
        setup: Model, engine and companions.
        examples: The longest examples.
        layout: How they become micro-batches.
        capacity: Bytes of one device that the round may use.
        growth: How much longer answers become.

    Raises:
        UsageError: The factor is below 1.
    """
    if growth < 1:
        raise UsageError(f"answers grow by a factor of 1 or more, not {growth:g}")
    now = memory_plan(setup, load_of(examples, layout, setup.processes))
    longer = examples.grown(growth)
    sampling = setup.sampling and replace(
        setup.sampling, tokens=setup.sampling.tokens + longer.answer - examples.answer
    )
    grown = memory_plan(replace(setup, sampling=sampling), load_of(longer, layout, setup.processes))
    return Fit(now, grown, growth, capacity)


def mib(number: int) -> str:
    """A number of bytes, for people."""
    return f"{number / MIB:,.0f} MiB"


def _advice(part: Part) -> str:
    for word, advice in _ADVICE.items():
        if word in part.name:
            return advice
    return "use a smaller model, or more devices"


_ADVICE = {
    "activations": "lower optim.micro_tokens or data.max_length, or set engine.gradient_checkpointing",
    "logits": "lower optim.micro_tokens: fewer answers are scored at once",
    "moments": "raise engine.zero_stage or engine.processes, set engine.offload, or train [lora]",
    "master": "raise engine.zero_stage or engine.processes, set engine.offload, or train [lora]",
    "gradient": "raise engine.zero_stage to 2, or train [lora]",
    "weights": "set engine.zero_stage 3 with more engine.processes, engine.precision 'bf16', or [lora]",
    "reference": f"set reference_policy.way '{ReferenceWay.CACHE}', or reference_policy.device 'cpu'",
    "key-value": "lower checkpoints.kl_prompts, kl_samples or kl_tokens",
    "words": "lower checkpoints.kl_prompts or kl_samples",
}
