"""The memory plan beside what real rounds held: within a fifth, for full weights and for adapters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.snapshots import pairs_snapshot
from tests.support.tiny_model import make_tiny_model
from trainer.config import parse
from trainer.launch import launch
from trainer.plan.device import Device
from trainer.plan.reading import examples_of
from trainer.plan.report import fit_of
from trainer.round import prepare

WITHIN = 0.2
ADAPTER = {"lora": {"rank": 8}, "reference_policy": {"way": "adapter"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 million parameters, more words than its tokenizer has: large enough to show beside the libraries."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"))
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=16_384,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers of 145 tokens."""
    return pairs_snapshot(
        tmp_path_factory.mktemp("snapshots"),
        rows=8,
        validation=2,
        chosen="the answer has room to be plain. " * 12,
        rejected="nobody will ever know about it. " * 12,
    )


@pytest.mark.parametrize("changed", [{}, ADAPTER], ids=["full", "adapter"])
def test_the_predicted_peak_is_within_a_fifth_of_the_measured(
    model: Path, snapshot: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    values = {
        "method": "dpo", "model": str(model), "snapshot": str(snapshot),
        "data": {"max_length": 256, "validation_rows": 2},
        "optim": {"lr": 1e-4, "batch": 8, "micro_tokens": 1024, "steps": 2},
        "checkpoints": {"kl_at": [], "kl_prompts": 2, "kl_tokens": 16, "measure_every": 0},
        **changed,
    }  # fmt: skip
    config = parse(values, source="test")
    folder = tmp_path / "round"
    prepare(config, folder)
    measured = launch(config, folder, {"OMP_NUM_THREADS": "1"})["peak_memory_bytes"]
    examples = examples_of(snapshot, "pairs", model, config.data.max_length)
    planned = fit_of(config, model, examples, device=Device("cpu", 1 << 40))
    assert planned.now.peak == pytest.approx(measured, rel=WITHIN)
