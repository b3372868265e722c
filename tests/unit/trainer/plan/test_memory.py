"""The memory plan's arithmetic: against models themselves, what autograd keeps, and numbers by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from ratchet.errors import UsageError
from trainer.attention import BranchAttention, Way
from trainer.batches import build, divide
from trainer.config import Method, Packing, ReferenceWay, RoundConfig
from trainer.data.branches import build_row
from trainer.data.examples import Example
from trainer.errors import ModelUnsupported
from trainer.logprobs import answer_logprobs
from trainer.plan.fit import DoesNotFit, fit, layout_of, setup_of
from trainer.plan.memory import RUNTIME, kv_cache_bytes, load_of, memory_plan
from trainer.plan.setup import ALWAYS, Examples, Layout, Load, MemoryPlan, Phase, Sampling, Setup
from trainer.plan.shape import Shape

SMALL = Shape(
    hidden=96, intermediate=256, layers=3, heads=6, kv_heads=2, head_size=16, vocabulary=640, tied=True
)
SMOLLM2 = Shape(576, 1536, 30, 9, 3, 64, 49_152, True)
LLAMA_7B = Shape(4096, 11_008, 32, 32, 32, 128, 32_000, False)


def model_of(shape: Shape) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_size,
            vocab_size=shape.vocabulary,
            tie_word_embeddings=shape.tied,
        )
    )


def bytes_of(plan: MemoryPlan, *names: str) -> int:
    return sum(part.bytes for part in plan.parts if part.name in names)


def test_shapes_of_known_models_have_their_known_number_of_parameters() -> None:
    assert SMOLLM2.parameters == 134_515_008
    assert LLAMA_7B.parameters == 6_738_415_616


@given(
    st.builds(
        Shape,
        hidden=st.sampled_from([32, 48]),
        intermediate=st.sampled_from([64, 96]),
        layers=st.integers(1, 3),
        heads=st.sampled_from([2, 4]),
        kv_heads=st.sampled_from([1, 2]),
        head_size=st.sampled_from([8, 16]),
        vocabulary=st.integers(40, 80),
        tied=st.booleans(),
    )
)
def test_parameters_are_those_that_the_model_itself_has(shape: Shape) -> None:
    model = model_of(shape)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert Shape.of_config(model.config.to_dict()) == shape


def test_adapters_have_rank_times_the_widths_in_and_out() -> None:
    """Rank 4 on q (96 + 96) and down (256 + 96), 3 layers: 3 x 4 x 544."""
    assert SMALL.adapter(4, ("q_proj", "down_proj")) == 6528
    with pytest.raises(ModelUnsupported, match="c_attn"):
        SMALL.adapter(4, ("c_attn",))


def test_a_configuration_of_another_kind_is_refused() -> None:
    with pytest.raises(ModelUnsupported, match="intermediate_size"):
        Shape.of_config({"num_attention_heads": 2, "hidden_size": 8})


def kept_bytes(model: LlamaForCausalLM, call: Callable[[], object]) -> int:
    """Bytes of distinct storages that autograd keeps for the backward pass, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        pointer = tensor.untyped_storage().data_ptr()
        if pointer not in weights:
            kept.setdefault(pointer, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        call()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_of_a_plain_batch_are_what_autograd_keeps(dtype: torch.dtype) -> None:
    model = model_of(SMALL).to(dtype)
    tokens = torch.arange(256).reshape(2, 128) % 640
    real = kept_bytes(model, lambda: model(input_ids=tokens, use_cache=False, logits_to_keep=1))
    setup = Setup(SMALL, precision="fp32" if dtype is torch.float32 else "bf16")
    plan = memory_plan(setup, Load(tokens=256, joined=0, scored=0, batches=1))
    assert bytes_of(plan, "activations") == pytest.approx(real, rel=0.02)


def test_activations_and_logits_of_branches_are_what_autograd_keeps() -> None:
    model = model_of(SMALL)
    attention = BranchAttention(model, Way.RUNS)
    examples = [
        Example(tuple(range(at, at + 60)), (tuple(range(30)), tuple(range(5, 35)))) for at in (40, 140, 240)
    ]
    row = build_row(examples, share=True)
    real = kept_bytes(model, lambda: answer_logprobs(model, row, attention))
    load = load_of(Examples(60, 30, 2), Layout(Packing.BRANCHES, 360, 3))
    assert (load.tokens, load.joined, load.scored) == (360, 540, 180)
    plan = memory_plan(Setup(SMALL), load)
    assert bytes_of(plan, "activations", "logits") == pytest.approx(real, rel=0.05)


def test_a_model_of_seven_billion_in_bf16_by_hand() -> None:
    """6,738,415,616 parameters: 2 B weights, 4 B master, 8 B moments, 2 B + 4 B gradients, and a cache of
    2 x 2 B x 32 layers x 4096 = 524,288 B a token. On 8 devices stage 3 divides all but the cache."""
    p = LLAMA_7B.parameters
    plan = memory_plan(Setup(LLAMA_7B, precision="bf16", device="cuda"), Load(0, 0, 0, 1))
    assert bytes_of(plan, "policy weights") == 2 * p
    assert bytes_of(plan, "policy master weights") == 4 * p
    assert bytes_of(plan, "policy moments") == 8 * p
    assert bytes_of(plan, "policy gradients", "policy gradients, added up") == 6 * p
    assert kv_cache_bytes(LLAMA_7B, 1, 2) == 524_288
    eight = memory_plan(
        Setup(LLAMA_7B, processes=8, zero_stage=3, precision="bf16", device="cuda"), Load(0, 0, 0, 1)
    )
    states = [part for part in eight.parts if part.name.startswith("policy") and "bucket" not in part.name]
    assert sum(part.bytes for part in states) == 20 * p // 8
    assert bytes_of(eight, "policy bucket of gradients") == 2 * 500_000_000
    host = memory_plan(
        Setup(LLAMA_7B, processes=8, zero_stage=2, offload="optimizer", precision="bf16", device="cuda"),
        Load(0, 0, 0, 1),
    )
    assert bytes_of(host, "policy master weights", "policy moments", "policy gradients, added up") == 0


def test_log_probabilities_of_256_answers_of_1024_tokens_are_one_mebibyte() -> None:
    """What a cached reference costs beside a second model: 256 x 1024 x 4 B = 1 MiB, no gigabyte."""
    assert torch.zeros(256, 1024).untyped_storage().nbytes() == 1 << 20


@pytest.mark.parametrize(
    ("way", "phases"), [(ReferenceWay.MODEL, ALWAYS), (ReferenceWay.CACHE, (Phase.SAMPLE,))]
)
def test_a_reference_is_there_when_it_is_used(way: ReferenceWay, phases: tuple[Phase, ...]) -> None:
    setup = Setup(SMALL, reference=way, sampling=Sampling(4, 10, 8))
    found = {part.name: part for part in memory_plan(setup, Load(1, 0, 1, 1)).parts}
    assert (found["reference"].bytes, found["reference"].phases) == (4 * SMALL.parameters, phases)
    assert found["key-value cache"].bytes == 2 * 4 * 3 * 32 * 40
    assert found["logits of sampled answers"].bytes == 4 * 640 * 8


def test_companions_of_reinforcement_learning_are_counted() -> None:
    setup = Setup(SMALL, reward_model=SMALL, critic="model", reference=ReferenceWay.MODEL)
    plan = memory_plan(setup, Load(1, 0, 1, 1))
    assert bytes_of(plan, "reward model") == 4 * SMALL.parameters
    assert bytes_of(plan, "critic weights", "critic moments", "critic gradients") == 16 * SMALL.parameters
    head = memory_plan(replace(setup, critic="head"), Load(1, 0, 1, 1))
    assert bytes_of(head, "critic weights", "critic moments", "critic gradients") == 16 * 97


def test_an_adapter_trains_its_own_weights_only() -> None:
    plan = memory_plan(Setup(SMALL, adapter=(4, ("q_proj",))), Load(1, 0, 1, 1))
    trained = SMALL.adapter(4, ("q_proj",))
    assert bytes_of(plan, "policy moments") == 8 * trained
    assert bytes_of(plan, "policy weights") == 4 * (SMALL.parameters + trained)


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=40),
    st.sampled_from(list(Packing)),
    st.integers(60, 600),
    st.integers(1, 4),
)
def test_no_micro_batch_is_larger_than_the_planned_one(
    lengths: list[tuple[int, int, int]], packing: Packing, capacity: int, processes: int
) -> None:
    """What `divide` makes of pairs of any lengths, with the longest prompt and answer as the plan's."""
    pairs = [
        Example(tuple(range(at, at + prompt)), (tuple(range(chosen)), tuple(range(500, 500 + rejected))))
        for at, (prompt, chosen, rejected) in enumerate(lengths)
    ]
    prompt = max(prompt for prompt, _, _ in lengths)
    answer = max(max(chosen, rejected) for _, chosen, rejected in lengths)
    load = load_of(Examples(prompt, answer, 2), Layout(packing, capacity, len(pairs)), processes)
    one = prompt + 2 * answer if packing is Packing.BRANCHES else 2 * (prompt + answer)
    assert load.tokens <= max(capacity, one)
    assert load.tokens * load.batches * processes >= len(pairs) * one
    assert load.scored <= load.tokens
    for rank in divide(pairs, packing, capacity, ranks=processes):
        for places in rank:
            if places:
                assert build([pairs[place] for place in places], packing, pad_id=0).tokens <= load.tokens


def test_short_examples_fill_what_a_long_one_leaves() -> None:
    """One pair of 600 tokens and eight of 50 are a row of 1000: 400 of them answers of the long pair, the
    rest planned with as large a share of answers."""
    load = load_of(Examples(200, 200, 2), Layout(Packing.BRANCHES, 1000, 9))
    assert (load.tokens, load.joined, load.scored) == (1000, 1334, 667)
    assert load.batches == 6


def config(**changed: object) -> RoundConfig:
    values = {
        "method": "dpo", "model": "m", "snapshot": "s", "data": {"max_length": 256},
        "optim": {"micro_tokens": 512, "batch": 8}, "checkpoints": {"kl_prompts": 4, "kl_tokens": 32},
    }  # fmt: skip
    return RoundConfig.model_validate({**values, **changed})


def test_a_plan_without_room_for_longer_answers_is_refused_with_a_way_out() -> None:
    setup, layout = setup_of(config(), SMOLLM2, "cpu"), layout_of(config())
    examples = Examples(100, 80, 2)
    roomy = fit(setup, examples, layout, capacity=8 << 30)
    assert roomy.fits
    assert roomy.grown.peak > roomy.now.peak
    between = (roomy.now.peak + roomy.grown.peak) // 2
    tight = fit(setup, examples, layout, capacity=between)
    assert not tight.fits
    assert tight.headroom == between - roomy.grown.peak
    with pytest.raises(
        DoesNotFit, match=r"once answers are 1\.5 times as long.*policy moments.*engine\.zero_stage"
    ):
        tight.require()
    with pytest.raises(DoesNotFit, match="no room now"):
        fit(setup, examples, layout, capacity=RUNTIME["cpu"]).require()
    with pytest.raises(UsageError, match="1 or more"):
        fit(setup, examples, layout, capacity=1, growth=0.5)


def test_a_plan_that_is_fuller_now_than_later_is_judged_by_now() -> None:
    """Of 512 tokens in pairs of 100 and 10 each, and of 100 and 40: branches copy 939 and 797 keys."""
    setup = replace(setup_of(config(), SMALL, "cpu"), sampling=None, scores=True)
    layout = Layout(Packing.BRANCHES, 512, 64)
    found = fit(setup, Examples(100, 10, 2), layout, capacity=1 << 40, growth=4)
    assert (found.now.load.joined, found.grown.load.joined) == (939, 797)
    assert found.now.peak > found.grown.peak
    tight = replace(found, capacity=found.grown.peak)
    assert not tight.fits
    assert tight.headroom == found.grown.peak - found.now.peak
    with pytest.raises(DoesNotFit, match="no room now"):
        tight.require()


def test_a_reward_model_has_one_score_in_place_of_words_and_no_reference() -> None:
    setup = setup_of(config(method=Method.RM), SMALL, "cpu")
    names = {part.name for part in memory_plan(setup, Load(10, 0, 4, 1)).parts}
    assert names.isdisjoint({"logits", "reference", "key-value cache"})
