"""How an engine is started: vLLM's command line and environment for one policy on this machine."""

import json
import shlex
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ratchet.errors import ConfigError
from ratchet.supervisor import environment
from ratchet.supervisor.settings import SupervisorSettings

ENTRY = "vllm.entrypoints.openai.api_server"
HOST = "127.0.0.1"
STOPS = 16 + 4
"""Stop texts of a request: the pinned ones and the client's own; vLLM takes four unless told."""

_TOOL_PARSERS = (
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ("Environment: ipython", "llama3_json"),
    ("<|tool_call|>", "granite"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
)
"""What a chat template that knows tools writes, and vLLM's parser of it."""


@dataclass(frozen=True)
class Boot:
    """One start of one engine.

    Attributes:
        folder: The policy's artefact folder.
        served: The policy, `name@version`, which vLLM answers to.
        context: Its context in tokens, as its row says.
        port: Where it listens.
        fingerprint: What it stamps on every answer.
        cores: Cores to compute on; ignored on a GPU.
        api_key: Key it asks for.
    """

    folder: Path
    served: str
    context: int
    port: int
    fingerprint: str
    cores: tuple[int, ...]
    api_key: str


def command(boot: Boot, settings: SupervisorSettings) -> tuple[str, ...]:
    """The words of the command that starts the engine.

    Raises:
        ConfigError: `RATCHET_ENGINE_COMMAND` or `RATCHET_ENGINE_OPTIONS` cannot be read.
    """
    parts = {
        "python": sys.executable,
        "model": str(boot.folder),
        "served": boot.served,
        "host": HOST,
        "port": str(boot.port),
        "fingerprint": boot.fingerprint,
    }
    whole = (sys.executable, "-m", ENTRY, *options(boot, settings))
    words: list[str] = []
    for word in _split("RATCHET_ENGINE_COMMAND", settings.engine_command):
        if word == "{command}":
            words += whole
            continue
        try:
            words.append(word.format_map(parts))
        except (KeyError, ValueError, IndexError) as error:
            raise ConfigError(
                f"RATCHET_ENGINE_COMMAND: cannot fill in {word!r}; known are {{command}} as a word of its "
                f"own, and {', '.join('{' + name + '}' for name in parts)}"
            ) from error
    return tuple(words)


def options(boot: Boot, settings: SupervisorSettings) -> list[str]:
    """vLLM's options: the policy as it is, nothing taken from the folder's own generation defaults.

    On a CPU nothing is compiled: an engine is up four times sooner, and answers as fast.
    """
    dtype = settings.engine_dtype or ("float32" if runs_on_cpu() else "auto")
    found = [
        "--model", str(boot.folder),
        "--served-model-name", boot.served,
        "--host", HOST,
        "--port", str(boot.port),
        "--fingerprint-mode", "custom",
        "--fingerprint-value", boot.fingerprint,
        "--logprobs-mode", "processed_logprobs",
        "--generation-config", "vllm",
        "--dtype", dtype,
        "--max-model-len", str(min(boot.context, settings.engine_max_model_len)),
    ]  # fmt: skip
    if runs_on_cpu():
        found.append("--enforce-eager")
    parser = tool_parser(boot.folder)
    if parser is not None:
        found += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    return found + _split("RATCHET_ENGINE_OPTIONS", settings.engine_options)


def variables(boot: Boot, settings: SupervisorSettings) -> dict[str, str]:
    """The engine's environment."""
    given = {"VLLM_MAX_STOP_STRINGS": str(STOPS)}
    if runs_on_cpu():
        given |= {
            "VLLM_CPU_KVCACHE_SPACE": str(settings.engine_kv_gib),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in boot.cores),
        }
        preloaded = ":".join(str(library) for library in preloads())
        if preloaded:
            given["LD_PRELOAD"] = preloaded
    return environment.of_engine(given, {"VLLM_API_KEY": boot.api_key})


def tool_parser(folder: Path) -> str | None:
    """vLLM's parser for the tool calls this folder's chat template teaches; None where it teaches none."""
    template = folder / "chat_template.jinja"
    text = template.read_text("utf-8") if template.exists() else ""
    if not text and (folder / "tokenizer_config.json").exists():
        text = str(
            json.loads((folder / "tokenizer_config.json").read_text("utf-8")).get("chat_template") or ""
        )
    if "tools" not in text:
        return None
    return next((parser for mark, parser in _TOOL_PARSERS if mark in text), None)


@cache
def runs_on_cpu() -> bool:
    """Whether the vLLM installed here is the CPU build."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return not Path("/dev/nvidiactl").exists()
    return True


@cache
def preloads() -> tuple[Path, ...]:
    """Libraries to preload for speed on a CPU, those of them that are there: tcmalloc and Intel's OpenMP."""
    data = Path(sysconfig.get_path("data")) / "lib"
    system = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64")]
    wanted = (
        ([*system, data], ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")),
        ([data], ("libiomp5.so",)),
    )
    found: list[Path] = []
    for folders, names in wanted:
        paths = (folder / name for name in names for folder in folders)
        first = next((path for path in paths if path.exists()), None)
        if first is not None:
            found.append(first)
    return tuple(found)


def _split(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
