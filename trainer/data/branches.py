"""Many sequences in one row, every shared beginning computed once.

Sequences that begin alike become branches of one tree: a pair's chosen and rejected answer share their
prompt, and prompts share what the chat template puts before them. A token sees its own ancestors and
nothing else, at the position it has in its own sequence, so its hidden state is exactly that of the
sequence alone; and by the chain rule so is the gradient, since a token's state is used by all branches that
hang on it.

    row         s s s p p p c c c r r  q q c c c r
    position    0 1 2 3 4 5 6 7 8 6 7  3 4 5 6 7 5
    run         |------ 0 ------|-1-|  |-- 2 --|3|

The row is laid out in *runs*: stretches of new tokens, each seeing an earlier context and then itself,
causally. Here s is what both prompts begin with, run 1 sees s and p, run 2 sees s, run 3 sees s and q.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from trainer.data.examples import Example
from trainer.data.prefix import common_prefix


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of a row.

    Attributes:
        start: Its first token's place in the row.
        end: The place behind its last.
        context: Spans (start, end) of earlier places that all its tokens see, in order.
    """

    start: int
    end: int
    context: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class BranchRow:
    """One packed row, ready for a model.

    Attributes:
        input_ids: [1, tokens], int64.
        position_ids: [1, tokens], int64.
        runs: What each stretch of the row sees.
        read: [scored], int64: the place whose next token is scored.
        target: [scored], int64: that next token.
        owner: [scored], int64, ascending: the sequence it belongs to.
        last: [sequences], int64: the place of each sequence's last token.
        lengths: [sequences], int64: scored tokens of each sequence.
        longest: Tokens of the longest sequence.
        plain_tokens: Tokens without sharing: what a batch without padding would compute.
    """

    input_ids: Tensor
    position_ids: Tensor
    runs: tuple[Run, ...]
    read: Tensor
    target: Tensor
    owner: Tensor
    last: Tensor
    lengths: Tensor
    longest: int
    plain_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens the row computes."""
        return self.input_ids.shape[1]

    @property
    def sequences(self) -> int:
        """Sequences: for each example its answers in order."""
        return self.last.shape[0]

    def sees(self) -> Tensor:
        """[tokens, tokens], bool: whether the row's token sees the column's."""
        sees = torch.zeros(self.tokens, self.tokens, dtype=torch.bool, device=self.input_ids.device)
        for run in self.runs:
            for start, end in run.context:
                sees[run.start : run.end, start:end] = True
            sees[run.start : run.end, run.start : run.end].fill_(True).tril_()
        return sees

    def to(self, device: torch.device | str) -> Self:
        """The row with its tensors on a device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in vars(self).items()
        }
        return type(self)(**moved)


def build_row(examples: Sequence[Example], *, share: bool = True) -> BranchRow:
    """Packs examples into one row.

    Args:
        examples: At least one. Their sequences are numbered example by example, answers in order.
        share: Whether equal beginnings are computed once; without, sequences merely lie side by side.
    """
    sequences = [(example.prompt, answer) for example in examples for answer in example.answers]
    whole = [prompt + answer for prompt, answer in sequences]
    places: list[list[int]] = [[] for _ in sequences]
    ids: list[int] = []
    positions: list[int] = []
    runs: list[Run] = []
    before: tuple[tuple[int, ...], list[int]] = ((), [])
    for number in sorted(range(len(whole)), key=whole.__getitem__) if share else range(len(whole)):
        tokens = whole[number]
        shared = common_prefix(before[0], tokens) if share else 0
        start, end = len(ids), len(ids) + len(tokens) - shared
        places[number] = [*before[1][:shared], *range(start, end)]
        ids.extend(tokens[shared:])
        positions.extend(range(shared, len(tokens)))
        if end > start:
            runs.append(Run(start, end, _spans(before[1][:shared])))
        before = tokens, places[number]
    read: list[int] = []
    target: list[int] = []
    owner: list[int] = []
    for number, (prompt, answer) in enumerate(sequences):
        read.extend(places[number][len(prompt) - 1 : -1])
        target.extend(answer)
        owner.extend([number] * len(answer))
    return BranchRow(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        runs=tuple(runs),
        read=torch.tensor(read),
        target=torch.tensor(target),
        owner=torch.tensor(owner),
        last=torch.tensor([path[-1] for path in places]),
        lengths=torch.tensor([len(answer) for _, answer in sequences]),
        longest=max(map(len, whole)),
        plain_tokens=sum(map(len, whole)),
    )


def common_beginning(examples: Sequence[Example]) -> int:
    """How many tokens all prompts begin with: what every row holds once, for `packing.pack`.

    The last token of the shortest prompt is never counted, so that each example has tokens of its own.
    """
    first, last = min(example.prompt for example in examples), max(example.prompt for example in examples)
    return min(common_prefix(first, last), min(len(example.prompt) for example in examples) - 1)


def _spans(places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    for place in places:
        if spans and spans[-1][1] == place:
            spans[-1] = (spans[-1][0], place + 1)
        else:
            spans.append((place, place + 1))
    return tuple(spans)
