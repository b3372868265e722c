"""Scores at the last real token, whatever the padding is."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, LlamaForCausalLM, PreTrainedModel

from ratchet.errors import PolicyRefused
from tests.support.tiny_model import make_tiny_model
from trainer.attention import BranchAttention, Way
from trainer.data.branches import build_row
from trainer.data.examples import Example
from trainer.data.padding import pad
from trainer.errors import ModelUnsupported
from trainer.reward.model import load_reward_model
from trainer.reward.pooling import scores, with_pooling

EOS = 2
PAIRS = [
    Example((1, 5, 6, 7), ((8, 9, EOS), (10, EOS))),
    Example((1, 5, 6, 9), ((11, EOS), (12, 13, 14, 15, EOS))),
    Example((1, 40), ((EOS,), (41, 42))),
]
"""Prompts that begin alike; answers that end with EOS, one that is nothing else, one that was cut."""


@pytest.fixture
def model(make_llama: Callable[..., LlamaForCausalLM], tmp_path: Path) -> PreTrainedModel:
    """A value head over a random Llama whose pad token is its EOS."""
    make_llama().save_pretrained(tmp_path / "policy")
    return load_reward_model(tmp_path / "policy", seed=3)


def alone(model: PreTrainedModel) -> torch.Tensor:
    """Each sequence by itself, scored by hand: backbone, last state, head."""
    with torch.no_grad():
        return torch.stack(
            [
                model.score(model.base_model(torch.tensor([example.prompt + answer])).last_hidden_state)[
                    0, -1, 0
                ]
                for example in PAIRS
                for answer in example.answers
            ]
        )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad_id", [EOS, 0, 5])
def test_padding_changes_nothing_on_either_side_and_with_any_id(
    model: PreTrainedModel, side: str, pad_id: int
) -> None:
    batch = pad(PAIRS, pad_id, side=side)
    with torch.no_grad():
        found = scores(model, batch, BranchAttention(model, Way.MASK))
    torch.testing.assert_close(found, alone(model), atol=1e-5, rtol=0)


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("share", [True, False])
def test_branches_over_shared_prompts_have_the_same_scores(
    model: PreTrainedModel, way: Way, share: bool
) -> None:
    row = build_row(PAIRS, share=share)
    with torch.no_grad():
        found = scores(model, row, BranchAttention(model, way))
    torch.testing.assert_close(found, alone(model), atol=1e-5, rtol=0)


def test_transformers_own_pooling_looks_at_another_token(model: PreTrainedModel, tmp_path: Path) -> None:
    """With pad = EOS it passes over the answer's own EOS; where the last token is no EOS it agrees."""
    model.save_pretrained(tmp_path / "saved")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    batch = pad(PAIRS, EOS)
    with torch.no_grad():
        logits = theirs(batch.input_ids, attention_mask=batch.attention_mask).logits[:, 0]
    same = torch.isclose(logits, alone(model), atol=1e-5, rtol=0).tolist()
    ends_with_eos = [answer[-1] == EOS for example in PAIRS for answer in example.answers]
    assert ends_with_eos == [True, True, True, True, True, False]
    assert same == [not ends for ends in ends_with_eos]


def test_gradients_of_branches_equal_those_of_padded_batches(model: PreTrainedModel) -> None:
    gradients = []
    for batch in (pad(PAIRS, EOS), build_row(PAIRS)):
        model.zero_grad()
        found = scores(model, batch, BranchAttention(model, Way.RUNS))
        (found * torch.arange(1.0, 7.0)).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_a_saved_folder_is_standard_and_comes_back_as_it_was(model: PreTrainedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "saved")
    again = load_reward_model(tmp_path / "saved", seed=99)
    assert model.config.architectures == ["LlamaForSequenceClassification"]
    assert "lm_head.weight" not in load_file(tmp_path / "saved" / "model.safetensors")
    torch.testing.assert_close(alone(again), alone(model), atol=0, rtol=0)


def test_a_new_head_is_a_function_of_the_seed_and_the_backbone_is_the_policys(tmp_path: Path) -> None:
    policy = load_file(make_tiny_model(tmp_path / "tiny") / "model.safetensors")
    first, same, other = (load_reward_model(tmp_path / "tiny", seed=seed) for seed in (1, 1, 2))
    torch.testing.assert_close(first.score.weight, same.score.weight, atol=0, rtol=0)
    assert not torch.equal(first.score.weight, other.score.weight)
    assert first.score.weight.std().item() == pytest.approx(193**-0.5, rel=0.2)
    for name, value in first.state_dict().items():
        assert name == "score.weight" or torch.equal(value, policy[name]), name


def test_what_is_no_reward_model_is_refused(
    make_llama: Callable[..., LlamaForCausalLM], tmp_path: Path
) -> None:
    with pytest.raises(ModelUnsupported, match="no value head"):
        with_pooling(make_llama())
    make_llama().save_pretrained(tmp_path / "policy")
    two = AutoModelForSequenceClassification.from_pretrained(tmp_path / "policy", num_labels=2)
    with pytest.raises(ModelUnsupported, match="has 2"):
        with_pooling(two)
    with pytest.raises(PolicyRefused, match="cannot load"):
        load_reward_model(tmp_path / "nothing")
    broken = tmp_path / "policy" / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(PolicyRefused, match="cannot load"):
        load_reward_model(tmp_path / "policy")
