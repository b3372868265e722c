"""A real, tiny Llama made on the spot, without torch: the same folder for the same seed, in a moment."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 640
CONTEXT = 2048
HIDDEN = 192
INTERMEDIATE = 512
LAYERS = 4
HEADS = 3
KEY_VALUE_HEADS = 3
HEAD_SIZE = 64
BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

TEXT = """
A ratchet turns one way: each tooth that passes holds what was gained, and nothing slips back.
The baker weighs the flour in the morning, warms the water, and waits for the dough to rise.
Every river begins as rain on a hill; count the streams, and you will know how wide it becomes.
Ask a question plainly, and the answer has room to be plain as well. What is the sum of two and three?
She wrote to the harbour office on Tuesday about the late ferry, and they answered on Friday.
Seven lamps hung above the long table, but only four of them were lit when the guests arrived.
Please sort the letters by date, keep the oldest on top, and tell me which ones are missing a stamp.
Snow covered the railway line between the two villages, so the teacher walked home along the canal.
If the clock strikes twelve before the kettle boils, open the window and call the children inside.
Most gardens want less water than people give them, more light than walls allow, and some patience.
The engineer measured the bridge twice, found the same length both times, and signed the report.
Could you explain why the moon looks larger near the horizon? I have wondered about it for years.
He sold the old boat, bought a bicycle, and rode north until the road ended at a quiet lighthouse.
"""


def make_tiny_model(path: Path, seed: int = 0) -> Path:
    """Writes a Llama folder of about two million float32 parameters.

    Tokenizer (byte-level BPE that begins every text with BOS) and chat template do not depend on the seed.
    Sampled answers are gibberish that seldom ends by itself: give `max_tokens`.

    Args:
        path: Folder to make; its files are overwritten.
        seed: Decides the weights.

    Returns:
        `path`.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    _write(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
        },
    )
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    ids = {
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "pad_token_id": tokenizer.token_to_id(PAD),
    }
    _write(path / "generation_config.json", ids)
    _write(
        path / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KEY_VALUE_HEADS,
            "head_dim": HEAD_SIZE,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": CONTEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            **ids,
        },
    )
    save_file(_weights(seed), path / "model.safetensors", metadata={"format": "pt"})
    return path


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=[AddedToken(token, special=True) for token in (BOS, EOS, PAD, *ROLES)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise AssertionError(f"the text gave {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def _weights(seed: int) -> dict[str, NDArray[np.float32]]:
    draw = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (draw.standard_normal((rows, columns)) * 0.08).astype(np.float32)

    def ones() -> NDArray[np.float32]:
        return np.ones(HIDDEN, dtype=np.float32)

    weights = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN)}
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        weights |= {
            f"{layer}.input_layernorm.weight": ones(),
            f"{layer}.self_attn.q_proj.weight": matrix(HEADS * HEAD_SIZE, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": matrix(KEY_VALUE_HEADS * HEAD_SIZE, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": matrix(KEY_VALUE_HEADS * HEAD_SIZE, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_SIZE),
            f"{layer}.post_attention_layernorm.weight": ones(),
            f"{layer}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{layer}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{layer}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    return weights | {"model.norm.weight": ones(), "lm_head.weight": matrix(VOCABULARY, HIDDEN)}
