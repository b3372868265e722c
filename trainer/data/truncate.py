"""Cutting rows to length: the end of the prompt and the start of the answers stay.

The prompt gives way first, from its start, down to a floor; only then are answers cut, at their end. A cut
answer loses its EOS: the model did not stop there, and must not learn to. A leading BOS always stays.
"""

from dataclasses import dataclass

from trainer.data.render import Rendered
from trainer.data.rows import Drop, Unusable


@dataclass(frozen=True, slots=True)
class Lengths:
    """Bounds, in tokens.

    Attributes:
        maximum: Longest prompt and answer together.
        prompt_floor: Prompt tokens that are never given up for an answer; less where the prompt is shorter.

    Raises:
        ValueError: The bounds leave no room for an answer, on creation.
    """

    maximum: int
    prompt_floor: int

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_floor < self.maximum:
            raise ValueError(
                f"a prompt floor of {self.prompt_floor} tokens within {self.maximum} leaves no room: at "
                "least 1 token of prompt and 1 of answer are needed"
            )

    @classmethod
    def of(cls, maximum: int) -> "Lengths":
        """The usual bounds: at least a quarter of the maximum is kept for the prompt."""
        return cls(maximum, max(1, maximum // 4))


@dataclass(frozen=True, slots=True)
class Cut:
    """A row within bounds.

    Attributes:
        prompt: Ids of the prompt's end, at least one.
        answers: Ids of the answers' starts.
        prompt_lost: Tokens cut from the prompt.
        answers_cut: How many of the answers lost their end.
    """

    prompt: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    prompt_lost: int
    answers_cut: int


def truncate(rendered: Rendered, lengths: Lengths, bos_id: int | None) -> Cut:
    """Cuts a row to its bounds.

    Raises:
        Unusable: Its answers would be the same after the cut.
    """
    longest = max(map(len, rendered.answers))
    prompt = _tail(rendered.prompt, max(lengths.maximum - longest, lengths.prompt_floor), bos_id)
    room = lengths.maximum - len(prompt)
    answers = tuple(answer[:room] for answer in rendered.answers)
    if len(answers) > 1 and len(set(answers)) == 1:
        raise Unusable(Drop.IDENTICAL_AFTER_TRUNCATION)
    return Cut(
        prompt=prompt,
        answers=answers,
        prompt_lost=len(rendered.prompt) - len(prompt),
        answers_cut=sum(len(answer) > room for answer in rendered.answers),
    )


def _tail(prompt: tuple[int, ...], room: int, bos_id: int | None) -> tuple[int, ...]:
    if len(prompt) <= room:
        return prompt
    if prompt[0] == bos_id and room > 1:
        return (prompt[0], *prompt[len(prompt) - room + 1 :])
    return prompt[len(prompt) - room :]
