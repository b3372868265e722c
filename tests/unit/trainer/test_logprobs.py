"""Log-probabilities: packed branches, padded batches and single sequences agree, and so do their
gradients.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedModel,
    Qwen3Config,
)

import trainer.logprobs
from trainer.attention import BranchAttention, Way
from trainer.data.branches import build_row
from trainer.data.examples import Example
from trainer.data.padding import pad
from trainer.errors import ModelUnsupported
from trainer.logprobs import answer_logprobs, sequence_sums, token_logprobs

EXAMPLES = [
    Example((1, 5, 9, 11, 30), ((7, 8, 2), (7, 31, 32, 33, 2))),
    Example((1, 5, 9, 12), ((40, 2), (41, 42, 43, 44))),
    Example((1, 5, 50, 51, 52, 53, 54, 55), ((60,), (61, 2))),
    Example((70,), ((71, 72), (73, 2))),
]


def one_by_one(model: PreTrainedModel, examples: Sequence[Example]) -> list[Tensor]:
    """The plainest way: every sequence alone, all logits, log_softmax."""
    found = []
    for example in examples:
        for answer in example.answers:
            whole = torch.tensor([example.prompt + answer])
            logits = model(input_ids=whole, use_cache=False).logits[0, len(example.prompt) - 1 : -1]
            found.append(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0])
    return found


def gradients(model: PreTrainedModel, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def weights(number: int) -> Tensor:
    """Different for every token, so that no two gradients can change places unseen."""
    return torch.linspace(-1.0, 2.0, number)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(("attention", "way"), [("sdpa", Way.RUNS), ("sdpa", Way.MASK), ("eager", Way.MASK)])
def test_branches_equal_sequences_alone(
    make_llama: Callable[..., LlamaForCausalLM], attention: str, way: Way, share: bool
) -> None:
    model = make_llama(attention=attention)
    plain = torch.cat(one_by_one(model, EXAMPLES))
    expected = gradients(model, (weights(len(plain)) * plain).sum())
    row = build_row(EXAMPLES, share=share)
    packed = answer_logprobs(model, row, BranchAttention(model, way))
    torch.testing.assert_close(packed, plain, rtol=0, atol=2e-5)
    for name, gradient in gradients(model, (weights(len(packed)) * packed).sum()).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_equals_sequences_alone(make_llama: Callable[..., LlamaForCausalLM], side: str) -> None:
    model = make_llama()
    attention = BranchAttention(model)
    plain = torch.cat(one_by_one(model, EXAMPLES))
    expected = gradients(model, (weights(len(plain)) * plain).sum())
    padded = answer_logprobs(model, pad(EXAMPLES, 2, side=side), attention)
    torch.testing.assert_close(padded, plain, rtol=0, atol=1e-5)
    for name, gradient in gradients(model, (weights(len(padded)) * padded).sum()).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        MistralConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            sliding_window=64,
        ),
        Qwen3Config(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            tie_word_embeddings=True,
        ),
    ],
    ids=lambda value: value.model_type if hasattr(value, "model_type") else "",
)
def test_other_architectures(config: object, way: Way) -> None:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    plain = torch.cat(one_by_one(model, EXAMPLES))
    packed = answer_logprobs(model, build_row(EXAMPLES), BranchAttention(model, way))
    torch.testing.assert_close(packed, plain, rtol=0, atol=2e-5)


@pytest.mark.parametrize("way", list(Way))
def test_no_attention_across_examples(make_llama: Callable[..., LlamaForCausalLM], way: Way) -> None:
    """Other words in one example change nothing in another, to the last bit."""
    model = make_llama()
    attention = BranchAttention(model, way)
    mine = Example((1, 5, 9), ((7, 8, 2), (11, 2)))
    with torch.no_grad():
        first = answer_logprobs(model, build_row([mine, Example((20, 21), ((22, 23), (24,)))]), attention)
        second = answer_logprobs(model, build_row([mine, Example((30, 31), ((32, 33), (34,)))]), attention)
    assert torch.equal(first[:5], second[:5])
    assert not torch.isclose(first[5:], second[5:]).any()


def test_the_head_runs_only_where_answers_are(make_llama: Callable[..., LlamaForCausalLM]) -> None:
    model = make_llama()
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0].shape[1]))
    row = build_row(EXAMPLES)
    answer_logprobs(model, row, BranchAttention(model))
    assert seen == [sum(len(answer) for example in EXAMPLES for answer in example.answers)]


def test_a_model_told_of_runs_behaves_as_before_otherwise(
    make_llama: Callable[..., LlamaForCausalLM],
) -> None:
    plain, changed = make_llama(), make_llama()
    BranchAttention(changed, Way.RUNS)
    prompt = torch.tensor([[2, 1, 5, 9], [1, 5, 9, 11]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    arguments = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    assert torch.equal(plain.generate(prompt, **arguments), changed.generate(prompt, **arguments))
    logits = [model(input_ids=prompt, attention_mask=mask).logits for model in (plain, changed)]
    torch.testing.assert_close(logits[0][mask.bool()], logits[1][mask.bool()], rtol=0, atol=1e-6)


def test_recomputed_activations_give_the_same_gradient(make_llama: Callable[..., LlamaForCausalLM]) -> None:
    model = make_llama().train()
    attention = BranchAttention(model, Way.RUNS)
    row = build_row(EXAMPLES)
    kept = gradients(model, answer_logprobs(model, row, attention).sum())
    model.gradient_checkpointing_enable()
    again = gradients(model, answer_logprobs(model, row, attention).sum())
    for name, gradient in kept.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-5, atol=1e-6)


def test_a_sequence_beyond_the_window_is_refused() -> None:
    config = MistralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=7,
    )
    attention = BranchAttention(AutoModelForCausalLM.from_config(config))
    attention.inputs(build_row([Example((1, 2, 3), ((4, 5, 6, 7),))]))
    with pytest.raises(ModelUnsupported, match="attends within 7 tokens and a sequence has 8"):
        attention.inputs(build_row([Example((1, 2, 3), ((4, 5, 6, 7, 8),))]))


def test_layers_that_carry_state_are_refused(make_llama: Callable[..., LlamaForCausalLM]) -> None:
    model = make_llama()
    model.config.layer_types = ["linear_attention", "full_attention", "full_attention"]
    with pytest.raises(ModelUnsupported, match="linear_attention carry state"):
        BranchAttention(model)


def test_attention_that_takes_no_mask_is_refused(make_llama: Callable[..., LlamaForCausalLM]) -> None:
    model = make_llama()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelUnsupported, match="load the model with attn_implementation='sdpa'"):
        BranchAttention(model, Way.MASK)


@pytest.mark.parametrize("chunk", [1, 40, 1 << 19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_token_logprobs_equal_log_softmax(
    chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer.logprobs, "_CHUNK_ELEMENTS", chunk)
    draw = torch.Generator().manual_seed(4)
    hidden = torch.randn(7, 5, generator=draw).to(dtype).requires_grad_()
    head = (3 * torch.randn(11, 5, generator=draw)).to(dtype).requires_grad_()
    target = torch.randint(0, 11, (7,), generator=draw)
    outer = torch.randn(7, generator=draw)
    expected = (hidden @ head.T).float().log_softmax(-1).gather(1, target[:, None])[:, 0]
    wanted = torch.autograd.grad((outer * expected).sum(), (hidden, head))
    actual = token_logprobs(hidden @ head.T, target)
    assert actual.dtype == torch.float32
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(actual, expected, **tolerance)
    found = torch.autograd.grad((outer * actual).sum(), (hidden, head))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def test_a_second_pass_over_spent_logits_is_refused() -> None:
    """The gradient was written over them: a silent wrong one would follow."""
    hidden = torch.ones(2, 3, requires_grad=True)
    values = token_logprobs(hidden * 2.0, torch.tensor([0, 1])).sum()
    values.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        values.backward()


def test_sums_by_sequence() -> None:
    """Example 0 has answers of 3 and 5 tokens, all worth 1; then 2 and 4."""
    row = build_row(EXAMPLES[:2])
    values = torch.ones(14, requires_grad=True)
    sums = sequence_sums(values, row)
    assert sums.tolist() == [3.0, 5.0, 2.0, 4.0]
    (sums * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1.0] * 3 + [2.0] * 5 + [3.0] * 2 + [4.0] * 4
