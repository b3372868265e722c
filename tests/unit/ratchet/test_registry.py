"""Model folders: what makes a policy's identity, what is refused and why, and a folder's decode config."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ratchet.canonical import digest_of, digest_of_file
from ratchet.decode import DecodeConfig
from ratchet.errors import DecodeConfigError, PolicyRefused
from ratchet.model_folder import SOURCE, inspect, source_of
from ratchet.registry import check_decode, default_decode, policy_digest
from tests.support.tiny_model import CHAT_TEMPLATE, VOCABULARY, make_tiny_model

Change = Callable[[Path], None]
IDENTITY = ("weights_digest", "tokenizer_digest", "template_digest")


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder that no test changes."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "tiny"))


def edit(file: str, **changes: Any) -> Change:
    """Changes keys of a JSON file; None removes one."""

    def change(folder: Path) -> None:
        document = json.loads((folder / file).read_text())
        document.update(changes)
        kept = {key: value for key, value in document.items() if value is not None}
        (folder / file).write_text(json.dumps(kept))

    return change


def remove(*files: str) -> Change:
    """Removes files."""

    def change(folder: Path) -> None:
        for file in files:
            (folder / file).unlink()

    return change


def write(file: str, content: bytes | str) -> Change:
    """Writes a file."""

    def change(folder: Path) -> None:
        (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def both(*changes: Change) -> Change:
    """One change after the other."""

    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def shard(folder: Path) -> None:
    """Splits the weights into two files and an index, as transformers does with large models."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    for file, half in halves.items():
        save_file({name: tensors[name] for name in half}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, half in halves.items() for name in half}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    (folder / "model.safetensors").unlink()


def cut(file: str, to: int) -> Change:
    """Cuts a file short: to so many bytes, or by so many when negative."""

    def change(folder: Path) -> None:
        (folder / file).write_bytes((folder / file).read_bytes()[:to])

    return change


def scale_one_weight(folder: Path) -> None:
    """Changes one weight by a thousandth."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].copy()
    tensors["model.norm.weight"][0] *= np.float32(1.001)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_what_a_folder_holds(original: Path):
    read: list[int] = []
    found = inspect(original, read.append)
    assert found.architecture == {
        "model_type": "llama",
        "architecture": "LlamaForCausalLM",
        "parameters": 2_016_960,
        "dtype": "float32",
        "context_length": 2048,
        "vocab_size": 640,
        "weight_bytes": (original / "model.safetensors").stat().st_size,
        "clock_in_template": False,
    }
    assert found.files == {file.name: digest_of_file(file) for file in original.iterdir()}
    assert found.template_digest == digest_of({"default": CHAT_TEMPLATE})
    assert found.sampling == {}
    assert sum(read) == sum(file.stat().st_size for file in original.iterdir())


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (scale_one_weight, {"weights_digest"}),
        (edit("config.json", rms_norm_eps=1e-5), {"weights_digest"}),
        (edit("generation_config.json", eos_token_id=2), {"weights_digest"}),
        (shard, {"weights_digest"}),
        (edit("tokenizer_config.json", eos_token="<|pad|>"), {"tokenizer_digest"}),
        (edit("tokenizer.json", truncation={"max_length": 5}), {"tokenizer_digest"}),
        (write("special_tokens_map.json", "{}"), {"tokenizer_digest"}),
        (write("chat_template.jinja", CHAT_TEMPLATE + " "), {"template_digest"}),
        (write("chat_template.jinja", "{{ messages[0]['content'] }}"), {"template_digest"}),
    ],
)
def test_each_change_shows_in_the_digest_it_belongs_to(
    original: Path, folder: Path, change: Change, differs: set[str]
):
    change(folder)
    before, after = inspect(original), inspect(folder)
    assert {name for name in IDENTITY if getattr(before, name) != getattr(after, name)} == differs
    assert policy_digest(before, DecodeConfig()) != policy_digest(after, DecodeConfig())


@pytest.mark.parametrize(
    "change",
    [
        write("README.md", "about"),
        write("training_args.bin", b"\x80\x04"),
        edit("config.json", transformers_version="9.9", _name_or_path="elsewhere"),
        edit("generation_config.json", temperature=0.3, do_sample=True),
        both(remove("chat_template.jinja"), edit("tokenizer_config.json", chat_template=CHAT_TEMPLATE)),
        both(
            remove("chat_template.jinja"),
            edit("tokenizer_config.json", chat_template=[{"name": "default", "template": CHAT_TEMPLATE}]),
        ),
        edit("tokenizer_config.json", chat_template="the file beside it counts"),
    ],
)
def test_what_is_not_content_changes_no_digest(original: Path, folder: Path, change: Change):
    change(folder)
    before, after = inspect(original), inspect(folder)
    assert [getattr(after, name) for name in IDENTITY] == [getattr(before, name) for name in IDENTITY]


def test_shards_and_more_templates_are_taken_along(folder: Path):
    shard(folder)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    write("consolidated.safetensors", "not named by the index")(folder)
    found = inspect(folder)
    assert sorted(found.files) == [
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert found.architecture["parameters"] == 2_016_960
    assert found.template_digest == digest_of({"default": CHAT_TEMPLATE, "tool_use": "{{ tools }}"})


def test_a_template_that_writes_the_date_is_noted(folder: Path):
    write("chat_template.jinja", "{{ strftime_now('%d %b %Y') }}" + CHAT_TEMPLATE)(folder)
    assert inspect(folder).architecture["clock_in_template"]


def test_links_are_followed(original: Path, tmp_path: Path):
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for file in original.iterdir():
        (linked / file.name).symlink_to(file)
    assert inspect(linked).files == inspect(original).files


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (remove("config.json"), r"has no config\.json: give a Hugging Face model folder"),
        (both(remove("config.json"), write("adapter_config.json", "{}")), "merge it into its base model"),
        (write("config.json", "{"), r"config\.json is no JSON"),
        (write("config.json", "[]"), "holds no JSON object"),
        (edit("config.json", architectures=None), "names no model_type and architectures"),
        (
            edit("config.json", architectures=["BertForMaskedLM"]),
            "BertForMaskedLM is no causal language model",
        ),
        (edit("config.json", architectures=["LlamaForSequenceClassification"]), "no causal language model"),
        (edit("config.json", auto_map={"AutoModelForCausalLM": "m.M"}), "code of its own"),
        (edit("config.json", vocab_size=None), "states no vocab_size"),
        (edit("config.json", max_position_embeddings=None), "states no max_position_embeddings"),
        (remove("tokenizer.json"), "has no tokenizer"),
        (remove("chat_template.jinja"), "has no chat template"),
        (write("chat_template.jinja", " \n"), "has no chat template"),
        (write("chat_template.jinja", b"\xff\xfe"), "no UTF-8 text"),
        (
            both(remove("chat_template.jinja"), edit("tokenizer_config.json", chat_template=[{"name": "x"}])),
            "no list of name and template",
        ),
        (remove("model.safetensors"), "has no weights"),
        (
            both(remove("model.safetensors"), write("pytorch_model.bin", b"\x80\x04")),
            r"pickles \(pytorch_model\.bin\), which can run code",
        ),
        (cut("model.safetensors", -1), r"model\.safetensors is truncated or corrupt"),
        (cut("model.safetensors", 1000), r"model\.safetensors is truncated or corrupt"),
        (cut("model.safetensors", 0), r"model\.safetensors is truncated or corrupt"),
        (write("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "truncated or corrupt"),
        (both(shard, remove("model-00002-of-00002.safetensors")), "is missing, which model"),
        (both(shard, cut("model-00001-of-00002.safetensors", -8)), "truncated or corrupt"),
        (
            both(shard, edit("model.safetensors.index.json", weight_map={"a": "../other.safetensors"})),
            "outside its folder",
        ),
        (both(shard, edit("model.safetensors.index.json", weight_map={})), "has no weight_map"),
        (
            both(
                shard,
                edit("model.safetensors.index.json", weight_map={"lost": "model-00001-of-00002.safetensors"}),
            ),
            "lacks the tensor lost",
        ),
        (lambda folder: save_file({}, folder / "model.safetensors"), "has no parameters"),
    ],
)
def test_what_cannot_be_a_policy_is_refused_with_its_reason(folder: Path, change: Change, reason: str):
    change(folder)
    with pytest.raises(PolicyRefused, match=reason):
        inspect(folder)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path):
    with pytest.raises(PolicyRefused, match="is no folder"):
        inspect(tmp_path / "nowhere")


def test_the_default_decode_config_is_what_the_folder_states(folder: Path):
    edit(
        "generation_config.json", temperature=0.2, top_p=0.9, top_k=40, repetition_penalty=1.1, max_length=20
    )(folder)
    expected = DecodeConfig(temperature=0.2, top_p=0.9, top_k=40, repetition_penalty=1.1)
    assert default_decode(inspect(folder)) == expected


def test_without_stated_values_the_default_decode_config_is_neutral(folder: Path):
    assert default_decode(inspect(folder)) == DecodeConfig()
    remove("generation_config.json")(folder)
    assert default_decode(inspect(folder)) == DecodeConfig()


def test_the_default_answer_takes_at_most_half_a_short_context(folder: Path):
    edit("config.json", max_position_embeddings=300)(folder)
    assert default_decode(inspect(folder)).max_tokens == 150


def test_a_stated_value_out_of_range_is_refused_with_its_file(folder: Path):
    edit("generation_config.json", temperature=7.0)(folder)
    with pytest.raises(DecodeConfigError, match=r"generation_config\.json: temperature"):
        default_decode(inspect(folder))


@pytest.mark.parametrize(
    ("decode", "reason"),
    [
        (DecodeConfig(max_tokens=2048), "max_tokens 2048 leaves no room for a prompt"),
        (DecodeConfig(logit_bias={VOCABULARY: 1.0, 5: 1.0}), "logit_bias names token 640, .* ends at 639"),
    ],
)
def test_a_decode_config_that_does_not_fit_the_model_is_refused(decode: DecodeConfig, reason: str):
    with pytest.raises(DecodeConfigError, match=reason):
        check_decode(decode, {"context_length": 2048, "vocab_size": VOCABULARY})


def test_a_decode_config_at_the_model_s_limits_is_accepted():
    decode = DecodeConfig(max_tokens=2047, logit_bias={0: 1.0, VOCABULARY - 1: -1.0})
    check_decode(decode, {"context_length": 2048, "vocab_size": VOCABULARY})


def test_the_policy_digest_is_that_of_its_four_components(original: Path):
    found = inspect(original)
    expected = digest_of(
        {
            "weights": found.weights_digest,
            "tokenizer": found.tokenizer_digest,
            "template": found.template_digest,
            "decode": DecodeConfig().digest,
        }
    )
    assert policy_digest(found, DecodeConfig()) == expected
    assert policy_digest(found, DecodeConfig(temperature=0.5)) != expected


def test_the_source_of_a_fetched_folder_holds_only_while_its_files_are_whole(folder: Path):
    assert source_of(folder) is None
    source = {"name": "m", "files": {"model.safetensors": (folder / "model.safetensors").stat().st_size}}
    write(SOURCE, json.dumps(source))(folder)
    assert source_of(folder) == source
    cut("model.safetensors", -1)(folder)
    assert source_of(folder) is None
