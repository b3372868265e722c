"""Rows of branches: the layout by hand, and every sequence found again in it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.branches import Run, build_row, common_beginning
from trainer.data.examples import Example
from trainer.data.padding import pad


def test_a_pair_is_two_branches_over_one_prompt() -> None:
    """Prompt 10 11 12; chosen 20 21 and rejected 30: the prompt once, positions 3 4 and 3 behind it.

    Places 0 to 4 are prompt and chosen, 5 is the rejected answer, which sees the prompt (0 to 3) and
    itself. The first token of both answers is predicted at place 2, the prompt's last.
    """
    row = build_row([Example((10, 11, 12), ((20, 21), (30,)))])
    assert row.input_ids.tolist() == [[10, 11, 12, 20, 21, 30]]
    assert row.position_ids.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert row.runs == (Run(0, 5, ()), Run(5, 6, ((0, 3),)))
    assert row.read.tolist() == [2, 3, 2]
    assert row.target.tolist() == [20, 21, 30]
    assert row.owner.tolist() == [0, 0, 1]
    assert row.last.tolist() == [4, 5]
    assert row.lengths.tolist() == [2, 1]
    assert (row.tokens, row.longest, row.plain_tokens, row.sequences) == (6, 5, 9, 2)
    assert row.sees().int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 1],
    ]


def test_pairs_share_what_their_prompts_begin_with() -> None:
    """Prompts 1 2 5 and 1 2 6: the second row of branches hangs on places 0 and 1, its rejected answer on
    its own.
    """
    row = build_row([Example((1, 2, 5), ((7,), (8,))), Example((1, 2, 6), ((7,), (8,)))])
    assert row.input_ids.tolist() == [[1, 2, 5, 7, 8, 6, 7, 8]]
    assert row.position_ids.tolist() == [[0, 1, 2, 3, 3, 2, 3, 3]]
    assert row.runs == (
        Run(0, 4, ()),
        Run(4, 5, ((0, 3),)),
        Run(5, 7, ((0, 2),)),
        Run(7, 8, ((0, 2), (5, 6))),
    )
    assert row.read.tolist() == [2, 2, 5, 5]
    assert row.owner.tolist() == [0, 1, 2, 3]


def test_unshared_sequences_lie_side_by_side() -> None:
    row = build_row([Example((1, 2), ((7,), (8,)))], share=False)
    assert row.input_ids.tolist() == [[1, 2, 7, 1, 2, 8]]
    assert row.position_ids.tolist() == [[0, 1, 2, 0, 1, 2]]
    assert row.runs == (Run(0, 3, ()), Run(3, 6, ()))


TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple)
EXAMPLES = st.lists(
    st.builds(
        Example, prompt=TOKENS, answers=st.lists(TOKENS, min_size=1, max_size=3, unique=True).map(tuple)
    ),
    min_size=1,
    max_size=5,
)


@given(EXAMPLES)
def test_each_sequence_sees_itself_and_nothing_else(examples: list[Example]) -> None:
    """What the last token of a sequence sees, in order of position, is that sequence; a beginning is held
    once.
    """
    row = build_row(examples)
    sees = row.sees()
    sequences = [(each.prompt, answer) for each in examples for answer in each.answers]
    beginnings = {(p + a)[:length] for p, a in sequences for length in range(1, len(p + a) + 1)}
    assert row.tokens == len(beginnings)
    assert row.plain_tokens == sum(len(prompt + answer) for prompt, answer in sequences)
    for number, (prompt, answer) in enumerate(sequences):
        path = sees[row.last[number]].nonzero()[:, 0]
        assert tuple(row.input_ids[0, path].tolist()) == prompt + answer
        assert row.position_ids[0, path].tolist() == list(range(len(prompt + answer)))
        for length, place in enumerate(path.tolist(), start=1):
            assert sees[place].nonzero()[:, 0].tolist() == path[:length].tolist()
        mine = row.owner == number
        assert tuple(row.target[mine].tolist()) == answer
        assert row.read[mine].tolist() == path[len(prompt) - 1 : -1].tolist()
    assert row.lengths.tolist() == [len(answer) for _, answer in sequences]
    assert [run.end - run.start for run in row.runs] == torch.diff(
        torch.tensor([0, *[run.end for run in row.runs]])
    ).tolist()


def test_common_beginning() -> None:
    """Prompts 1 2 3 4, 1 2 3 and 1 2 9 share 1 2; of equal prompts the last token is left to each."""
    examples = [Example(prompt, ((5,),)) for prompt in ((1, 2, 3, 4), (1, 2, 3), (1, 2, 9))]
    assert common_beginning(examples) == 2
    assert common_beginning(examples[:1]) == 3
    assert common_beginning([Example((7,), ((5,),))]) == 0


def test_padding_by_hand() -> None:
    """Sequences 1 2 7 and 1 2 8 9 with pad 0; columns 1 and 2 (right) or 2 and 1 2 (left) predict answers."""
    examples = [Example((1, 2), ((7,), (8, 9)))]
    right, left = pad(examples, 0), pad(examples, 0, side="left")
    assert right.input_ids.tolist() == [[1, 2, 7, 0], [1, 2, 8, 9]]
    assert left.input_ids.tolist() == [[0, 1, 2, 7], [1, 2, 8, 9]]
    assert right.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert left.position_ids.tolist() == [[0, 0, 1, 2], [0, 1, 2, 3]]
    assert (right.last.tolist(), left.last.tolist()) == ([2, 3], [3, 3])
    assert (right.columns.tolist(), left.columns.tolist()) == ([1, 2], [1, 2])
    assert (right.pick.tolist(), left.pick.tolist()) == ([0, 2, 3], [1, 2, 3])
    assert right.target.tolist() == left.target.tolist() == [7, 8, 9]
    assert right.owner.tolist() == [0, 1, 1]
    assert (right.lengths.tolist(), right.tokens, right.sequences) == ([1, 2], 8, 2)


def test_a_pad_that_is_also_eos_hides_no_eos() -> None:
    """EOS 2 pads too: it stays a target, and the last real token is found by the mask."""
    batch = pad([Example((1, 5), ((7, 2), (8, 9, 2)))], 2)
    assert batch.target.tolist() == [7, 2, 8, 9, 2]
    assert batch.last.tolist() == [3, 4]
    assert batch.attention_mask[0].tolist() == [1, 1, 1, 1, 0]


def test_batches_move_to_a_device_whole() -> None:
    examples = [Example((1, 2), ((7,), (8, 9)))]
    for batch in (build_row(examples), pad(examples, 0)):
        moved = batch.to("meta")
        assert type(moved) is type(batch)
        assert {value.device.type for value in vars(moved).values() if isinstance(value, torch.Tensor)} == {
            "meta"
        }
