"""The devices of this machine and their memory, asked without loading torch."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Literal

import psutil

from ratchet.errors import UsageError

_UNITS = {
    "": 1,
    "B": 1,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)\s*")


@dataclass(frozen=True)
class Device:
    """What a round runs on.

    Attributes:
        kind: `cuda`, or `cpu`, whose memory all processes of a round share.
        bytes: Memory of one device; on a CPU what is free now.
    """

    kind: Literal["cpu", "cuda"]
    bytes: int

    def share(self, processes: int) -> int:
        """Memory that one process of a round may use."""
        return self.bytes // processes if self.kind == "cpu" else self.bytes


def here() -> Device:
    """The device that a round on this machine uses: the smallest of its GPUs, else the host."""
    program = shutil.which("nvidia-smi")
    if program is not None:
        query = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        sizes = [int(line) for line in done.stdout.split() if line.isdigit()]
        if done.returncode == 0 and sizes:
            return Device("cuda", min(sizes) << 20)
    return Device("cpu", psutil.virtual_memory().available)


def size_of(text: str) -> int:
    """Reads an amount of memory such as `80GiB`.

    Raises:
        UsageError: It is none.
    """
    found = _SIZE.fullmatch(text)
    if found is None or (unit := found["unit"].upper()) not in _UNITS:
        raise UsageError(f"{text!r} is no amount of memory: 80GiB, 24GB or 512MiB are")
    return round(float(found["number"]) * _UNITS[unit])
