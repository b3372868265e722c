"""The rule for pairs: each reason by hand, and what must hold for any evidence."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.evidence import (
    Answer,
    Candidate,
    Comparison,
    ImportedPair,
    Signal,
    SignalKind,
    Thread,
    Vote,
    order_of,
)
from feedback.pairs import MAX_SIBLINGS, build_pairs
from feedback.rows import DropReason, Source, Turn
from feedback.rule import Dropped, Kept, Pair, Rule, fates
from ratchet.prompts import Split, hash_of_text
from tests.unit.feedback.builders import (
    answer,
    at,
    comparison,
    pair_row,
    prompt,
    question,
    signal,
    thread,
    vote,
)

ANY = Rule()


def outcomes(
    *candidates: Candidate, rule: Rule = ANY, held_out: frozenset[str] = frozenset()
) -> list[Pair | Dropped]:
    return list(build_pairs(sorted(candidates, key=order_of), rule, held_out=held_out))


def only(*candidates: Candidate, rule: Rule = ANY, held_out: frozenset[str] = frozenset()) -> Pair | Dropped:
    (outcome,) = outcomes(*candidates, rule=rule, held_out=held_out)
    return outcome


def pair(*candidates: Candidate, rule: Rule = ANY) -> Pair:
    outcome = only(*candidates, rule=rule)
    assert isinstance(outcome, Kept), outcome
    return outcome


def reason(*candidates: Candidate, rule: Rule = ANY, held_out: frozenset[str] = frozenset()) -> DropReason:
    outcome = only(*candidates, rule=rule, held_out=held_out)
    assert isinstance(outcome, Dropped), outcome
    return outcome.reason


def test_a_pair_says_who_was_compared_by_whom_and_when():
    a = answer("1", "good", policy="demo@2", decode="d2")
    b = answer("2", "bad")
    votes = (
        vote("eve", "a"),
        vote("bob", "b", minute=2),
        vote("cy", "a", minute=9),
        vote("dan", "skip", minute=30),
    )
    got = pair(Comparison("c", a, b, votes))
    row = got.row
    assert row.prompt == (Turn("user", question()),)
    assert (row.chosen, row.rejected) == ("good", "bad")
    assert (row.chosen_response_id, row.rejected_response_id) == ("1", "2")
    assert (row.chosen_policy, row.rejected_policy) == ("demo@2", "demo@1")
    assert (row.chosen_decode, row.rejected_decode) == ("d2", "d1")
    assert (row.source, row.votes, row.weight) == ("comparison", 3, 1.0)
    assert row.created_at == at(9)
    assert row.prompt_hash == hash_of_text(question())
    assert got.raters == ("bob", "cy", "eve")
    assert got.agreement == pytest.approx(2 / 3)
    assert got.user == "ann"
    assert got.inputs == ("c", "v-bob-2", "v-cy-9", "v-dan-30", "v-eve-1")


def test_b_wins_as_well_as_a():
    assert pair(comparison("c", vote("eve", "b"))).row.chosen == "bad"


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ("", DropReason.TOO_FEW_VOTES),
        ("s", DropReason.TOO_FEW_VOTES),
        ("t", DropReason.TIE),
        ("ab", DropReason.TIE),
        ("at", DropReason.TIE),
        ("aabb", DropReason.TIE),
        ("x", DropReason.BOTH_BAD),
        ("ax", DropReason.BOTH_BAD),
        ("tx", DropReason.BOTH_BAD),
        ("aabbx", DropReason.TIE),
        ("aabx", DropReason.DISAGREEMENT),
        ("aab", None),
        ("aaat", None),
        ("aaatt", None),
        ("aabbb", None),
        ("aaabbbb", DropReason.DISAGREEMENT),
        ("sasss", None),
    ],
)
def test_votes_by_hand(choices: str, expected: DropReason | None):
    meanings = {"a": "a", "b": "b", "t": "tie", "x": "both_bad", "s": "skip"}
    votes = [vote(f"r{place}", meanings[letter]) for place, letter in enumerate(choices)]
    outcome = only(comparison("c", *votes))
    assert (outcome.reason if isinstance(outcome, Dropped) else None) is expected


def test_minimum_votes_and_agreement_are_asked_for():
    two = comparison("c", vote("eve", "a"), vote("bob", "a"))
    assert reason(two, rule=Rule(min_votes=3)) is DropReason.TOO_FEW_VOTES
    assert pair(two, rule=Rule(min_votes=2, min_agreement=1)).agreement == 1
    split_vote = comparison("c", vote("eve", "a"), vote("bob", "a"), vote("cy", "b"))
    assert reason(split_vote, rule=Rule(min_agreement=0.7)) is DropReason.DISAGREEMENT


def test_the_last_vote_of_a_rater_stands():
    got = pair(comparison("c", vote("eve", "a", minute=1), vote("eve", "b", minute=2)))
    assert (got.row.chosen, got.row.votes) == ("bad", 1)
    assert (
        reason(comparison("c", vote("eve", "a"), vote("eve", "skip", minute=2))) is DropReason.TOO_FEW_VOTES
    )


def test_flagged_and_evaluation_raters_do_not_count():
    flagged = vote("eve", "b", flagged=True)
    assert reason(comparison("c", flagged)) is DropReason.FLAGGED_RATER
    assert pair(comparison("c", flagged, vote("bob", "a"))).row.chosen == "good"
    judge = vote("judy", "b", pool="evaluation")
    assert reason(comparison("c", judge)) is DropReason.EVALUATION_RATER
    assert pair(comparison("c", judge, vote("bob", "a"))).raters == ("bob",)
    two = comparison("c", flagged, vote("bob", "a"))
    assert reason(two, rule=Rule(min_votes=2)) is DropReason.FLAGGED_RATER


def changed(**fields: object) -> Comparison:
    return comparison("c", vote("eve", "a"), a=answer("1", "good", **fields))


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (changed(probe=True), DropReason.PROBE),
        (changed(prompt=None), DropReason.UNSUPPORTED),
        (changed(history_hash="0" * 64), DropReason.DIFFERENT_PROMPTS),
        (changed(asked=question(number=1)), DropReason.DIFFERENT_PROMPTS),
        (changed(errored=True), DropReason.ERRORED),
        (changed(blocked=True), DropReason.BLOCKED),
        (comparison("c", vote("eve", "a"), a=answer("1", " \n ")), DropReason.EMPTY),
        (comparison("c", vote("eve", "a"), a=answer("1", " bad\n")), DropReason.IDENTICAL),
        (comparison("c", vote("eve", "a"), gold=True), DropReason.GOLD),
        (replace(changed(probe=True), gold=True), DropReason.PROBE),
        (changed(probe=True, errored=True), DropReason.PROBE),
    ],
)
def test_answers_that_can_be_no_pair(candidate: Comparison, expected: DropReason):
    assert reason(candidate) is expected


def held(part: Split) -> Comparison:
    asked = question(part)
    sides = (answer("1", "good", asked=asked), answer("2", "bad", asked=asked))
    return comparison("c", vote("eve", "a"), a=sides[0], b=sides[1])


def test_held_out_prompts_never_become_pairs():
    assert reason(held(Split.HELDOUT)) is DropReason.HELD_OUT
    assert isinstance(only(held(Split.VALIDATION)), Kept)
    in_a_suite = frozenset({hash_of_text(question())})
    assert reason(comparison("c", vote("eve", "a")), held_out=in_a_suite) is DropReason.HELD_OUT
    row = pair_row(asked=question(Split.HELDOUT))
    assert reason(ImportedPair("i", row)) is DropReason.HELD_OUT


def test_held_out_comes_before_every_other_reason():
    asked = question(Split.HELDOUT)
    both = answer("1", "", asked=asked, probe=True, errored=True), answer("2", "", asked=asked)
    assert reason(Comparison("c", *both)) is DropReason.HELD_OUT


def test_an_edit_is_preferred_to_its_original():
    original = answer("1", "The sky is black.")
    edits = thread("t", [original], signal("e", "1", "edit", text="The sky is blue."))
    got = pair(edits)
    assert (got.row.chosen, got.row.rejected) == ("The sky is blue.", "The sky is black.")
    assert (got.row.chosen_response_id, got.row.rejected_response_id) == (None, "1")
    assert (got.row.chosen_policy, got.row.rejected_policy) == ("human:edit", "demo@1")
    assert (got.row.chosen_decode, got.row.rejected_decode) == (None, "d1")
    assert (got.row.source, got.row.votes, got.row.created_at) == ("edit", 1, at(5))
    assert (got.raters, got.agreement, got.inputs) == (("ann",), None, ("e",))


def test_of_several_edits_of_one_user_the_last_counts():
    edits = thread(
        "t",
        [answer("1", "original")],
        signal("e2", "1", "edit", minute=7, text="second"),
        signal("e1", "1", "edit", minute=6, text="first"),
        signal("e3", "1", "edit", minute=8, text="other's", user="bob"),
    )
    first, second, third = outcomes(edits)
    assert first == Dropped(DropReason.SUPERSEDED, ("e1",))
    assert isinstance(second, Kept)
    assert second.row.chosen == "second"
    assert isinstance(third, Kept)
    assert third.row.chosen == "other's"


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("original ", {}, DropReason.IDENTICAL),
        (" ", {}, DropReason.EMPTY),
        (None, {}, DropReason.EMPTY),
        ("better", {"errored": True}, DropReason.ERRORED),
        ("better", {"blocked": True}, DropReason.BLOCKED),
    ],
)
def test_edits_that_can_be_no_pair(text: str | None, fields: dict[str, object], expected: DropReason):
    original = answer("1", "original", **fields)
    assert reason(thread("t", [original], signal("e", "1", "edit", text=text))) is expected


def two(*signals: Signal, **later: object) -> Thread:
    return thread("t", [answer("1", "first"), answer("2", "second", minute=1, **later)], *signals)


@pytest.mark.parametrize(
    ("signals", "chosen", "source", "weight"),
    [
        ([("1", "regenerate", None)], "second", "regenerate", 0.3),
        ([("1", "retry", None)], "second", "retry", 0.2),
        ([("1", "regenerate", None), ("1", "retry", None)], "second", "regenerate", 0.3),
        ([("1", "copy", None)], "first", "copy", 0.3),
        ([("1", "escalate", None)], "second", "escalate", 0.3),
        ([("1", "thumb", 1), ("2", "thumb", -1)], "first", "thumb", 0.5),
        ([("1", "rating", 1), ("2", "rating", 3)], "second", "rating", 0.5),
        ([("1", "regenerate", None), ("2", "copy", None)], "second", "copy", 0.3),
        (
            [("1", "thumb", -1), ("2", "thumb", 1), ("1", "rating", 1), ("2", "rating", 4)],
            "second",
            "thumb",
            0.5,
        ),
    ],
)
def test_signals_by_hand(
    signals: list[tuple[str, SignalKind, float | None]], chosen: str, source: str, weight: float
):
    given = [signal(f"s{n}", to, kind, value=value) for n, (to, kind, value) in enumerate(signals)]
    got = pair(two(*given))
    assert (got.row.chosen, got.row.source, got.row.weight) == (chosen, source, weight)
    assert got.raters == ("ann",)
    assert got.inputs == tuple(sorted(one.id for one in given))


@pytest.mark.parametrize(
    "signals",
    [
        [("1", "thumb", 1)],
        [("1", "thumb", 1), ("2", "thumb", 1)],
        [("1", "rating", 3)],
        [("1", "rating", 3), ("2", "rating", 3)],
        [("1", "copy", None), ("2", "copy", None)],
        [("1", "regenerate", None), ("2", "regenerate", None)],
        [("1", "regenerate", None), ("2", "retry", None)],
        [("2", "regenerate", None)],
    ],
)
def test_signals_that_order_nothing(signals: list[tuple[str, SignalKind, float | None]]):
    given = [signal(f"s{n}", to, kind, value=value) for n, (to, kind, value) in enumerate(signals)]
    dropped = outcomes(two(*given))
    assert dropped == [Dropped(DropReason.NO_COUNTERPART, (one.id,)) for one in given]


def test_a_rating_of_one_is_a_rating_and_no_thumb_up():
    low, high = signal("s1", "1", "rating", value=1), signal("s2", "2", "rating", value=5)
    assert pair(two(low, high)).row.chosen == "second"
    assert reason(two(low)) is DropReason.NO_COUNTERPART


def test_of_each_user_the_last_thumb_counts():
    signals = [
        signal("s1", "1", "thumb", value=1, minute=1),
        signal("s2", "1", "thumb", value=-1, minute=2),
        signal("s3", "2", "thumb", value=1, minute=3),
    ]
    assert pair(two(*signals)).row.chosen == "second"


def test_signals_that_contradict_one_another_conclude_nothing():
    both = two(signal("s1", "1", "copy"), signal("s2", "1", "regenerate"))
    assert only(both) == Dropped(DropReason.CONFLICTING_SIGNALS, ("s1", "s2"))


def test_the_kept_answer_is_preferred_to_each_abandoned_one():
    answers = [answer(str(n), f"answer {n}", minute=n) for n in (1, 2, 3)]
    got = outcomes(thread("t", answers, signal("s1", "1", "regenerate"), signal("s2", "2", "regenerate")))
    rows = [outcome.row for outcome in got if isinstance(outcome, Kept)]
    assert [(row.chosen, row.rejected) for row in rows] == [
        ("answer 3", "answer 1"),
        ("answer 3", "answer 2"),
    ]


def test_what_nobody_saw_is_not_set_against_what_was_copied():
    shadow = two(signal("s1", "1", "copy"), shown=False)
    assert reason(shadow) is DropReason.NO_COUNTERPART


def test_signals_that_order_no_answers_have_their_own_reasons():
    given = two(
        signal("s1", "1", "comment", text="nice"),
        signal("s2", "1", "outcome", value=1),
        signal("s3", "1", "metric", value=0.2),
        signal("s4", "gone", "thumb", value=1),
    )
    assert fates(outcomes(given)) == {
        "s1": DropReason.NOT_A_PREFERENCE,
        "s2": DropReason.NOT_A_PREFERENCE,
        "s3": DropReason.NOT_A_PREFERENCE,
        "s4": DropReason.UNKNOWN_RESPONSE,
    }


def test_signals_on_held_out_prompts_and_probes_say_so():
    asked = question(Split.HELDOUT)
    answers = [answer("1", "first", asked=asked), answer("2", "second", asked=asked, minute=1)]
    given = thread("t", answers, signal("s1", "1", "regenerate"), signal("s2", "1", "comment"))
    assert fates(outcomes(given)) == {"s1": DropReason.HELD_OUT, "s2": DropReason.HELD_OUT}
    probe = thread("t", [answer("1", "first", probe=True)], signal("s1", "1", "thumb", value=1))
    assert reason(probe) is DropReason.PROBE


def test_a_machine_that_repeats_itself_costs_no_more_than_the_latest_answers():
    answers = [answer(f"{n:04d}", f"answer {n}", minute=n) for n in range(500)]
    signals = [signal(f"s{n:04d}", f"{n:04d}", "retry") for n in range(499)]
    got = outcomes(thread("t", answers, *signals))
    assert sum(isinstance(outcome, Kept) for outcome in got) == MAX_SIBLINGS - 1
    assert len(fates(got)) == 499


def test_an_input_of_several_outcomes_has_one_fate():
    used = Kept(pair_row(), inputs=("used", "twice"))
    tie, probe = Dropped(DropReason.TIE, ("twice", "left")), Dropped(DropReason.PROBE, ("left", "twice"))
    for told in ([used, tie, probe], [probe, tie, used], [tie, used, probe]):
        assert fates(told) == {"used": None, "twice": None, "left": DropReason.PROBE}


def test_filters_by_source_time_and_policy():
    rated = comparison("c", vote("eve", "a"))
    assert reason(rated, rule=Rule(sources=frozenset({Source.EDIT}))) is DropReason.SOURCE_EXCLUDED
    assert reason(rated, rule=Rule(since=at(2))) is DropReason.OUTSIDE_WINDOW
    assert reason(rated, rule=Rule(until=at(1))) is DropReason.OUTSIDE_WINDOW
    assert pair(rated, rule=Rule(since=at(1), until=at(2))).row.chosen == "good"
    assert reason(rated, rule=Rule(policies=frozenset({"demo@2"}))) is DropReason.STALE_POLICY


def test_policies_of_one_or_both_sides():
    shadow = comparison("c", vote("eve", "a"), a=answer("1", "good", policy="demo@2"))
    current = frozenset({"demo@1"})
    assert reason(shadow, rule=Rule(policies=current)) is DropReason.STALE_POLICY
    assert pair(shadow, rule=Rule(policies=current, policy_match="either")).row.chosen == "good"
    edit = thread("t", [answer("1", "x")], signal("e", "1", "edit", text="y"))
    assert pair(edit, rule=Rule(policies=current)).row.chosen == "y"
    assert reason(edit, rule=Rule(policies=frozenset({"demo@9"}))) is DropReason.STALE_POLICY


def test_an_import_without_time_is_in_no_window_and_its_policy_is_named():
    row = replace(
        pair_row(), chosen_policy="import:hh", rejected_policy="import:hh", created_at=None, source="import"
    )
    assert pair(ImportedPair("i", row)).row == row
    assert reason(ImportedPair("i", row), rule=Rule(since=at(-99))) is DropReason.OUTSIDE_WINDOW
    assert (
        reason(ImportedPair("i", row), rule=Rule(policies=frozenset({"demo@1"}))) is DropReason.STALE_POLICY
    )
    assert pair(ImportedPair("i", row), rule=Rule(policies=frozenset({"import:hh"}))).inputs == ("i",)


def test_the_same_two_answers_pair_once_by_the_most_trusted_source():
    a, b = answer("1", "first"), answer("2", "second", minute=1)
    rated = comparison("c", vote("eve", "a"), a=a, b=b)
    signalled = thread("t", [a, b], signal("s", "1", "regenerate"))
    got = outcomes(signalled, rated)
    assert isinstance(got[0], Kept)
    assert got[0].row.chosen == "first"
    assert got[1] == Dropped(DropReason.SUPERSEDED, ("s",))


def test_the_same_import_twice_is_one_pair():
    row = pair_row(chosen_response_id=None, rejected_response_id=None)
    got = outcomes(ImportedPair("i1", row), ImportedPair("i2", row))
    assert got[1] == Dropped(DropReason.DUPLICATE, ("i2",))


def test_a_user_gives_at_most_so_many():
    rated = [comparison(f"c{n}", vote("eve", "a")) for n in range(3)]
    nobody = [
        comparison(
            f"d{n}", vote("eve", "a"), a=answer(f"a{n}", "x", user=None), b=answer(f"b{n}", "y", user=None)
        )
        for n in range(2)
    ]
    got = outcomes(*rated, *nobody, rule=Rule(max_per_user=2))
    kept = [outcome.inputs[0] for outcome in got if isinstance(outcome, Kept)]
    assert kept == ["c0", "c1", "d0", "d1"]
    assert got[2] == Dropped(DropReason.USER_CAP, ("c2", "v-eve-1"))


def test_candidates_out_of_order_or_twice_are_refused():
    one, other = comparison("c1", vote("eve", "a")), comparison("c2", vote("eve", "a"))
    with pytest.raises(ValueError, match="c1 is repeated or out of order"):
        list(build_pairs([other, one], ANY))
    with pytest.raises(ValueError, match="c1 is repeated or out of order"):
        list(build_pairs([one, one], ANY))


@pytest.mark.parametrize(
    "settings",
    [
        {"min_votes": 0},
        {"min_agreement": 0.4},
        {"min_agreement": 1.1},
        {"max_per_user": 0},
        {"weights": {}},
        {"weights": {source: float("nan") for source in Source}},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]):
    with pytest.raises(ValueError, match=r"needed|lies between"):
        Rule(**settings)


def test_a_rule_as_a_manifest_keeps_it():
    assert Rule(sources=frozenset({Source.EDIT, Source.COPY}), since=at(0)).content() == {
        "min_votes": 1,
        "min_agreement": 0.6,
        "sources": ["copy", "edit"],
        "policies": None,
        "policy_match": "both",
        "since": "2026-03-01T12:00:00.000000Z",
        "until": None,
        "max_per_user": None,
        "weights": {
            "comparison": 1.0,
            "edit": 1.0,
            "thumb": 0.5,
            "rating": 0.5,
            "copy": 0.3,
            "escalate": 0.3,
            "regenerate": 0.3,
            "retry": 0.2,
            "import": 1.0,
        },
    }


QUESTIONS = [question(), question(number=1), question(Split.VALIDATION), question(Split.HELDOUT)]
KINDS: list[SignalKind] = ["thumb", "rating", "comment", "edit", "regenerate", "retry", "copy", "escalate"]


@st.composite
def evidence(draw: st.DrawFn) -> list[Candidate]:
    """Comparisons and threads over a few answers, with anything in them."""

    def some_answer(id: str, asked: str) -> Answer:
        flags = {
            name: draw(st.sampled_from([False] * 9 + [True])) for name in ("errored", "blocked", "probe")
        }
        text = draw(st.sampled_from(["", "red", "blue", "green", " blue "]))
        user = draw(st.sampled_from(["ann", "bob", None]))
        return answer(id, text, asked=asked, minute=draw(st.integers(0, 3)), user=user, **flags)

    candidates: list[Candidate] = []
    for number in range(draw(st.integers(0, 4))):
        asked = draw(st.sampled_from(QUESTIONS))
        choices = draw(st.lists(st.sampled_from(["a", "b", "tie", "both_bad", "skip"]), max_size=4))
        votes = tuple(
            Vote(
                f"v{number}.{place}",
                draw(st.sampled_from("xyz")),
                choice,
                at(place),
                flagged=draw(st.booleans()),
            )
            for place, choice in enumerate(choices)
        )
        sides = [some_answer(f"c{number}.{side}", asked) for side in "ab"]
        candidates.append(Comparison(f"c{number}", sides[0], sides[1], votes))
    for number in range(draw(st.integers(0, 3))):
        asked = draw(st.sampled_from(QUESTIONS))
        answers = tuple(some_answer(f"t{number}.{place}", asked) for place in range(draw(st.integers(1, 4))))
        signals = tuple(
            Signal(
                f"s{number}.{place}",
                draw(st.sampled_from([one.id or "" for one in answers] + ["gone"])),
                draw(st.sampled_from(KINDS)),
                at(draw(st.integers(4, 9))),
                draw(st.sampled_from(["ann", "bob"])),
                draw(st.sampled_from([-1.0, 1.0, 3.0])),
                draw(st.sampled_from([None, "red", "white"])),
            )
            for place in range(draw(st.integers(0, 5)))
        )
        candidates.append(Thread(f"t{number}", answers, signals))
    return sorted(candidates, key=order_of)


RULES = st.builds(
    Rule,
    min_votes=st.integers(1, 3),
    min_agreement=st.sampled_from([0.5, 0.6, 1.0]),
    max_per_user=st.none() | st.integers(1, 2),
    since=st.none() | st.just(at(2)),
)


@settings(max_examples=100, deadline=None)
@given(evidence(), RULES)
def test_what_holds_for_any_evidence(candidates: list[Candidate], rule: Rule):
    got = outcomes(*candidates, rule=rule)
    kept = [outcome for outcome in got if isinstance(outcome, Kept)]
    held = hash_of_text(question(Split.HELDOUT))
    for outcome in kept:
        row = outcome.row
        assert row.prompt_hash != held
        assert row.chosen.strip() != row.rejected.strip()
        assert row.chosen.strip()
        assert row.rejected.strip()
        assert row.created_at is not None
        assert rule.since is None or row.created_at >= rule.since
        assert row.source != "comparison" or row.votes >= rule.min_votes
    answers = [frozenset((one.row.chosen_response_id, one.row.rejected_response_id)) for one in kept]
    served = [both for both in answers if None not in both]
    assert len(served) == len(set(served))
    for user in ("ann", "bob"):
        assert rule.max_per_user is None or sum(one.user == user for one in kept) <= rule.max_per_user
    data = {vote.id for one in candidates if isinstance(one, Comparison) for vote in one.votes}
    data |= {one.id for one in candidates if isinstance(one, Comparison)}
    data |= {one.id for thread in candidates if isinstance(thread, Thread) for one in thread.signals}
    assert fates(got).keys() == data
    assert outcomes(*candidates, rule=rule) == got


@settings(max_examples=60, deadline=None)
@given(evidence(), st.randoms(use_true_random=False))
def test_votes_and_signals_come_in_any_order(candidates: list[Candidate], shuffler: random.Random):
    def shuffled(candidate: Candidate) -> Candidate:
        if isinstance(candidate, Comparison):
            return replace(candidate, votes=tuple(shuffler.sample(candidate.votes, len(candidate.votes))))
        assert isinstance(candidate, Thread)
        return replace(
            candidate,
            answers=tuple(shuffler.sample(candidate.answers, len(candidate.answers))),
            signals=tuple(shuffler.sample(candidate.signals, len(candidate.signals))),
        )

    assert set(outcomes(*map(shuffled, candidates))) == set(outcomes(*candidates))


def test_a_prompt_built_by_hand_is_the_one_that_is_hashed():
    assert prompt()[0].content == question()
