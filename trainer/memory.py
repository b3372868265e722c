"""The most memory a process held."""

import resource
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """Largest resident memory of this process, of this program alone where the kernel says so."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_device_bytes() -> int | None:
    """Largest memory allocated on this process's accelerator; None on CPUs."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
