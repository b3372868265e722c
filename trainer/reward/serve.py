"""A reward model behind vLLM's pooling runner, on a socket in the data folder.

The socket, unlike a port, is out of reach for processes that do not see the data folder, the evaluator's
among them. `POST /classify` with `{"model": ..., "input": [[token, ...], ...]}` answers with one raw score in
`data[i].probs`: the last token is pooled, which is the last real one, since an engine pads nothing.
"""

import os
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from ratchet.errors import AlreadyRunning, EnvironmentFault
from ratchet.supervisor import environment, vllm
from ratchet.supervisor.child import Child, Command, end_all

LONGEST_SOCKET = 100
"""Bytes of a Unix socket's path; the system allows 107."""
_START_TIMEOUT_S = 300.0
_POLL_S = 0.25
_GRACE_S = 5.0


def command(folder: Path, served: str, address: Path, max_length: int) -> list[str]:
    """The words that start the server.

    Args:
        folder: The plain reward model.
        served: Its `name@version`, which the server answers to.
        address: Socket it listens on.
        max_length: Tokens of a sequence at most.
    """
    on_cpu = vllm.runs_on_cpu()
    words = [
        sys.executable, "-m", vllm.ENTRY,
        "--model", str(folder),
        "--served-model-name", served,
        "--uds", str(address),
        "--runner", "pooling",
        "--pooler-config", '{"use_activation": false}',
        "--max-model-len", str(max_length),
        "--dtype", "float32" if on_cpu else "auto",
    ]  # fmt: skip
    return [*words, "--enforce-eager"] if on_cpu else words


def variables() -> dict[str, str]:
    """The server's environment: an engine's, without a key, since its socket is the border."""
    given: dict[str, str] = {}
    if vllm.runs_on_cpu():
        cores = sorted(os.sched_getaffinity(0))
        given |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
        preloaded = ":".join(str(library) for library in vllm.preloads())
        if preloaded:
            given["LD_PRELOAD"] = preloaded
    return environment.of_engine(given, {})


@contextmanager
def served(folder: Path, name: str, address: Path, log: Path, max_length: int) -> Generator[Child]:
    """Runs a server; inside it answers, and behind it is gone with all it started.

    Args:
        folder: The plain reward model.
        name: Its `name@version`.
        address: Socket it listens on; made anew.
        log: File its output is added to.
        max_length: Tokens of a sequence at most.

    Raises:
        AlreadyRunning: Another server listens there.
        EnvironmentFault: It does not start, or the socket's path is too long.
    """
    if len(bytes(address)) > LONGEST_SOCKET:
        raise EnvironmentFault(f"{address} is too long for a socket's path: choose a shorter --data-dir")
    if _listens(address):
        raise AlreadyRunning(f"{name} is served at {address} already: end that server first")
    address.unlink(missing_ok=True)
    words = tuple(command(folder, name, address, max_length))
    server = Child(Command("reward", words, variables(), cwd=address.parent, log=log, grace_s=_GRACE_S))
    try:
        _wait_until_healthy(server, address)
        yield server
    finally:
        end_all([server])
        address.unlink(missing_ok=True)


def client(address: Path) -> httpx.Client:
    """A client of the server behind a socket."""
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(address)),
        base_url="http://reward",
        timeout=60.0,
        trust_env=False,
    )


def score(asking: httpx.Client, model: str, sequences: list[list[int]]) -> list[float]:
    """Raw scores of sequences of token ids, BOS and chat marks included.

    Raises:
        EnvironmentFault: The server refuses them, or cannot be reached.
    """
    try:
        answer = asking.post("/classify", json={"model": model, "input": sequences})
        answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        raise EnvironmentFault(
            f"the reward server refused ({error.response.status_code}): {error.response.text[:300]}"
        ) from error
    except httpx.TransportError as error:
        raise EnvironmentFault(f"the reward server cannot be reached: {error}") from error
    data = sorted(answer.json()["data"], key=lambda item: item["index"])
    return [float(item["probs"][0]) for item in data]


def _wait_until_healthy(server: Child, address: Path) -> None:
    while not server.has_ended() and server.lived_s() < _START_TIMEOUT_S:
        if _listens(address) and _is_healthy(address):
            return
        time.sleep(_POLL_S)
    raise EnvironmentFault(f"the reward server does not answer: {server.why()} (log: {server.command.log})")


def _listens(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as knocking:
        try:
            knocking.connect(str(address))
        except OSError:
            return False
    return True


def _is_healthy(address: Path) -> bool:
    with client(address) as asking:
        try:
            return asking.get("/health").status_code == 200
        except httpx.TransportError:
            return False
