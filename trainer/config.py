"""What a round is asked to do: a TOML file, its overrides, and every check that needs no model."""

import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ratchet.canonical import digest_of
from ratchet.errors import ConfigError
from trainer.losses.beta import check_beta

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Method(StrEnum):
    """What a round trains."""

    SFT = "sft"
    RM = "rm"
    DPO = "dpo"


class Packing(StrEnum):
    """How a step's examples are laid out for the model; what is learned is the same."""

    BRANCHES = "branches"
    """Rows of many examples, everything that sequences begin with in common computed once."""
    PACKED = "packed"
    """Rows of many examples side by side."""
    PADDED = "padded"
    """Batches of sequences of like length, padded to the longest."""


class ReferenceWay(StrEnum):
    """Where the reference's log-probabilities come from."""

    CACHE = "cache"
    """Computed once before the first step and kept by digest; loaded again only to measure KL."""
    ADAPTER = "adapter"
    """The policy with its LoRA adapter switched off."""
    MODEL = "model"
    """A second model, held beside the policy all the time."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class KnowledgeConfig(_Section):
    """Whether the untrained policy could have said what a demonstration says (sft).

    Demonstrations of what a model does not know teach it to make things up (Gekhman et al. 2024, "Does
    fine-tuning LLMs on new knowledge encourage hallucinations?").
    """

    samples: Annotated[int, Field(ge=1)] = 4
    """Answers drawn for each demonstration; one that agrees is enough."""
    tokens: Annotated[int, Field(ge=1)] = 128
    """Longest drawn answer."""
    agreement: Annotated[float, Field(gt=0, le=1)] = 0.6
    """An answer agrees when it holds at least this share of the demonstration's different words."""
    unknown: Literal["report", "drop", "abstain"] = "report"
    """What becomes of demonstrations that no answer agrees with; `abstain` replaces their text."""
    abstention: Annotated[str, Field(min_length=1)] = "I do not know."
    """What is said instead."""


class DataConfig(_Section):
    """How a snapshot becomes batches."""

    max_length: Annotated[int, Field(ge=2)] = 1024
    """Longest prompt and answer together, in tokens."""
    packing: Packing = Packing.BRANCHES
    """How examples lie in a micro-batch: `branches` computes what they begin with in common once, `packed`
    lays them side by side in one row, `padded` fills each up to the longest; what is learned is the same."""
    template_digest: str | None = None
    """Digest of the chat template that the snapshot's answers were served with; a model with another is
    refused."""
    knowledge: KnowledgeConfig | None = None
    """A section for sft: before the first step the policy answers each demonstration's prompt `samples`
    times, in up to `tokens` tokens; where no answer holds a share of `agreement` of its words, it is
    reported, dropped or replaced by `abstention`, as `unknown` says (report, drop, abstain)."""
    validation_rows: Annotated[int, Field(ge=0)] = 256
    """Validation rows that are measured at every checkpoint; 0 measures none."""


class OptimConfig(_Section):
    """AdamW (Loshchilov and Hutter 2019), in float32."""

    lr: Positive = 1e-6
    """Learning rate at the end of the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """What the learning rate does behind the warm-up; linear and cosine end at `final_lr_share`."""
    final_lr_share: Share = 0.0
    """Where linear and cosine schedules end, as a share of `lr`."""
    warmup: Share = 0.1
    """Share of all steps in which the learning rate rises from zero."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Of matrices; vectors (norms and biases) are never decayed."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay of AdamW's two moments."""
    eps: Positive = 1e-8
    """Added to the root of AdamW's second moment."""
    clip: Positive | None = 1.0
    """Largest global gradient norm; longer gradients are scaled down to it."""
    batch: Annotated[int, Field(ge=1)] = 32
    """Examples a step learns from, over all processes and micro-batches."""
    micro_tokens: Annotated[int, Field(ge=2)] = 4096
    """Most tokens one process computes at once; a step takes as many such micro-batches as it needs."""
    epochs: Positive | None = None
    """Times every example is seen; 1 where `steps` is not given either."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Optimiser steps, instead of `epochs`."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps are two ways to say the same: give one")
        return self


class LossConfig(_Section):
    """What is minimised; which keys mean something depends on the method."""

    kind: Literal["nll", "sigmoid", "cdpo", "robust", "ipo", "hinge", "simpo", "bradley_terry"] | None = None
    """sft: nll. rm: bradley_terry. dpo: sigmoid (default), cdpo, robust, ipo, hinge or simpo."""
    beta: Positive = 0.1
    """dpo: strength of the pull towards the reference; of simpo the scale of its reward, usually 2 to 10."""
    gamma: Annotated[float, Field(ge=0)] = 0.0
    """dpo with simpo: target margin, in units of the reward."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """dpo with cdpo or robust: probability that a label is flipped."""
    length_normalised: bool = False
    """dpo: log-ratios are means per answer token instead of sums."""
    margin: float = 0.0
    """rm: how far apart two scores must be."""
    centring: Annotated[float, Field(ge=0)] = 0.01
    """rm: weight of the squared sum of a pair's scores."""


class ReferenceConfig(_Section):
    """The policy that KL is measured from; it is never trained."""

    way: ReferenceWay = ReferenceWay.CACHE
    """`cache` computes log-probabilities once and keeps them, `adapter` switches the policy's adapter off,
    `model` holds a second model."""
    device: Literal["same", "cpu"] = "same"
    """Where a second model lives (`way` model): beside the policy, or in host memory."""


class EngineConfig(_Section):
    """How DeepSpeed spreads the work."""

    processes: Annotated[int, Field(ge=1)] = 1
    """Processes on this machine that share the work, one a device."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """0 keeps everything in every process; 1 divides optimiser states, 2 gradients too, 3 weights too."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What is kept in host memory: nothing, optimiser states (stage 1 and up), or weights too (stage 3)."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of weights and arithmetic; master weights, optimiser states and losses are float32 always."""
    gradient_checkpointing: bool = False
    """Activations are computed again in the backward pass: less memory, a third more work."""

    @model_validator(mode="after")
    def _parts_fit_the_stage(self) -> Self:
        if self.offload != "none" and self.zero_stage == 0:
            raise ValueError("offload needs zero_stage 1, 2 or 3: stage 0 keeps everything on the device")
        if self.offload == "all" and self.zero_stage != 3:
            raise ValueError("offload 'all' moves the weights too, which needs zero_stage 3")
        if self.precision == "bf16" and self.zero_stage == 0:
            raise ValueError(
                "bf16 needs zero_stage 1, 2 or 3, with one process too: stage 0 adds gradients up in bf16"
            )
        return self


class LoraConfig(_Section):
    """Low-rank adapters in place of full weights (Hu et al. 2021, "LoRA")."""

    rank: Annotated[int, Field(ge=1)] = 16
    """Rank of an adapter's matrices."""
    alpha: Positive = 32.0
    """The adapter's output is scaled by alpha / rank."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    """Last names of the linear layers that are adapted."""


class CheckpointConfig(_Section):
    """When candidates are kept, and what is measured of them."""

    kl_at: tuple[Positive, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    """Distances from the reference, in nats an answer, at which a candidate is kept; ascending."""
    kl_budget: Positive | None = None
    """The round stops when the policy is farther than this."""
    measure_every: Annotated[int, Field(ge=0)] = 10
    """Steps between measurements of KL; 0 measures at checkpoints only."""
    kl_prompts: Annotated[int, Field(ge=0)] = 16
    """Validation prompts the policy answers for a measurement; 0 measures no KL."""
    kl_samples: Annotated[int, Field(ge=1)] = 2
    """Answers to each of them."""
    kl_tokens: Annotated[int, Field(ge=1)] = 128
    """Longest sampled answer: KL is measured up to there."""
    every: Annotated[int, Field(ge=1)] | None = None
    """Steps between checkpoints beside those of `kl_at` and the last."""
    save_every: Annotated[int, Field(ge=1)] = 50
    """Steps between saves of everything that resuming needs; beside those at checkpoints."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.kl_at) != sorted(set(self.kl_at)):
            raise ValueError("kl_at must ascend")
        if self.kl_budget is not None and not self.kl_prompts:
            raise ValueError("kl_budget needs kl_prompts above 0: without them no KL is measured")
        return self


class AlarmConfig(_Section):
    """What is reported, and what stops a round."""

    gradient_floor: Annotated[float, Field(ge=0)] = 1e-6
    """A gradient norm below this teaches nothing."""
    gradient_floor_steps: Annotated[int, Field(ge=1)] = 5
    """So many steps in a row below it raise the alarm."""
    divergence_factor: Annotated[float, Field(gt=1)] = 5.0
    """A loss above this multiple of the first step's has diverged."""
    divergence_steps: Annotated[int, Field(ge=1)] = 3
    """So many diverged steps in a row stop the round."""


class RoundConfig(_Section):
    """One round, whole."""

    method: Method
    """`sft`, `rm` or `dpo`."""
    model: Path
    """Folder of the policy that is trained on."""
    reference: Path | None = None
    """Folder of the reference policy; the model itself where it is not given."""
    snapshot: Path
    """Folder of the snapshot."""
    cache: Path | None = None
    """Folder for log-probabilities of references, shared by rounds; the round's own where it is not given."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Decides the order of examples and every sampled answer."""
    data: DataConfig = DataConfig()
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = LossConfig()
    reference_policy: ReferenceConfig = ReferenceConfig()
    engine: EngineConfig = EngineConfig()
    lora: LoraConfig | None = None
    checkpoints: CheckpointConfig = CheckpointConfig()
    alarms: AlarmConfig = AlarmConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        allowed = _KINDS[self.method]
        if self.loss_kind not in allowed:
            raise ValueError(f"loss.kind {self.loss.kind} is not one of {self.method}: {', '.join(allowed)}")
        if self.loss.label_smoothing and self.loss_kind not in ("cdpo", "robust"):
            raise ValueError("loss.label_smoothing means something for cdpo and robust only")
        if self.reference_policy.way is ReferenceWay.ADAPTER:
            if self.lora is None:
                raise ValueError("reference_policy.way 'adapter' needs [lora]: there is no adapter")
            if self.reference is not None and self.reference != self.model:
                raise ValueError(
                    "reference_policy.way 'adapter' makes the model its own reference: leave `reference` out"
                )
        if self.data.knowledge is not None and self.method is not Method.SFT:
            raise ValueError("data.knowledge checks demonstrations, and only sft learns from those")
        if self.checkpoints.kl_budget is not None and self.method is Method.RM:
            raise ValueError("checkpoints.kl_budget bounds a policy, and rm trains none: leave it out")
        if self.data.max_length > self.optim.micro_tokens:
            raise ValueError(
                f"data.max_length {self.data.max_length} is more than optim.micro_tokens "
                f"{self.optim.micro_tokens} can hold"
            )
        if self.loss.gamma and self.loss_kind != "simpo":
            raise ValueError("loss.gamma means something for simpo only")
        if self.method is Method.DPO and self.loss_kind != "simpo":
            check_beta(self.loss.beta)
        return self

    @property
    def loss_kind(self) -> str:
        """The loss, named."""
        return self.loss.kind or _KINDS[self.method][0]

    @property
    def reference_folder(self) -> Path:
        """Folder of the reference policy."""
        return self.reference or self.model

    @property
    def epochs(self) -> float | None:
        """Times every example is seen; None where the number of steps is given."""
        return None if self.optim.steps is not None else self.optim.epochs or 1.0

    def content(self) -> dict[str, Any]:
        """Every value, defaults included, in JSON types."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the content."""
        return digest_of(self.content())


_KINDS: Mapping[Method, tuple[str, ...]] = {
    Method.SFT: ("nll",),
    Method.RM: ("bradley_terry",),
    Method.DPO: ("sigmoid", "cdpo", "robust", "ipo", "hinge", "simpo"),
}


def load(path: Path, overrides: Sequence[str] = (), **given: Any) -> RoundConfig:
    """Reads a round's configuration.

    Args:
        path: A TOML file. Relative paths in it start at its folder.
        overrides: `key=value` each, the key dotted (`optim.lr=1e-6`), the value TOML or else a plain text;
            relative paths in them start at the current folder.
        **given: Values for top-level keys that the caller knows better than the file.

    Raises:
        ConfigError: The file cannot be read, or a value is unknown or wrong; the message names the key.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read this round's configuration: {error}") from error
    _place(values, path.parent)
    for override in overrides:
        _override(values, override)
    _place(values, Path.cwd())
    return parse(values | given, source=str(path))


def parse(values: Mapping[str, Any], *, source: str) -> RoundConfig:
    """Checks values from a file or a row.

    Raises:
        ConfigError: A value is unknown or wrong; the message names the key.
    """
    try:
        return RoundConfig.model_validate(values)
    except ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'round'}: "
            f"{item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        )
        raise ConfigError(f"{source}: {reasons}") from error


def _place(values: dict[str, Any], folder: Path) -> None:
    for key in ("model", "reference", "snapshot", "cache"):
        if isinstance(values.get(key), str):
            values[key] = str(folder / values[key])


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: key=value is expected, such as optim.lr=1e-6")
    *sections, name = key.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {section} is a value, no section")
    values[name] = _value(text)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
