"""Sampled answers follow the policy's own distribution, and KL by them is that of exact enumeration."""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trainer.attention import BranchAttention
from trainer.config import CheckpointConfig, EngineConfig, OptimConfig
from trainer.engine import Engine
from trainer.reference import Reference
from trainer.sampling import generate, measure
from trainer.world import join

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

WORDS, STOP, LONGEST = 4, 3, 3
PROMPT = (0, 1)


def tiny(seed: int) -> LlamaForCausalLM:
    """Four words; its own generation config would make sampling greedy were it heeded."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
            initializer_range=0.6,
            bos_token_id=0,
            eos_token_id=STOP,
            pad_token_id=STOP,
        )
    ).eval()
    model.generation_config.update(top_k=1, top_p=0.5, temperature=0.2, repetition_penalty=1.7)
    return model


def answers() -> list[tuple[int, ...]]:
    """Every answer: words until STOP, or LONGEST words."""
    words = [word for word in range(WORDS) if word != STOP]
    ended = [(*said, STOP) for n in range(LONGEST) for said in itertools.product(words, repeat=n)]
    return ended + list(itertools.product(words, repeat=LONGEST))


def logprob(model: LlamaForCausalLM, answer: tuple[int, ...]) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + answer])).logits[0].double().log_softmax(-1)
    return float(logits[len(PROMPT) - 1 : -1].gather(1, torch.tensor(answer)[:, None]).sum())


class Beside:
    """A reference that is a model at hand."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model

    @contextmanager
    def scorer(self) -> Iterator[tuple[Any, BranchAttention, torch.device]]:
        with torch.no_grad():
            yield self._model, BranchAttention(self._model), torch.device("cpu")


def test_answers_are_drawn_from_the_whole_distribution() -> None:
    """4,000 answers against every answer's probability: chi-squared of 40 cells, below its 99.99% point."""
    model = tiny(0)
    torch.manual_seed(1)
    (drawn,) = generate(model, [PROMPT], 4000, LONGEST, stop_ids=[STOP], pad_id=STOP)
    assert model.generation_config.top_k == 1
    expected = {answer: 4000 * math.exp(logprob(model, answer)) for answer in answers()}
    assert sum(expected.values()) == pytest.approx(4000)
    found = {answer: drawn.count(answer) for answer in expected}
    assert sum(found.values()) == 4000
    chi_squared = sum((found[answer] - number) ** 2 / number for answer, number in expected.items())
    assert chi_squared < 82


def test_prompts_of_any_length_are_answered_alike() -> None:
    """A prompt padded from the left answers as it does alone: the likeliest first word of 500 stays so."""
    model = tiny(0)
    torch.manual_seed(2)
    short, _ = generate(model, [PROMPT, (0, 1, 2, 1, 0, 2)], 2000, 1, stop_ids=[STOP], pad_id=STOP)
    for word in range(WORDS):
        probability = math.exp(logprob(model, (word,)))
        error = math.sqrt(probability * (1 - probability) / 2000)
        assert short.count((word,)) / 2000 == pytest.approx(probability, abs=4.5 * error)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(tiny(0), OptimConfig(), EngineConfig(), join())


def distance(engine: Engine, reference: LlamaForCausalLM, prompts: int) -> Any:
    return measure(
        engine,
        BranchAttention(engine.model),
        cast(Reference, Beside(reference)),
        [PROMPT] * prompts,
        CheckpointConfig(kl_samples=1, kl_tokens=LONGEST),
        seed=5,
        capacity=4096,
        stop_ids=[STOP],
        pad_id=STOP,
    )


def test_kl_is_that_of_exact_enumeration(engine: Engine) -> None:
    reference = tiny(1)
    exact = sum(
        math.exp(logprob(engine.model, answer)) * (logprob(engine.model, answer) - logprob(reference, answer))
        for answer in answers()
    )
    found = distance(engine, reference, 1500)
    assert exact > 0.05
    for estimate in (found.kl.k1, found.kl.k3):
        assert 0 < estimate.error < 0.2 * exact
        assert estimate.value == pytest.approx(exact, abs=4 * estimate.error)
    assert set(found.length_quantiles) == {"0.1", "0.5", "0.9"}


def test_a_policy_is_exactly_no_distance_from_itself(engine: Engine) -> None:
    found = distance(engine, tiny(0), 20)
    assert (found.kl.k1.value, found.kl.k3.value) == (0.0, 0.0)
