"""Adapters: nothing at first, merged as they speak, silent when off."""

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaForCausalLM

from trainer.adapters import AdaptedLinear, adapt, adapters_off, merged
from trainer.config import LoraConfig
from trainer.errors import ModelUnsupported

IDS = torch.tensor([[1, 5, 9, 4]])
CONFIG = LoraConfig(rank=2, alpha=8, targets=("q_proj", "down_proj"))


def adapted(make_llama: Callable[..., LlamaForCausalLM]) -> LlamaForCausalLM:
    model = make_llama()
    adapt(model, CONFIG, seed=3)
    return model


def test_new_adapters_change_nothing_and_learn_alone(
    make_llama: Callable[..., LlamaForCausalLM],
) -> None:
    model = adapted(make_llama)
    torch.testing.assert_close(model(IDS).logits, make_llama()(IDS).logits, rtol=0, atol=0)
    trained = {name.rpartition(".")[2] for name, value in model.named_parameters() if value.requires_grad}
    assert trained == {"a", "b"}
    assert sum(isinstance(module, AdaptedLinear) for module in model.modules()) == 2 * 3


def test_off_is_the_base_and_merged_is_on(make_llama: Callable[..., LlamaForCausalLM]) -> None:
    model = adapted(make_llama)
    plain = make_llama()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, AdaptedLinear):
                module.b.normal_(0, 0.1)
        spoken = model(IDS).logits
        assert (spoken - plain(IDS).logits).abs().max() > 0.01
        with adapters_off(model):
            torch.testing.assert_close(model(IDS).logits, plain(IDS).logits, rtol=0, atol=0)
        for name, module in model.named_modules():
            if isinstance(module, AdaptedLinear):
                weight = plain.get_submodule(name).weight
                weight.copy_(merged(module.base.weight, module.a, module.b, module.scale))
        torch.testing.assert_close(plain(IDS).logits, spoken, rtol=1e-4, atol=1e-4)


def test_the_scale_by_hand() -> None:
    """alpha 8 over rank 2 is 4; [[1], [2]] times [[3, 5]] is [[3, 5], [6, 10]]."""
    found = merged(torch.ones(2, 2), torch.tensor([[3.0, 5.0]]), torch.tensor([[1.0], [2.0]]), 4.0)
    assert found.tolist() == [[13.0, 21.0], [25.0, 41.0]]


def test_the_same_seed_gives_the_same_adapters(make_llama: Callable[..., LlamaForCausalLM]) -> None:
    first, second = adapted(make_llama), adapted(make_llama)
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_unknown_target_is_refused(make_llama: Callable[..., LlamaForCausalLM]) -> None:
    with pytest.raises(ModelUnsupported, match="no linear layer named c_attn"):
        adapt(make_llama(), LoraConfig(targets=("q_proj", "c_attn")), seed=0)
