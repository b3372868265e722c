"""A split of a snapshot as token examples, with an account of every row."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import overload

from trainer.data.render import Renderer
from trainer.data.rows import (
    DemonstrationRow,
    Drop,
    PairRow,
    Read,
    Unusable,
    require_usable,
)
from trainer.data.truncate import Lengths, truncate


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and the answers that are scored on it.

    Attributes:
        prompt: Token ids, at least one.
        answers: Token ids of each answer, at least one each: chosen then rejected, or the one demonstration.
        weight: Above zero.
    """

    prompt: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    weight: float = 1.0

    @property
    def size(self) -> int:
        """Tokens when the prompt is computed once."""
        return len(self.prompt) + sum(map(len, self.answers))


@dataclass
class DataReport:
    """What became of a file's rows.

    Attributes:
        total: Rows in the file.
        used: Examples made of them.
        dropped: Rows not used, by reason; `total == used + sum of these`.
        prompts_cut: Used rows whose prompt lost its start.
        answers_cut: Answers that lost their end, and so their EOS.
        boundaries_merged: Used rows whose answer merged with the prompt's last tokens.
        tokens: Tokens of all examples, prompts counted once.
        answer_tokens: Tokens that are scored.
        unknown: Demonstrations that say what the policy does not know, whatever was done with them.
    """

    total: int
    used: int = 0
    dropped: Counter[Drop] = field(default_factory=Counter)
    prompts_cut: int = 0
    answers_cut: int = 0
    boundaries_merged: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    unknown: int = 0


class Examples(Sequence[Example]):
    """Examples in their file's order, four bytes a token.

    Attributes:
        report: What became of the file's rows.
        template_digest: Identity of the chat template they were rendered with.
    """

    def __init__(self, template_digest: str, total: int, dropped: Counter[Drop]) -> None:
        self.template_digest = template_digest
        self.report = DataReport(total, dropped=Counter(dropped))
        self._tokens = array("i")
        self._parts = array("q", [0])
        self._firsts = array("q", [0])
        self._weights = array("d")

    def append(self, example: Example) -> None:
        """Adds an example at the end."""
        for part in (example.prompt, *example.answers):
            self._tokens.extend(part)
            self._parts.append(len(self._tokens))
        self._firsts.append(len(self._parts) - 1)
        self._weights.append(example.weight)
        self.report.used += 1
        self.report.tokens += example.size
        self.report.answer_tokens += sum(map(len, example.answers))

    def __len__(self) -> int:
        return len(self._weights)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> list[Example]: ...
    def __getitem__(self, place: int | slice) -> Example | list[Example]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        index = range(len(self))[place]
        bounds = self._parts[self._firsts[index] : self._firsts[index + 1] + 1]
        prompt, *answers = (tuple(self._tokens[start:end]) for start, end in pairwise(bounds))
        return Example(prompt, tuple(answers), self._weights[index])

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    @property
    def digest(self) -> str:
        """Identity of every token, boundary and weight (64 hex digits), for caches of log-probabilities."""
        state = hashlib.sha256()
        for numbers in (self._tokens, self._parts, self._firsts, self._weights):
            state.update(len(numbers).to_bytes(8, "little"))
            state.update(numbers.tobytes())
        return state.hexdigest()


def pair_examples(name: str, read: Read[PairRow], renderer: Renderer, lengths: Lengths) -> Examples:
    """Pairs as examples of two answers, chosen first.

    Args:
        name: What to call the data in an error.
        read: The file's rows.
        renderer: Of the policy that will be trained.
        lengths: Bounds of a prompt with an answer.

    Raises:
        NoUsableRows: Not one row could be used.
    """
    rows = ((row, (row.chosen, row.rejected)) for row in read.rows)
    return _examples(name, read, rows, renderer, lengths)


def demonstration_examples(
    name: str, read: Read[DemonstrationRow], renderer: Renderer, lengths: Lengths
) -> Examples:
    """Demonstrations as examples of one answer; arguments and errors as in `pair_examples`."""
    rows = ((row, (row.completion,)) for row in read.rows)
    return _examples(name, read, rows, renderer, lengths)


def _examples(
    name: str,
    read: Read[PairRow] | Read[DemonstrationRow],
    rows: Iterable[tuple[PairRow | DemonstrationRow, tuple[str, ...]]],
    renderer: Renderer,
    lengths: Lengths,
) -> Examples:
    examples = Examples(renderer.template_digest, read.total, read.dropped)
    report = examples.report
    for row, answers in rows:
        try:
            rendered = renderer.render(row.prompt, answers)
            cut = truncate(rendered, lengths, renderer.bos_id)
        except Unusable as unusable:
            report.dropped[unusable.reason] += 1
            continue
        examples.append(Example(cut.prompt, cut.answers, row.weight))
        report.prompts_cut += cut.prompt_lost > 0
        report.answers_cut += cut.answers_cut
        report.boundaries_merged += rendered.merged_tokens > 0
    require_usable(name, len(examples), report.total, report.dropped)
    return examples
