"""Golden log-probabilities against a forward pass written here in NumPy, and the folders that have none."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from ratchet.errors import PolicyRefused
from tests.support.tiny_model import BOS, EOS, HEAD_SIZE, HEADS, LAYERS, make_tiny_model
from trainer.golden import CHATS, TEXTS, golden

Array = NDArray[np.float64]


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder that no test changes."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "tiny"))


def llama_logprobs(folder: Path, token_ids: list[int]) -> Array:
    """Log-probability of each token but the first, in float64, as Touvron et al. 2023 (section 2.2) build it.

    Pre-normalisation by RMSNorm, rotary embeddings on queries and keys (Su et al. 2021, section 3.4; halves
    rotated, as Hugging Face stores the weights), causal softmax attention, SwiGLU.
    """
    weights = {
        name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()
    }
    length = len(token_ids)

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weights[f"{name}.weight"]

    def heads(x: Array, name: str) -> Array:
        return (x @ weights[f"{name}.weight"].T).reshape(length, HEADS, HEAD_SIZE).swapaxes(0, 1)

    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE))
    cos, sin = np.cos(angles), np.sin(angles)

    def rotate(x: Array) -> Array:
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    x = weights["model.embed_tokens.weight"][token_ids]
    future = np.triu(np.full((length, length), -np.inf), k=1)
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        normed = norm(x, f"{layer}.input_layernorm")
        query, key, value = (heads(normed, f"{layer}.self_attn.{part}_proj") for part in "qkv")
        scores = rotate(query) @ rotate(key).swapaxes(1, 2) / np.sqrt(HEAD_SIZE) + future
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (attention / attention.sum(-1, keepdims=True)) @ value
        x = x + mixed.swapaxes(0, 1).reshape(length, -1) @ weights[f"{layer}.self_attn.o_proj.weight"].T
        normed = norm(x, f"{layer}.post_attention_layernorm")
        gate = normed @ weights[f"{layer}.mlp.gate_proj.weight"].T
        up = normed @ weights[f"{layer}.mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{layer}.mlp.down_proj.weight"].T
    logits = norm(x, "model.norm") @ weights["lm_head.weight"].T
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return logprobs[np.arange(length - 1), token_ids[1:]]


def test_golden_entries_equal_an_independent_forward_pass(original: Path):
    entries = golden(original)["entries"]
    assert len(entries) == 4
    for entry in entries:
        expected = llama_logprobs(original, entry["token_ids"])
        assert entry["logprobs"][0] is None
        np.testing.assert_allclose(entry["logprobs"][1:], expected, rtol=0, atol=2e-5)


def test_token_ids_are_those_of_the_tokenizer_and_the_chat_template(original: Path):
    tokenizer = Tokenizer.from_file(str(original / "tokenizer.json"))
    entries = golden(original)["entries"]
    assert [(entry["kind"], entry.get("text")) for entry in entries[:2]] == [("text", text) for text in TEXTS]
    assert [entry["token_ids"] for entry in entries[:2]] == [tokenizer.encode(text).ids for text in TEXTS]
    assert [(entry["kind"], entry.get("messages")) for entry in entries[2:]] == [
        ("chat", chat) for chat in CHATS
    ]
    system, user = (message["content"] for message in CHATS[1])
    written = f"{BOS}<|system|>\n{system}{EOS}\n<|user|>\n{user}{EOS}\n<|assistant|>\n"
    assert entries[3]["token_ids"] == tokenizer.encode(written, add_special_tokens=False).ids


def test_they_are_few_tokens_since_every_start_of_an_engine_asks_for_them(original: Path):
    assert sum(len(entry["token_ids"]) for entry in golden(original)["entries"]) < 250


def test_other_weights_show_in_every_entry(original: Path, tmp_path: Path):
    other = make_tiny_model(tmp_path / "other", seed=1)
    for one, another in zip(golden(original)["entries"], golden(other)["entries"], strict=True):
        assert one["token_ids"] == another["token_ids"]
        assert np.abs(np.subtract(one["logprobs"][1:], another["logprobs"][1:])).max() > 1


def test_another_template_shows_in_the_chats(original: Path, folder: Path):
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("eos_token + '\\n'", "eos_token"))
    before, after = golden(original)["entries"], golden(folder)["entries"]
    assert before[:2] == after[:2]
    assert all(
        one["token_ids"] != other["token_ids"] for one, other in zip(before[2:], after[2:], strict=True)
    )


def test_a_chat_with_a_system_message_is_left_out_where_the_template_refuses_it(folder: Path):
    template = folder / "chat_template.jinja"
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    template.write_text(refusal + template.read_text())
    entries = golden(folder)["entries"]
    assert [entry.get("messages") for entry in entries] == [None, None, CHATS[0]]


def test_chats_are_left_out_where_the_template_writes_the_date(folder: Path):
    template = folder / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %b %Y') }}" + template.read_text())
    assert [entry["kind"] for entry in golden(folder)["entries"]] == ["text", "text"]


def with_tensor(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Changes one tensor, or leaves it out where the change gives None."""

    def act(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[name] = change(tensors[name].copy())
        kept = {key: value for key, value in tensors.items() if value is not None}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})

    return act


def poison(tensor: Any) -> Any:
    """Puts one NaN into a tensor."""
    tensor[7, 7] = np.nan
    return tensor


def with_config(**changes: Any) -> Callable[[Path], None]:
    """Changes keys of the model's configuration."""

    def act(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return act


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            with_tensor("model.layers.3.mlp.up_proj.weight", poison),
            r"layers\.3\.mlp\.up_proj\.weight holds NaN",
        ),
        (with_tensor("model.embed_tokens.weight", poison), r"embed_tokens\.weight holds NaN"),
        (with_tensor("lm_head.weight", lambda _: None), r"the weights lack lm_head\.weight"),
        (with_tensor("model.norm.weight", lambda tensor: tensor[:10]), "transformers cannot load"),
        (with_config(model_type="unheard_of"), "transformers cannot load"),
        (with_config(max_position_embeddings=16), "a context of 16 tokens is too short"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "transformers cannot load"),
        (
            lambda folder: (folder / "chat_template.jinja").write_text("{% for %}"),
            "the chat template fails on a plain chat",
        ),
        (
            lambda folder: (folder / "chat_template.jinja").write_text("{{ raise_exception('never') }}"),
            "the chat template fails on a plain chat: never",
        ),
    ],
)
def test_a_folder_that_cannot_answer_is_refused_with_its_reason(
    folder: Path, change: Callable[[Path], None], reason: str
):
    change(folder)
    with pytest.raises(PolicyRefused, match=reason):
        golden(folder)


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused(folder: Path):
    document = json.loads((folder / "tokenizer.json").read_text())
    extra = {**document["added_tokens"][0], "id": 640, "content": "<|extra|>"}
    document["added_tokens"].append(extra)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(PolicyRefused, match="the tokenizer has 641 tokens, the weights 640 embeddings"):
        golden(folder)
