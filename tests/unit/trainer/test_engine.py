"""Every stage of the engine learns as plain AdamW does, however its step is cut into micro-batches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from trainer.attention import BranchAttention
from trainer.batches import build
from trainer.config import EngineConfig, OptimConfig, Packing
from trainer.data.examples import Example
from trainer.engine import Engine, without_dropout
from trainer.logprobs import answer_logprobs, sequence_sums
from trainer.world import join

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

EXAMPLES = [
    Example((1, 5, 6, 7), ((8, 9, 2), (10, 2))),
    Example((1, 5, 16, 7, 4), ((8, 19, 2), (10, 3, 2))),
    Example((1, 5), ((40, 2), (41, 42, 43, 2))),
]
OPTIM = OptimConfig(weight_decay=0.1, clip=0.5, eps=1e-4)
"""A large eps, so that a gradient of nothing but rounding moves nothing."""
RATES = (1e-2, 5e-3, 2e-3)


def loss_of(model: Any, attention: BranchAttention, examples: list[Example]) -> torch.Tensor:
    batch = build(examples, Packing.BRANCHES, 0)
    return -sequence_sums(answer_logprobs(model, batch, attention), batch).sum() / 6


def plain(model: LlamaForCausalLM) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The oracle: torch's own AdamW and clipping, the whole step at once."""
    attention = BranchAttention(model)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=OPTIM.betas, eps=OPTIM.eps, foreach=False)
    norms: list[float] = []
    for rate in RATES:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss_of(model, attention, EXAMPLES).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    return norms, {name: value.detach() for name, value in model.named_parameters()}


def trained(engine: Engine, micro_batches: list[list[Example]]) -> list[float]:
    attention = BranchAttention(engine.model)
    norms: list[float] = []
    for rate in RATES:
        for examples in micro_batches:
            engine.backward(loss_of(engine, attention, examples))
        norms.append(engine.step(rate))
    return norms


@pytest.mark.parametrize(
    ("stage", "offload", "checkpointing", "micro_batches"),
    [
        (0, "none", False, [EXAMPLES[:1], EXAMPLES[1:]]),
        (0, "none", True, [EXAMPLES]),
        (1, "none", False, [[example] for example in EXAMPLES]),
        (2, "optimizer", False, [EXAMPLES[:2], EXAMPLES[2:]]),
        (3, "none", True, [[example] for example in EXAMPLES]),
        (3, "all", False, [EXAMPLES]),
    ],
)
def test_every_stage_is_plain_adamw(
    make_llama: Callable[..., LlamaForCausalLM],
    stage: Any,
    offload: Any,
    checkpointing: bool,
    micro_batches: list[list[Example]],
) -> None:
    norms, weights = plain(make_llama(tie_word_embeddings=True))
    config = EngineConfig(zero_stage=stage, offload=offload, gradient_checkpointing=checkpointing)
    engine = Engine(make_llama(tie_word_embeddings=True), OPTIM, config, join())
    assert trained(engine, micro_batches) == pytest.approx(norms, rel=1e-4)
    found = dict(engine.weights())
    assert found.keys() == weights.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("stage", [1, 3])
def test_bf16_keeps_masters_that_small_steps_reach(
    make_llama: Callable[..., LlamaForCausalLM], stage: Any
) -> None:
    """A weight near 0.2 has bf16 neighbours 1e-3 away: steps of 1e-4 are lost without float32 masters."""
    model = make_llama().to(torch.bfloat16)
    before = {name: value.detach().float().clone() for name, value in model.named_parameters()}
    engine = Engine(model, OptimConfig(), EngineConfig(zero_stage=stage, precision="bf16"), join())
    attention = BranchAttention(engine.model)
    for _ in range(16):
        engine.backward(loss_of(engine, attention, EXAMPLES))
        engine.step(1e-4)
    moved = torch.cat([(value.float() - before[name]).abs().flatten() for name, value in engine.weights()])
    large = torch.cat([before[name].abs().flatten() for name, _ in engine.weights()]) > 0.13
    assert (moved[large] > 0).float().mean() > 0.5


def test_dropout_is_off_in_training_mode_too(make_llama: Callable[..., LlamaForCausalLM]) -> None:
    model = make_llama(attention_dropout=0.9)
    model.model.embed_tokens = nn.Sequential(model.model.embed_tokens, nn.Dropout(0.5))
    without_dropout(model)
    ids = torch.tensor([[1, 5, 9, 4]])
    model.train()
    trained_mode = model(ids).logits
    torch.testing.assert_close(trained_mode, model.eval()(ids).logits, rtol=0, atol=0)
