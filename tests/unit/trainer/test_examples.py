"""From rows to token examples: every row accounted for, and an identity that follows every token."""

from collections import Counter

import pytest
from transformers import PreTrainedTokenizerBase

from trainer.data.examples import Example, Examples, demonstration_examples, pair_examples
from trainer.data.render import Renderer
from trainer.data.rows import DemonstrationRow, Drop, PairRow, Read
from trainer.data.truncate import Lengths
from trainer.errors import NoUsableRows

QUESTION = ({"role": "user", "content": "How wide is the river?"},)


def pair(chosen: str, rejected: str, weight: float = 1.0) -> PairRow:
    return PairRow(QUESTION, chosen, rejected, weight, "0" * 64)


def test_every_row_is_accounted_for(tokenizer: PreTrainedTokenizerBase) -> None:
    """Of six rows in the file one was unusable when read, one has control marks, one is equal after the
    cut.
    """
    renderer = Renderer(tokenizer)
    prompt = renderer.render(QUESTION, ["."]).prompt
    lengths = Lengths(len(prompt) + 4, len(prompt))
    rows = [
        pair("Yes.", "No.", 2.0),
        pair("<|end|>", "No."),
        pair("snow snow snow snow snow.", "snow snow snow snow snow!"),
        pair("Very wide, and the streams that feed it are wider still.", "No."),
        pair("No.", "Yes."),
    ]
    examples = pair_examples("train", Read(rows, Counter({Drop.BAD_WEIGHT: 1}), 6), renderer, lengths)
    report = examples.report
    assert report.dropped == {
        Drop.BAD_WEIGHT: 1,
        Drop.CONTROL_MARK_IN_TEXT: 1,
        Drop.IDENTICAL_AFTER_TRUNCATION: 1,
    }
    assert (report.total, report.used) == (6, 3)
    assert report.total == report.used + report.dropped.total()
    assert (report.prompts_cut, report.answers_cut, report.boundaries_merged) == (0, 1, 0)
    assert examples[0].weight == 2.0
    assert tokenizer.decode(examples[0].answers[0]) == "Yes.<|end|>"
    assert examples[1].answers[0][-1] != tokenizer.eos_token_id
    assert report.answer_tokens == sum(len(answer) for each in examples for answer in each.answers)
    assert report.tokens == report.answer_tokens + 3 * len(prompt)


def test_demonstrations_have_one_answer(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [DemonstrationRow(QUESTION, "Very wide.", 1.0, "0" * 64)]
    examples = demonstration_examples("train", Read(rows, Counter(), 1), Renderer(tokenizer), Lengths.of(64))
    assert [tokenizer.decode(answer) for answer in examples[0].answers] == ["Very wide.<|end|>"]


def test_nothing_usable_is_an_error_with_the_counts(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [pair("<|end|>", "No."), pair("Yes", "<|pad|>")]
    with pytest.raises(NoUsableRows, match=r"train: none of 2 rows can be used \(control_mark_in_text 2\)"):
        pair_examples("train", Read(rows, Counter(), 2), Renderer(tokenizer), Lengths.of(64))


ITEMS = [Example((1, 2), ((3,), (4, 5)), 0.5), Example((6,), ((7, 8),)), Example((9, 9), ((1,), (2,)), 2.0)]


def filled(items: list[Example], template: str = "t") -> Examples:
    examples = Examples(template, len(items), Counter())
    for item in items:
        examples.append(item)
    return examples


def test_examples_are_a_sequence() -> None:
    examples = filled(ITEMS)
    assert list(examples) == ITEMS
    assert (len(examples), examples[1], examples[-1], examples[0:3:2]) == (
        3,
        ITEMS[1],
        ITEMS[2],
        [ITEMS[0], ITEMS[2]],
    )
    with pytest.raises(IndexError):
        examples[3]


@pytest.mark.parametrize(
    "other",
    [
        ITEMS[:2],
        [ITEMS[1], ITEMS[0], ITEMS[2]],
        [Example((1,), ((2, 3), (4, 5)), 0.5), *ITEMS[1:]],
        [Example((1, 2), ((3, 4), (5,)), 0.5), *ITEMS[1:]],
        [Example((1, 2), ((3,), (4, 5)), 0.6), *ITEMS[1:]],
    ],
)
def test_the_digest_follows_tokens_boundaries_and_weights(other: list[Example]) -> None:
    assert filled(ITEMS).digest == filled(ITEMS).digest
    assert filled(other).digest != filled(ITEMS).digest
