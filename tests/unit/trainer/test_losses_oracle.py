"""Losses against TRL's, an implementation of other hands: its own trainers are given log-probabilities and
scores.
"""

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.losses.dpo import DpoLoss, PairLoss
from trainer.losses.kto import kto
from trainer.losses.reward_model import bradley_terry, centring
from trainer.losses.simpo import simpo

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("trl", reason="trl is a development dependency: pip install 'ratchet[dev]'")
    from trl.experimental.cpo import CPOTrainer
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.reward_trainer import RewardTrainer

PAIRS, TOKENS = 5, 7
BETA = 0.2


@pytest.fixture
def answers() -> dict[str, Tensor]:
    """Random per-token log-probabilities of padded answers under policy and reference, chosen then
    rejected.
    """
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, TOKENS + 1, (2 * PAIRS,), generator=generator)
    mask = torch.arange(TOKENS)[None, :] < lengths[:, None]
    draw = -3 * torch.rand(2, 2 * PAIRS, TOKENS, generator=generator, dtype=torch.float64)
    return {"policy": draw[0] * mask, "reference": (draw[1] * mask).sum(1), "mask": mask, "lengths": lengths}


def accelerator() -> SimpleNamespace:
    return SimpleNamespace(
        device=torch.device("cpu"), gather=lambda value: value, gather_for_metrics=lambda value: value
    )


def trl_dpo(answers: dict[str, Tensor], kind: str, smoothing: float) -> float:
    """The mean loss TRL's DPOTrainer takes of a batch."""
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=accelerator(),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[kind],
        loss_weights=[1.0],
        beta=BETA,
        label_smoothing=smoothing,
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    front = torch.zeros(2 * PAIRS, 1, dtype=torch.int64)
    completion = torch.cat([front, answers["mask"].long()], 1)
    inputs = {
        "input_ids": completion,
        "attention_mask": torch.ones_like(completion),
        "completion_mask": completion,
        "ref_chosen_logps": answers["reference"][:PAIRS],
        "ref_rejected_logps": answers["reference"][PAIRS:],
    }
    zeros = torch.zeros_like(answers["policy"])
    outputs = SimpleNamespace(
        log_probs=answers["policy"], entropy=zeros, mean_logits=zeros, is_top1=zeros.bool()
    )
    return float(DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False))


def ours(answers: dict[str, Tensor], loss: DpoLoss) -> Tensor:
    sums, reference, lengths = answers["policy"].sum(1), answers["reference"], answers["lengths"]
    return loss(
        sums[:PAIRS],
        sums[PAIRS:],
        reference[:PAIRS],
        reference[PAIRS:],
        lengths[:PAIRS],
        lengths[PAIRS:],
    )


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (DpoLoss(PairLoss.SIGMOID, BETA), "sigmoid"),
        (DpoLoss(PairLoss.ROBUST, BETA, label_smoothing=0.15), "robust"),
        (DpoLoss(PairLoss.HINGE, BETA), "hinge"),
        (DpoLoss(PairLoss.IPO, BETA, length_normalised=True), "ipo"),
        (DpoLoss(PairLoss.SIGMOID, BETA, length_normalised=True), "sigmoid_norm"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_dpo_family(answers: dict[str, Tensor], loss: DpoLoss, kind: str) -> None:
    assert ours(answers, loss).mean().item() == pytest.approx(
        trl_dpo(answers, kind, loss.label_smoothing), rel=1e-12
    )


def cpo(answers: dict[str, Tensor], kind: str, smoothing: float, gamma: float, *, mean: bool) -> Tensor:
    """CPOTrainer's losses; with reference log-ratios given in place of log-probabilities it is DPO's
    formula.
    """
    trainer = SimpleNamespace(
        alpha=0.0,
        accelerator=accelerator(),
        loss_type=kind,
        beta=BETA,
        label_smoothing=smoothing,
        simpo_gamma=gamma,
    )
    values = answers["policy"].sum(1)
    values = values / answers["lengths"] if mean else values - answers["reference"]
    losses, _, _ = CPOTrainer.cpo_loss(trainer, values[:PAIRS], values[PAIRS:])
    return losses


def test_conservative_dpo(answers: dict[str, Tensor]) -> None:
    loss = DpoLoss(PairLoss.CDPO, BETA, label_smoothing=0.15)
    torch.testing.assert_close(ours(answers, loss), cpo(answers, "sigmoid", 0.15, 0.0, mean=False))


def test_ipo_of_sums(answers: dict[str, Tensor]) -> None:
    loss = DpoLoss(PairLoss.IPO, BETA)
    torch.testing.assert_close(ours(answers, loss), cpo(answers, "ipo", 0.0, 0.0, mean=False))


def test_simpo(answers: dict[str, Tensor]) -> None:
    sums, lengths = answers["policy"].sum(1), answers["lengths"]
    mine = simpo(sums[:PAIRS], sums[PAIRS:], lengths[:PAIRS], lengths[PAIRS:], beta=BETA, gamma=0.3)
    torch.testing.assert_close(mine, cpo(answers, "simpo", 0.0, 0.3, mean=True))


@pytest.mark.parametrize("with_margin", [False, True])
def test_reward_model(with_margin: bool) -> None:
    scores = torch.randn(2, PAIRS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    margin = torch.linspace(0.0, 1.0, PAIRS, dtype=torch.float64)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=accelerator(),
        args=SimpleNamespace(center_rewards_coefficient=0.02),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs: dict[str, Any] = {"attention_mask": torch.ones(2 * PAIRS, 3, dtype=torch.int64)}
    if with_margin:
        inputs["margin"] = margin
    outputs = SimpleNamespace(logits=scores.reshape(-1, 1))
    theirs = RewardTrainer.compute_loss(trainer, lambda **_: outputs, inputs)
    ours = bradley_terry(scores[0], scores[1], margin if with_margin else None)
    ours = ours + centring(scores[0], scores[1], 0.02)
    torch.testing.assert_close(ours.mean(), theirs)


def test_kto_against_the_papers_formula() -> None:
    """v = l s(b (r - z0)) for good, l s(b (z0 - r)) for bad; the loss is l - v. In numpy, from the paper."""
    numpy = pytest.importorskip("numpy")
    draw = numpy.random.default_rng(1)
    policy, reference = -10 * draw.random(6), -10 * draw.random(6)
    good = numpy.array([True, False, True, True, False, False])
    ratio, z0 = policy - reference, 0.7
    weight = numpy.where(good, 1.2, 0.8)
    value = weight / (1 + numpy.exp(-BETA * numpy.where(good, ratio - z0, z0 - ratio)))
    mine = kto(
        torch.from_numpy(policy),
        torch.from_numpy(reference),
        torch.from_numpy(good),
        torch.tensor(z0, dtype=torch.float64),
        beta=BETA,
        desirable_weight=1.2,
        undesirable_weight=0.8,
    )
    numpy.testing.assert_allclose(mine.numpy(), weight - value, rtol=1e-12)
