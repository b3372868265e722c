"""Log-probabilities of answers under a model, computed only where answers are.

The model's head runs on the places that predict an answer token, nowhere else: with 49,152 words that is a
third of a small model's work, and most of its memory. Everything behind the logits is float32, whatever the
model is.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from trainer.attention import BranchAttention
from trainer.data.branches import BranchRow
from trainer.data.padding import PaddedBatch

_CHUNK_ELEMENTS = 1 << 19
"""Logits handled at once, so that passes over them stay in a core's cache: 2 MiB of float32."""


class CausalModel(Protocol):
    """What is called like a causal language model of transformers: one itself, or an engine around it."""

    def __call__(self, **inputs: Any) -> Any:
        """Returns an object with `logits`."""
        ...


def answer_logprobs(model: CausalModel, batch: BranchRow | PaddedBatch, attention: BranchAttention) -> Tensor:
    """Log-probability of every answer token given all before it.

    Args:
        model: Takes `logits_to_keep` as transformers' models do.
        batch: On the model's device.
        attention: Made for this model.

    Returns:
        [scored], float32, natural logarithm; `batch.owner` says which sequence each belongs to.
    """
    if isinstance(batch, BranchRow):
        outputs = model(**attention.inputs(batch), logits_to_keep=batch.read)
        return token_logprobs(outputs.logits.flatten(0, 1), batch.target)
    outputs = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
        logits_to_keep=batch.columns,
    )
    return token_logprobs(outputs.logits.flatten(0, 1)[batch.pick], batch.target)


def sequence_sums(values: Tensor, batch: BranchRow | PaddedBatch) -> Tensor:
    """[scored] to [sequences]: the sum over each sequence's answer tokens, in an order that never varies."""
    starts = batch.lengths.cumsum(0) - batch.lengths
    place = torch.arange(values.shape[0], device=values.device) - starts[batch.owner]
    table = values.new_zeros(batch.sequences, int(batch.lengths.max()))
    return table.index_put((batch.owner, place), values).sum(1)


def token_logprobs(logits: Tensor, target: Tensor) -> Tensor:
    """`log softmax(logits)` at the targets.

    The gradient is written over the logits, which must not be used elsewhere; a second backward pass
    through them is refused by autograd.

    Args:
        logits: [n, words], any floating type.
        target: [n], int64.

    Returns:
        [n], float32.
    """
    return _TokenLogprobs.apply(logits, target)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, target: Tensor) -> Tensor:
        normaliser = torch.cat([part.float().logsumexp(-1) for part in _chunks(logits)])
        ctx.save_for_backward(logits, target, normaliser)
        return logits.gather(1, target[:, None])[:, 0].float() - normaliser

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, target, normaliser = ctx.saved_tensors
        parts = zip(
            _chunks(logits), *(_like(logits, each) for each in (target, normaliser, gradient)), strict=True
        )
        for part, wanted, norm, grad in parts:
            probability = part.float().sub_(norm[:, None]).exp_()
            part.copy_(probability.mul_(-grad[:, None]).scatter_add_(1, wanted[:, None], grad[:, None]))
        return logits, None


def _rows(logits: Tensor) -> int:
    return max(1, _CHUNK_ELEMENTS // max(1, logits.shape[1]))


def _chunks(logits: Tensor) -> tuple[Tensor, ...]:
    return logits.split(_rows(logits))


def _like(logits: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    return values.split(_rows(logits))
