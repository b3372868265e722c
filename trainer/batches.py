"""A step's examples as micro-batches: for every rank equally many, whatever there is."""

from collections.abc import Sequence

from trainer.config import Packing
from trainer.data.branches import BranchRow, build_row, common_beginning
from trainer.data.examples import Example
from trainer.data.packing import pack, padded_batches
from trainer.data.padding import PaddedBatch, pad

Batch = BranchRow | PaddedBatch


def divide(
    examples: Sequence[Example], packing: Packing, capacity: int, *, ranks: int = 1
) -> list[list[list[int]]]:
    """Divides examples into micro-batches of at most `capacity` tokens.

    An example that is larger than that is a micro-batch by itself. Since engines that divide a model run in
    step, every rank gets the same number; where examples are too few some are empty.

    Returns:
        For each rank its micro-batches; for each the places of its examples.
    """
    if packing is Packing.BRANCHES:
        sizes = [example.size for example in examples]
        return pack(sizes, capacity, ranks=ranks, common=common_beginning(examples))
    if packing is Packing.PACKED:
        return pack([_plain(example) for example in examples], capacity, ranks=ranks)
    answers = max(len(example.answers) for example in examples)
    batches = padded_batches([_longest(example) for example in examples], max(1, capacity // answers))
    batches += [[] for _ in range(-len(batches) % ranks)]
    return [batches[rank::ranks] for rank in range(ranks)]


def build(examples: Sequence[Example], packing: Packing, pad_id: int) -> Batch:
    """Lays out one micro-batch.

    Args:
        examples: At least one.
        packing: How.
        pad_id: Fills padded batches.
    """
    if packing is Packing.PADDED:
        return pad(examples, pad_id)
    return build_row(examples, share=packing is Packing.BRANCHES)


def _plain(example: Example) -> int:
    return sum(len(example.prompt) + len(answer) for answer in example.answers)


def _longest(example: Example) -> int:
    return len(example.prompt) + max(map(len, example.answers))
