"""The method that trains reward models: TRL's own trainer as oracle, and a planted preference."""

import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaForCausalLM

from trainer.adapters import adapt
from trainer.algorithms import algorithm_of
from trainer.algorithms.rm import RewardModelling
from trainer.attention import BranchAttention
from trainer.config import LoraConfig, parse
from trainer.data.branches import build_row
from trainer.data.examples import Example
from trainer.data.padding import pad
from trainer.losses.reduce import weighted_sum
from trainer.reward.report import PairScores, report

EOS, PAD = 2, 3


@pytest.fixture
def policy(make_llama: Callable[..., LlamaForCausalLM], tmp_path: Path) -> Path:
    """A random policy's folder."""
    model = make_llama()
    model.config.pad_token_id = PAD
    model.save_pretrained(tmp_path / "policy")
    return tmp_path / "policy"


def pairs(count: int, seed: int) -> list[Example]:
    """Answers of 4 to 8 random tokens; the one that holds token 50 is preferred, whichever is longer."""
    random = np.random.default_rng(seed)
    made: list[Example] = []
    for number in range(count):
        prompt = (1, *random.integers(10, 40, 3).tolist())
        with_mark, without = (random.integers(60, 90, random.integers(4, 9)).tolist() for _ in range(2))
        with_mark[int(random.integers(len(with_mark)))] = 50
        made.append(Example(prompt, ((*with_mark, EOS), (*without, EOS)), 1.0 + number % 2))
    return made


def test_loss_and_gradients_are_trls(policy: Path) -> None:
    """RewardTrainer's own loss of the same weights on padded pairs, pad and EOS apart; ours over branches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trl = pytest.importorskip("trl.trainer.reward_trainer", reason="trl is a development dependency")
    examples = pairs(4, seed=0)
    method = RewardModelling(margin=0.0, centring=0.02, seed=1)
    model = method.load(policy, torch.float32)
    model.save_pretrained(policy.parent / "start")
    values = method.values(model, build_row(examples), BranchAttention(model))
    loss = method.losses(values, None, torch.tensor([])).mean()
    loss.backward()

    theirs = AutoModelForSequenceClassification.from_pretrained(policy.parent / "start")
    batch = pad([Example(e.prompt, (e.answers[side],)) for side in (0, 1) for e in examples], PAD)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(gather=lambda value: value, gather_for_metrics=lambda value: value),
        args=SimpleNamespace(center_rewards_coefficient=0.02),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    expected = trl.RewardTrainer.compute_loss(trainer, theirs, inputs)
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    gradients = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, atol=1e-5, rtol=1e-3, msg=name)


def test_a_planted_preference_is_learned_beyond_its_interval(policy: Path) -> None:
    method = RewardModelling(margin=0.0, centring=0.01, seed=1)
    model = method.load(policy, torch.float32)
    attention = BranchAttention(model)
    held_back = pairs(200, seed=2)

    def measured() -> dict[str, dict[str, float]]:
        with torch.no_grad():
            found = method.values(model, build_row(held_back), attention).view(-1, 2).double().numpy()
        lengths = np.array([[len(answer) for answer in example.answers] for example in held_back])
        groups = np.arange(len(held_back))
        return report(PairScores(found[:, 0], found[:, 1], lengths[:, 0], lengths[:, 1], groups))

    before = measured()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(15):
        examples = pairs(32, seed=100 + step)
        values = method.values(model, build_row(examples), attention)
        losses = method.losses(values, None, torch.tensor([]))
        optimizer.zero_grad()
        weighted_sum(losses, torch.tensor(method.shares(examples))).backward()
        optimizer.step()
    after = measured()
    assert before["accuracy"]["low"] < 0.5 < before["accuracy"]["high"]
    assert after["accuracy"]["low"] > 0.9
    assert after["accuracy"]["low"] > before["accuracy"]["high"]


def test_losses_and_figures_by_hand() -> None:
    """Scores 2 and 1 with margin 0.5: -log s(0.5) = 0.474077; centring 0.1 * 9 = 0.9. A tie is half right."""
    method = RewardModelling(margin=0.5, centring=0.1, seed=0)
    values = torch.tensor([2.0, 1.0, 0.0, 0.0, -1.0, 1.0])
    losses = method.losses(values, None, torch.tensor([]))
    assert losses.tolist() == pytest.approx([0.474077 + 0.9, 0.974077, 2.578889], abs=1e-6)
    figures = method.measures(values, None, torch.tensor([]))
    assert figures["accuracy"].tolist() == [1.0, 0.5, 0.0]
    assert figures["reward"].tolist() == [1.0, 0.0, -2.0]
    assert figures["off_centre"].tolist() == [3.0, 0.0, 0.0]


def test_beside_adapters_the_value_head_is_trained_whole(policy: Path) -> None:
    method = RewardModelling(margin=0.0, centring=0.0, seed=1)
    model = method.load(policy, torch.float32)
    adapt(model, LoraConfig(rank=2), 0, method.trained_whole)
    values = method.values(model, build_row(pairs(2, seed=0)), BranchAttention(model))
    method.losses(values, None, torch.tensor([])).sum().backward()
    learned = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert "score.weight" in learned
    assert {name.rpartition(".")[2] for name in learned - {"score.weight"}} == {"a", "b"}


def test_a_round_of_method_rm_is_this_one(tmp_path: Path) -> None:
    values = {
        "method": "rm",
        "model": str(tmp_path),
        "snapshot": str(tmp_path),
        "seed": 7,
        "loss": {"margin": 0.25, "centring": 0.02},
    }
    method = algorithm_of(parse(values, source="test"))
    assert isinstance(method, RewardModelling)
    assert (method.margin, method.centring, method.seed) == (0.25, 0.02, 7)
    assert (method.snapshot_kind, method.uses_reference, method.is_policy) == ("pairs", False, False)
