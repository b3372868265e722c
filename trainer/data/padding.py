"""Sequences padded to one length: the plain way, for what does not pack and as the measure of what does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from trainer.data.examples import Example


@dataclass(frozen=True)
class PaddedBatch:
    """One batch, ready for a model. A token is real by its mask, never by its id: pad may equal EOS.

    Attributes:
        input_ids: [sequences, tokens], int64.
        attention_mask: [sequences, tokens], int64: 1 where a token is real.
        position_ids: [sequences, tokens], int64: from 0 at the first real token; 0 at padding.
        columns: [columns], int64, ascending: the columns in which any sequence has something to score.
        pick: [scored], int64: the place, in the flattened [sequences, columns], whose next token is scored.
        target: [scored], int64: that next token.
        owner: [scored], int64, ascending: the sequence it belongs to.
        last: [sequences], int64: the column of each sequence's last real token.
        lengths: [sequences], int64: scored tokens of each sequence.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    columns: Tensor
    pick: Tensor
    target: Tensor
    owner: Tensor
    last: Tensor
    lengths: Tensor

    @property
    def tokens(self) -> int:
        """Tokens the batch computes, padding included."""
        return self.input_ids.numel()

    @property
    def sequences(self) -> int:
        """Sequences: for each example its answers in order."""
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str) -> Self:
        """The batch with its tensors on a device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True) for name, value in vars(self).items()
        }
        return type(self)(**moved)


def pad(examples: Sequence[Example], pad_id: int, *, side: Literal["left", "right"] = "right") -> PaddedBatch:
    """Pads examples to their longest sequence.

    Args:
        examples: At least one. Their sequences are numbered example by example, answers in order.
        pad_id: Fills the rest; any id will do.
        side: Where the padding goes.
    """
    sequences = [(example.prompt, answer) for example in examples for answer in example.answers]
    width = max(len(prompt) + len(answer) for prompt, answer in sequences)
    input_ids = torch.full((len(sequences), width), pad_id)
    mask = torch.zeros(len(sequences), width, dtype=torch.int64)
    read: list[tuple[int, int]] = []
    for row, (prompt, answer) in enumerate(sequences):
        length = len(prompt) + len(answer)
        start = width - length if side == "left" else 0
        input_ids[row, start : start + length] = torch.tensor(prompt + answer)
        mask[row, start : start + length] = 1
        first = start + len(prompt) - 1
        read.extend((row, column) for column in range(first, first + len(answer)))
    columns = sorted({column for _, column in read})
    place = {column: index for index, column in enumerate(columns)}
    return PaddedBatch(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0) * mask,
        columns=torch.tensor(columns),
        pick=torch.tensor([row * len(columns) + place[column] for row, column in read]),
        target=torch.tensor([token for _, answer in sequences for token in answer]),
        owner=torch.tensor([row for row, _ in read]),
        last=width - 1 - mask.flip(1).argmax(1),
        lengths=torch.tensor([len(answer) for _, answer in sequences]),
    )
