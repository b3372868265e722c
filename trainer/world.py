"""The processes of a round: who I am among them, and what we tell one another."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class World:
    """This process among those of the round.

    Attributes:
        rank: From 0; rank 0 writes and speaks for all.
        size: Number of processes.
        device: Where this process computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all processes, in float64."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def every(self, value: Any) -> list[Any]:
        """What each process has to say, by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def from_first(self, value: Any) -> Any:
        """What rank 0 has to say; the others' values are not looked at."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


def join() -> World:
    """Joins the processes that a launcher started, or makes a world of one."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.setdefault("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        if size == 1:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(backend, rank=rank, world_size=size)
    return World(rank, size, torch.device("cuda", local) if on_gpu else torch.device("cpu"))
