"""A tiny Llama whose output layer is its input layer, with the tokenizer and template of `tiny_model`."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.tiny_model import CONTEXT, VOCABULARY, make_tiny_model

HIDDEN = 64
LAYERS = 2


def make_tied_model(path: Path, seed: int = 0, dropout: float = 0.0) -> Path:
    """Writes a folder of about 130 thousand float32 parameters, two layers, the same for the same seed.

    Args:
        path: Folder to make.
        seed: Decides the weights.
        dropout: Of the attention, as its configuration states it.
    """
    make_tiny_model(path)
    config = LlamaConfig.from_pretrained(path)
    made = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        attention_dropout=dropout,
        initializer_range=0.1,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(made).save_pretrained(path)
    return path
