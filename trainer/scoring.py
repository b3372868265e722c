"""Values of many examples without a gradient: of a split, or of sampled answers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainer.batches import Batch, build, divide
from trainer.config import Packing
from trainer.data.examples import Example
from trainer.world import World

Score = Callable[[Batch], Tensor]
"""From a batch on the device to one value for each sequence."""


def score(
    examples: Sequence[Example], values: Score, world: World, *, packing: Packing, capacity: int, pad_id: int
) -> list[tuple[float, ...]]:
    """One value for each answer of each example, the work divided over all ranks.

    Args:
        examples: At least one; the same on every rank.
        values: Called equally often on every rank.
        world: The ranks.
        packing: How examples are laid out.
        capacity: Tokens of a micro-batch.
        pad_id: Fills padded batches.

    Returns:
        On every rank: for each example the values of its answers in order.
    """
    mine: dict[int, tuple[float, ...]] = {}
    with torch.no_grad():
        for places in divide(examples, packing, capacity, ranks=world.size)[world.rank]:
            chosen = [examples[place] for place in places] or [examples[0]]
            found = values(build(chosen, packing, pad_id).to(world.device)).tolist()
            start = 0
            for place in places:
                end = start + len(examples[place].answers)
                mine[place] = tuple(found[start:end])
                start = end
    whole = {place: each for part in world.every(mine) for place, each in part.items()}
    return [whole[place] for place in range(len(examples))]
