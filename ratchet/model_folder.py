"""A Hugging Face model folder, read without torch: what it holds, and why it may not be what it shall be."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from ratchet.canonical import digest_of
from ratchet.errors import PolicyRefused

CONFIG = "config.json"
GENERATION = "generation_config.json"
SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
DEFAULT_TEMPLATE = "default"
SOURCE = "ratchet-source.json"
"""Written last into a folder that was fetched: what it was made from, and `files`, the size of each."""

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt")
"""Any one of these makes a tokenizer."""
TOKENIZER_FILES = (
    *VOCABULARIES, "merges.txt", "added_tokens.json", "special_tokens_map.json", TOKENIZER_CONFIG,
)  # fmt: skip
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling values of `generation_config.json` that make a default decode config."""

CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How architectures are named that may be a policy."""
SCORING = ("ForSequenceClassification",)
"""How architectures are named that may be a reward model."""

_NOT_CONTENT = ("transformers_version", "_name_or_path", "_from_model_config", "do_sample", *SAMPLING_KEYS)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
}
_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class ModelFolder:
    """What a folder holds that a policy is made of.

    Attributes:
        path: The folder.
        files: Path within the folder to SHA-256, of every file that counts; the others are left out.
        weights_digest: Over the tensor files' bytes and the model's configuration. Versions of libraries and
            names of origin do not count, nor do sampling values, which belong to the decode config.
        tokenizer_digest: Over the tokenizer files' bytes, and its configuration without chat templates.
        template_digest: Over the chat templates' texts, wherever they stand.
        architecture: model_type, architecture, parameters, dtype, context_length (tokens), vocab_size,
            weight_bytes, clock_in_template (the chat template writes the date, so its tokens differ by day).
        sampling: What `generation_config.json` states of `SAMPLING_KEYS`.
    """

    path: Path
    files: dict[str, str]
    weights_digest: str
    tokenizer_digest: str
    template_digest: str
    architecture: dict[str, Any]
    sampling: dict[str, Any]


def inspect(
    path: Path, progress: Callable[[int], None] | None = None, *, kinds: tuple[str, ...] = CAUSAL
) -> ModelFolder:
    """Reads a folder to the last byte.

    Args:
        path: The folder.
        progress: Told the number of bytes just read.
        kinds: What its architecture's name may end with.

    Raises:
        PolicyRefused: It cannot become a policy; the message says why and names the file.
    """
    if not path.is_dir():
        raise PolicyRefused(f"{path} is no folder")
    try:
        return _inspect(path, progress, kinds)
    except OSError as error:
        raise PolicyRefused(f"{path} cannot be read: {error}") from error


def source_of(path: Path) -> dict[str, Any] | None:
    """What a fetched folder was made from; None when it was not fetched, or lacks a file or part of one."""
    try:
        document: dict[str, Any] = json.loads((path / SOURCE).read_text("utf-8"))
        sizes: dict[str, int] = document["files"]
        whole = all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return None
    return document if whole else None


def _inspect(path: Path, progress: Callable[[int], None] | None, kinds: tuple[str, ...]) -> ModelFolder:
    config = _config(path, kinds)
    tokenizer_files = _tokenizer_files(path)
    tokenizer_config = _json(path / TOKENIZER_CONFIG) if TOKENIZER_CONFIG in tokenizer_files else {}
    templates = _templates(path, tokenizer_config)
    weight_files = _weight_files(path)
    parameters, dtype = _tensors(path, weight_files)
    generation = _json(path / GENERATION) if (path / GENERATION).exists() else {}

    template_files = sorted(file for file in (TEMPLATE, *_more_templates(path)) if (path / file).exists())
    names = {CONFIG, *weight_files, *tokenizer_files, *template_files}
    names |= {name for name in (GENERATION, INDEX) if (path / name).exists() and _counts(name, weight_files)}
    files = {name: _sha256(path / name, progress) for name in sorted(names)}

    return ModelFolder(
        path=path,
        files=files,
        weights_digest=digest_of(
            {
                "files": {name: files[name] for name in weight_files},
                "config": _content(config),
                "generation": _content(generation),
            }
        ),
        tokenizer_digest=digest_of(
            {
                "files": {name: files[name] for name in tokenizer_files if name != TOKENIZER_CONFIG},
                "config": _content(tokenizer_config, "chat_template"),
            }
        ),
        template_digest=digest_of(templates),
        architecture={
            "model_type": config["model_type"],
            "architecture": config["architectures"][0],
            "parameters": parameters,
            "dtype": dtype,
            "context_length": _whole_number(path, config, *CONTEXT_KEYS),
            "vocab_size": _whole_number(path, config, "vocab_size"),
            "weight_bytes": sum((path / name).stat().st_size for name in weight_files),
            "clock_in_template": any("strftime_now" in text for text in templates.values()),
        },
        sampling={key: generation[key] for key in SAMPLING_KEYS if generation.get(key) is not None},
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise PolicyRefused(f"{file} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise PolicyRefused(f"{file} holds no JSON object")
    return document  # pyright: ignore[reportUnknownVariableType]


def _config(path: Path, kinds: tuple[str, ...]) -> dict[str, Any]:
    if not (path / CONFIG).exists():
        hint = " (it is an adapter: merge it into its base model first)" if _is_adapter(path) else ""
        raise PolicyRefused(f"{path} has no {CONFIG}{hint}: give a Hugging Face model folder")
    config = _json(path / CONFIG)
    architectures: Any = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or "model_type" not in config:
        raise PolicyRefused(f"{path / CONFIG} names no model_type and architectures, so no one can load it")
    if not str(architectures[0]).endswith(kinds):  # pyright: ignore[reportUnknownArgumentType]
        wanted = (
            "causal language model, and a policy must be one"
            if kinds == CAUSAL
            else f"{kinds[0].removeprefix('For')} model"
        )
        raise PolicyRefused(f"{path / CONFIG}: {architectures[0]} is no {wanted}")
    if "auto_map" in config:
        raise PolicyRefused(
            f"{path / CONFIG} asks for Python code of its own (auto_map), which is never run here: "
            "use a model that transformers and vLLM know"
        )
    return config


def _is_adapter(path: Path) -> bool:
    return (path / "adapter_config.json").exists()


def _tokenizer_files(path: Path) -> list[str]:
    found = sorted(name for name in TOKENIZER_FILES if (path / name).is_file())
    if not any(name in VOCABULARIES for name in found):
        raise PolicyRefused(f"{path} has no tokenizer: one of {', '.join(VOCABULARIES)} is needed")
    return found


def _templates(path: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    stated: Any = tokenizer_config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(stated, str):
        templates[DEFAULT_TEMPLATE] = stated
    elif isinstance(stated, list):
        try:
            templates = {str(item["name"]): str(item["template"]) for item in stated}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        except (KeyError, TypeError) as error:
            raise PolicyRefused(
                f"{path / TOKENIZER_CONFIG}: chat_template is no list of name and template"
            ) from error
    try:
        if (path / TEMPLATE).exists():
            templates[DEFAULT_TEMPLATE] = (path / TEMPLATE).read_text("utf-8")
        for name in _more_templates(path):
            templates[PurePosixPath(name).stem] = (path / name).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyRefused(f"{path}: a chat template is no UTF-8 text: {error}") from error
    if not templates.get(DEFAULT_TEMPLATE, "").strip():
        raise PolicyRefused(
            f"{path} has no chat template: {TEMPLATE}, or chat_template in {TOKENIZER_CONFIG}, is needed"
        )
    return templates


def _more_templates(path: Path) -> list[str]:
    return sorted(f"{MORE_TEMPLATES}/{file.name}" for file in (path / MORE_TEMPLATES).glob("*.jinja"))


def _weight_files(path: Path) -> list[str]:
    """The tensor files that transformers would load: the single file, else the shards its index names."""
    if (path / SINGLE_FILE).exists():
        return [SINGLE_FILE]
    if (path / INDEX).exists():
        weight_map: Any = _json(path / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise PolicyRefused(f"{path / INDEX} has no weight_map")
        shards = sorted({str(shard) for shard in weight_map.values()})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        for shard in shards:
            if PurePosixPath(shard).name != shard:
                raise PolicyRefused(f"{path / INDEX} names a file outside its folder: {shard}")
            if not (path / shard).exists():
                raise PolicyRefused(f"{path / shard} is missing, which {INDEX} names: copy the folder again")
        return shards
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        raise PolicyRefused(
            f"{path} has its weights as pickles ({pickles[0]}), which can run code when they are loaded: "
            "save it again as safetensors (`model.save_pretrained(folder)`)"
        )
    raise PolicyRefused(f"{path} has no weights: {SINGLE_FILE}, or {INDEX} with its shards, is needed")


def _tensors(path: Path, weight_files: list[str]) -> tuple[int, str]:
    """Number of parameters and their most common dtype, from the files' headers."""
    elements: Counter[str] = Counter()
    where: dict[str, str] = {}
    for name in weight_files:
        try:
            reader: Any = safe_open(path / name, framework="np")
            with reader as file:
                for tensor in file.keys():  # noqa: SIM118
                    part = file.get_slice(tensor)
                    elements[part.get_dtype()] += prod(part.get_shape())
                    where[tensor] = name
        except SafetensorError as error:
            raise PolicyRefused(
                f"{path / name} is truncated or corrupt: {error}; copy the file again"
            ) from error
    if not elements.total():
        raise PolicyRefused(f"{path} has no parameters in {', '.join(weight_files)}")
    if weight_files != [SINGLE_FILE]:
        mapped: dict[str, str] = _json(path / INDEX)["weight_map"]
        lost = sorted(tensor for tensor, shard in mapped.items() if where.get(tensor) != shard)
        if lost:
            raise PolicyRefused(
                f"{path / mapped[lost[0]]} lacks the tensor {lost[0]}, which {INDEX} promises"
            )
    kind = elements.most_common(1)[0][0]
    return elements.total(), _DTYPES.get(kind, kind.lower())


def _whole_number(path: Path, config: dict[str, Any], *keys: str) -> int:
    for key in keys:
        if isinstance(config.get(key), int):
            return int(config[key])
    raise PolicyRefused(f"{path / CONFIG} states no {' or '.join(keys)}")


def _counts(name: str, weight_files: list[str]) -> bool:
    return name != INDEX or weight_files != [SINGLE_FILE]


def _content(document: dict[str, Any], *left_out: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in (*_NOT_CONTENT, *left_out)}


def _sha256(file: Path, progress: Callable[[int], None] | None) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as reader:
        while piece := reader.read(_READ_BYTES):
            digest.update(piece)
            if progress:
                progress(len(piece))
    return digest.hexdigest()
