"""However a step is divided, every example is in it once and every rank has as many micro-batches."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.batches import build, divide
from trainer.config import Packing
from trainer.data.examples import Example

tokens = st.lists(st.integers(0, 9), min_size=1, max_size=9).map(tuple)
example = st.tuples(tokens, tokens, tokens).map(lambda parts: Example(parts[0], parts[1:]))
examples_of_a_step = st.lists(example, min_size=1, max_size=12)


@settings(deadline=None)
@given(examples_of_a_step, st.sampled_from(Packing), st.integers(18, 60), st.integers(1, 4))
def test_every_example_is_computed_once(
    examples: list[Example], packing: Packing, capacity: int, ranks: int
) -> None:
    divided = divide(examples, packing, capacity, ranks=ranks)
    assert len(divided) == ranks
    assert len({len(rows) for rows in divided}) == 1
    places = [place for rows in divided for row in rows for place in row]
    assert sorted(places) == list(range(len(examples)))


@settings(deadline=None)
@given(examples_of_a_step, st.sampled_from(Packing))
def test_a_micro_batch_holds_what_it_may(examples: list[Example], packing: Packing) -> None:
    for row in divide(examples, packing, 40)[0]:
        batch = build([examples[place] for place in row], packing, 0)
        assert batch.tokens <= 40 or len(row) == 1
        assert batch.sequences == 2 * len(row)
