"""DeepSpeed around one model: gradients that add up, one optimiser step, weights that can be read whole.

A step's loss is already divided by the step's whole weight (`losses.reduce`), so gradients are added over
micro-batches and ranks, never averaged: DeepSpeed counts no micro-batches here (its "unmanaged"
accumulation), and what it divides by the number of ranks is multiplied back. AdamW is torch's fused one in
every stage, which needs no compiler on the machine and is a single pass over the weights on CPUs too.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.adapters import BASE, AdaptedLinear, merged
from trainer.config import EngineConfig, OptimConfig
from trainer.errors import ResumeRefused
from trainer.world import World

_NO_CLIP = float("inf")


class Engine:
    """A model in training, called as the model itself is.

    Args:
        model: Whole, on the CPU, dropout off; frozen parameters stay as they are.
        optim: AdamW's settings.
        config: Stage, offload, precision.
        world: The processes that share the work.
    """

    def __init__(
        self, model: PreTrainedModel, optim: OptimConfig, config: EngineConfig, world: World
    ) -> None:
        deepspeed = _deepspeed()
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model = model
        self.world = world
        self._stage = config.zero_stage
        self._clip = optim.clip
        self._norm = 0.0
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        optimizer = torch.optim.AdamW(
            _groups(model, optim.weight_decay), lr=0.0, betas=optim.betas, eps=optim.eps, fused=True
        )
        if self._stage == 0:
            optimizer.register_step_pre_hook(self._clip_plain)
        self._engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=_deepspeed_config(optim, config)
        )
        if world.size == 1 and self._stage == 0:
            self._engine.enable_backward_allreduce = False
        self._engine.train(config.gradient_checkpointing)
        self._checkpointing = config.gradient_checkpointing

    def __call__(self, **inputs: Any) -> Any:
        """The model's forward call."""
        return self._engine(**inputs)

    def backward(self, loss: Tensor) -> None:
        """Adds a micro-batch's part of the step's loss to the gradients; all ranks take part."""
        self._engine.backward(loss * self.world.size)

    def step(self, learning_rate: float) -> float:
        """One optimiser step with the gradients added up since the last.

        Returns:
            The global gradient norm before it was clipped; NaN or infinite where a gradient is.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        if self._stage:
            self._norm = float(self._engine.get_global_grad_norm())
        return self._norm

    @property
    def sharded(self) -> bool:
        """Whether each process holds only a part of the weights between uses."""
        return self._stage == 3

    def evaluating(self) -> "_Evaluating":
        """Inside, nothing is recorded for a backward pass and activations are kept nowhere."""
        return _Evaluating(self._engine, self._checkpointing)

    def weights(self) -> Iterator[tuple[str, Tensor | None]]:
        """Every weight of the plain model, adapters merged, one after another; all ranks take part.

        Yields:
            Its name, a tied one's once, and on rank 0 its value on the CPU, good until the next step.
        """
        adapted = {
            name: module for name, module in self.model.named_modules() if isinstance(module, AdaptedLinear)
        }
        for name, parameter in self.model.named_parameters():
            owner, _, leaf = name.rpartition(".")
            if owner in adapted:
                continue
            layer, _, base = owner.rpartition(".")
            module = adapted.get(layer) if base == BASE else None
            parts = [parameter, module.a, module.b] if module and leaf == "weight" else [parameter]
            value = None
            with self._whole(parts):
                if self.world.first:
                    weight, *factors = (part.detach().cpu() for part in parts)
                    value = merged(weight, *factors, module.scale) if factors and module else weight
                    value = value.clone() if self._stage else value
            yield f"{layer}.{leaf}" if module else name, value
        yield from ((name, buffer.detach().cpu()) for name, buffer in self._kept_buffers())

    def save(self, folder: Path, tag: str) -> None:
        """Writes everything that `load` needs below `folder/tag`; all ranks take part."""
        self._engine.save_checkpoint(
            str(folder), tag=tag, save_latest=False, exclude_frozen_parameters=self._has_frozen
        )

    def load(self, folder: Path, tag: str) -> None:
        """Takes weights and optimiser states from what `save` wrote; all ranks take part.

        Raises:
            ResumeRefused: The files are damaged, or of another model or number of processes.
        """
        try:
            path, _ = self._engine.load_checkpoint(
                str(folder), tag=tag, load_module_strict=not self._has_frozen, load_lr_scheduler_states=False
            )
        except (OSError, RuntimeError, KeyError, ValueError, EOFError) as error:
            raise ResumeRefused(f"{folder / tag} cannot be loaded: {error}") from error
        if path is None:
            raise ResumeRefused(f"{folder / tag} holds no saved state")

    @property
    def _has_frozen(self) -> bool:
        return any(not parameter.requires_grad for parameter in self.model.parameters())

    def _kept_buffers(self) -> list[tuple[str, Tensor]]:
        kept = self.model.state_dict().keys()
        return [(name, buffer) for name, buffer in self.model.named_buffers() if name in kept]

    def _whole(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        if not self.sharded:
            return nullcontext()
        return _deepspeed().zero.GatheredParameters(parameters)

    def _clip_plain(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [value for group in optimizer.param_groups for value in group["params"]]
        self._norm = float(nn.utils.clip_grad_norm_(parameters, self._clip or _NO_CLIP))


class _Evaluating:
    def __init__(self, engine: Any, checkpointing: bool) -> None:
        self._engine = engine
        self._checkpointing = checkpointing
        self._no_grad = torch.no_grad()

    def __enter__(self) -> None:
        self._engine.eval()
        self._no_grad.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._no_grad.__exit__(*error)
        self._engine.train(self._checkpointing)


def _deepspeed() -> Any:
    """DeepSpeed, without the shared-memory kernel it would compile for CPUs on first use: gloo does that."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def without_dropout(model: nn.Module) -> None:
    """Switches dropout off for good, in training mode too, wherever a module keeps its probability."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _deepspeed_config(optim: OptimConfig, config: EngineConfig) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": config.zero_stage, "overlap_comm": False}
    if config.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if config.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    values: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "steps_per_print": None,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": (optim.clip or 0.0) if config.zero_stage else 0.0,
    }
    if config.precision == "bf16":
        values["bf16"] = {"enabled": True}
        values["data_types"] = {"grad_accum_dtype": "fp32"}
        values["communication_data_type"] = "fp32"
    return values
