"""The rule for demonstrations: edits and imports, what differs from pairs, and what does not."""

from dataclasses import replace

import pytest

from feedback.demonstrations import build_demonstrations
from feedback.evidence import Candidate, ImportedDemonstration, ImportedPair, order_of
from feedback.rows import DemonstrationRow, DropReason, Source
from feedback.rule import Demonstration, Dropped, Kept, Rule
from ratchet.prompts import Split, hash_of_text
from tests.unit.feedback.builders import (
    answer,
    at,
    comparison,
    demonstration_row,
    pair_row,
    prompt,
    question,
    signal,
    thread,
    vote,
)


def outcomes(
    *candidates: Candidate, rule: Rule | None = None, held_out: frozenset[str] = frozenset()
) -> list[Demonstration | Dropped]:
    ordered = sorted(candidates, key=order_of)
    return list(build_demonstrations(ordered, rule or Rule(), held_out=held_out))


def edited(text: str | None = "The sky is blue.", **fields: object) -> Candidate:
    original = answer("1", "The sky is black.", **fields)
    return thread("t", [original], signal("e", "1", "edit", text=text))


def test_an_edit_shows_how_to_answer():
    expected = DemonstrationRow(
        prompt=prompt(),
        completion="The sky is blue.",
        response_id="1",
        policy="human:edit",
        decode=None,
        source="edit",
        votes=1,
        weight=1.0,
        created_at=at(5),
        prompt_hash=hash_of_text(question()),
    )
    assert outcomes(edited()) == [Kept(expected, ("ann",), None, "ann", ("e",))]


def test_the_original_may_have_failed_or_been_blocked():
    assert isinstance(outcomes(edited(errored=True, blocked=True))[0], Kept)


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (edited(asked=question(Split.HELDOUT)), DropReason.HELD_OUT),
        (edited(probe=True), DropReason.PROBE),
        (edited(prompt=None), DropReason.UNSUPPORTED),
        (edited(" "), DropReason.EMPTY),
        (edited(None), DropReason.EMPTY),
        (edited("The sky is black. "), DropReason.IDENTICAL),
        (thread("t", [], signal("e", "gone", "edit", text="x")), DropReason.UNKNOWN_RESPONSE),
    ],
)
def test_edits_that_can_be_no_demonstration(candidate: Candidate, expected: DropReason):
    assert outcomes(candidate) == [Dropped(expected, ("e",))]


def test_held_out_suites_and_filters():
    suite = frozenset({hash_of_text(question())})
    assert outcomes(edited(), held_out=suite) == [Dropped(DropReason.HELD_OUT, ("e",))]
    assert outcomes(edited(), rule=Rule(since=at(6))) == [Dropped(DropReason.OUTSIDE_WINDOW, ("e",))]
    others = Rule(sources=frozenset({Source.IMPORT}))
    assert outcomes(edited(), rule=others) == [Dropped(DropReason.SOURCE_EXCLUDED, ("e",))]
    assert isinstance(outcomes(edited(), rule=Rule(policies=frozenset({"demo@9"})))[0], Kept)


def test_of_several_edits_the_last_counts_and_the_cap_holds():
    twice = thread(
        "t1",
        [answer("1", "x")],
        signal("e1", "1", "edit", minute=1, text="first"),
        signal("e2", "1", "edit", minute=2, text="second"),
    )
    more = thread("t2", [answer("2", "x")], signal("e3", "2", "edit", text="third"))
    got = outcomes(twice, more, rule=Rule(max_per_user=1))
    assert got[0] == Dropped(DropReason.SUPERSEDED, ("e1",))
    assert isinstance(got[1], Kept)
    assert got[2] == Dropped(DropReason.USER_CAP, ("e3",))


def test_imports():
    row = demonstration_row(response_id=None, policy="import:sft", source="import", created_at=None)
    empty = replace(row, completion=" ")
    held = demonstration_row(asked=question(Split.HELDOUT))
    got = outcomes(
        ImportedDemonstration("i1", row),
        ImportedDemonstration("i2", row),
        ImportedDemonstration("i3", empty),
        ImportedDemonstration("i4", held),
    )
    assert got == [
        Kept(row, inputs=("i1",)),
        Dropped(DropReason.DUPLICATE, ("i2",)),
        Dropped(DropReason.EMPTY, ("i3",)),
        Dropped(DropReason.HELD_OUT, ("i4",)),
    ]


def test_comparisons_and_pairs_demonstrate_nothing():
    assert outcomes(comparison("c", vote("eve", "a")), ImportedPair("i", pair_row())) == []
