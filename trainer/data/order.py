"""The order of examples: a pure function of seed and step, so that a round resumes at any step.

Training reads an endless sequence: every example once in an order of epoch 0, once more in an order of
epoch 1, and so on; step `s` takes places `s * batch` to `(s + 1) * batch - 1`. The order of an epoch sorts
examples by a hash of seed, epoch and place, which no library version changes.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache


def examples_of_step(seed: int, step: int, *, examples: int, batch: int) -> list[int]:
    """Places of the examples that a step trains on.

    Args:
        seed: Decides the order; not negative.
        step: From 0.
        examples: How many examples there are.
        batch: Examples a step takes, over all ranks and micro-batches; may exceed `examples`.

    Raises:
        ValueError: A number is out of range.
    """
    if seed < 0 or step < 0 or examples < 1 or batch < 1:
        raise ValueError(
            f"no order for seed {seed}, step {step}, {examples} examples, batch {batch}: "
            "seed and step are 0 or more, the others 1 or more"
        )
    return [
        _epoch(seed, place // examples, examples)[place % examples]
        for place in range(step * batch, (step + 1) * batch)
    ]


def steps_of(epochs: float, *, examples: int, batch: int) -> int:
    """Steps that see at least `epochs` times every example, and at least one."""
    return max(1, -int(-epochs * examples // batch))


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, examples: int) -> Sequence[int]:
    key = hashlib.sha256(f"{seed} {epoch}".encode()).digest()

    def rank(place: int) -> tuple[bytes, int]:
        return hashlib.blake2b(place.to_bytes(8, "little"), key=key, digest_size=8).digest(), place

    return tuple(sorted(range(examples), key=rank))
