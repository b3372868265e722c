"""Checks every loss's declared shapes while its tests run, and makes the small models they share."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from tests.support.tiny_model import make_tiny_model

install_import_hook("trainer.losses", "beartype.beartype")

VOCABULARY = 97


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors: a second thread only waits."""
    torch.set_num_threads(1)


@pytest.fixture
def make_llama() -> Callable[..., LlamaForCausalLM]:
    """Makes a random Llama with grouped heads, dropout off; the same weights for the same seed."""

    def make(seed: int = 0, attention: str = "sdpa", **changes: object) -> LlamaForCausalLM:
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=12,
            max_position_embeddings=256,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
            attn_implementation=attention,
            **changes,
        )
        return LlamaForCausalLM(config).eval()

    return make


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """A byte-level tokenizer whose template writes BOS and whose plain calls would add another."""
    folder: Path = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    return AutoTokenizer.from_pretrained(folder)
