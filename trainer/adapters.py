"""Low-rank adapters: `W x + (alpha / rank) B A x`, W frozen, B zero at first.

Hu et al. 2021, "LoRA: low-rank adaptation of large language models", section 4.1.

Made here rather than by peft because a round needs three things of them in every ZeRO stage: one switch that
turns them all off, weights that are merged one tensor at a time, and names that are those of the plain model.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import LoraConfig
from trainer.errors import ModelUnsupported

BASE = "base"


class AdaptedLinear(nn.Module):
    """A frozen linear layer with its adapter.

    Attributes:
        on: Whether the adapter speaks.
        scale: alpha / rank.
    """

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base
        self.scale = scale
        self.on = True
        like = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.a = nn.Parameter(torch.empty(rank, base.in_features, **like))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        plain = self.base(x)
        return plain + self.scale * F.linear(F.linear(x, self.a), self.b) if self.on else plain


def adapt(model: nn.Module, config: LoraConfig, seed: int, whole: Sequence[str] = ()) -> None:
    """Freezes a model and gives its linear layers adapters, in place.

    Args:
        model: Whole, not yet divided over processes.
        config: Rank, scale, and the last names of the layers.
        seed: Decides the adapters' first weights.
        whole: Modules that are trained as they are, such as a new head.

    Raises:
        ModelUnsupported: The model has no linear layer of one of the names.
    """
    model.requires_grad_(False)
    for name in whole:
        model.get_submodule(name).requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found: set[str] = set()
        for parent in list(model.modules()):
            for name, layer in list(parent.named_children()):
                if name in config.targets and isinstance(layer, nn.Linear):
                    setattr(parent, name, AdaptedLinear(layer, config.rank, config.alpha / config.rank))
                    found.add(name)
    if missing := sorted(set(config.targets) - found):
        raise ModelUnsupported(
            f"{type(model).__name__} has no linear layer named {', '.join(missing)}: choose others as "
            "lora.targets"
        )


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Inside, the model is the one that was adapted."""
    adapted = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
    for module in adapted:
        module.on = False
    try:
        yield
    finally:
        for module in adapted:
            module.on = True


def merged(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """`W + scale B A`, computed in float32, in W's type."""
    return (weight.float() + scale * (b.float() @ a.float())).to(weight.dtype)
