"""The rule that turns votes and signals into preference pairs.

Evidence comes as candidates, in the order of `evidence.order_of`: comparisons first, then threads, then
imports, so that of two sources that pair the same two answers the more trusted is kept. Each candidate goes
through the same steps, and the first that fails names the reason (`rows.DropReason` is in this order):

1. fit: the prompt is not held out, nobody's probe, and plain text; both answers answer the same history,
   neither failed nor was blocked, neither is empty, and they differ by more than white space at the ends;
2. verdict: a comparison by the votes (`votes.tally`); an edit by itself, the corrected text over the
   original, of each user the last; two shown answers of a thread by their signals (`implicit.decide`);
3. filter: source, time window, policy versions;
4. once: the same two answers give one pair, the same import one;
5. cap: one end user gives at most so many.

The outcome depends on the candidates alone: no clock, no randomness. Memory is some 100 bytes a pair kept.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import assert_never

from feedback import implicit
from feedback.evidence import (
    Answer,
    Candidate,
    Comparison,
    ImportedDemonstration,
    ImportedPair,
    Signal,
    Thread,
)
from feedback.rows import HUMAN_EDIT, DropReason, PreferenceRow, Source
from feedback.rule import Dropped, Gate, Kept, Pair, Rule, in_order, is_held_out, unfit, unusable_texts
from feedback.votes import Verdict, tally

MAX_SIBLINGS = 16
"""Shown answers of a thread set against one another, the latest ones: past that, a machine repeats itself."""


def build_pairs(
    candidates: Iterable[Candidate], rule: Rule, *, held_out: Container[str] = frozenset()
) -> Iterator[Pair | Dropped]:
    """Applies the rule, one candidate at a time.

    Args:
        candidates: The evidence, in the order of `evidence.order_of`; demonstrations are passed over.
        rule: What counts and what is wanted.
        held_out: Hashes of the prompts of held-out suites, beside those the split holds out.

    Yields:
        One outcome or more for every candidate; every vote, signal and import is an input of at least one.

    Raises:
        ValueError: A candidate comes twice or out of its order.
    """
    gate = Gate(rule)
    for candidate in in_order(candidates):
        for outcome in _outcomes(candidate, rule, held_out):
            yield gate.admit(outcome) if isinstance(outcome, Kept) else outcome


def _outcomes(candidate: Candidate, rule: Rule, held_out: Container[str]) -> Iterator[Pair | Dropped]:
    match candidate:
        case Comparison():
            yield _from_comparison(candidate, rule, held_out)
        case Thread():
            yield from _from_thread(candidate, rule, held_out)
        case ImportedPair():
            yield _from_import(candidate, held_out)
        case ImportedDemonstration():
            pass
        case _:
            assert_never(candidate)


def _from_comparison(comparison: Comparison, rule: Rule, held_out: Container[str]) -> Pair | Dropped:
    inputs = (comparison.id, *sorted(vote.id for vote in comparison.votes))
    reason = unfit((comparison.a, comparison.b), held_out)
    if comparison.gold and reason not in (DropReason.HELD_OUT, DropReason.PROBE):
        reason = DropReason.GOLD
    if reason is not None:
        return Dropped(reason, inputs)
    return _concluded(
        comparison.a,
        comparison.b,
        tally(comparison.votes, rule.min_votes, rule.min_agreement),
        rule,
        inputs,
    )


def _from_thread(thread: Thread, rule: Rule, held_out: Container[str]) -> Iterator[Pair | Dropped]:
    answers = {answer.id: answer for answer in thread.answers if answer.id is not None}
    known = [signal for signal in thread.signals if signal.response_id in answers]
    settled: set[str] = set()
    for outcome in (*_edits(answers, known, rule, held_out), *_siblings(answers, known, rule, held_out)):
        settled.update(outcome.inputs)
        yield outcome
    for signal in thread.signals:
        if signal.id not in settled:
            yield Dropped(_why_alone(signal, answers.get(signal.response_id), held_out), (signal.id,))


def _edits(
    answers: dict[str, Answer], signals: Iterable[Signal], rule: Rule, held_out: Container[str]
) -> Iterator[Pair | Dropped]:
    for signal, is_last in edits_of(signals):
        original = answers[signal.response_id]
        corrected = replace(original, id=None, text=signal.text or "", policy=HUMAN_EDIT, decode=None)
        reason = unfit((corrected, original), held_out) or (None if is_last else DropReason.SUPERSEDED)
        if reason is not None:
            yield Dropped(reason, (signal.id,))
        else:
            yield _concluded(corrected, original, _edit_verdict(signal), rule, (signal.id,))


def edits_of(signals: Iterable[Signal]) -> Iterator[tuple[Signal, bool]]:
    """The edits among signals, oldest first, each with whether it is its user's last on that answer."""
    edits = sorted(
        (signal for signal in signals if signal.kind == "edit"), key=lambda edit: (edit.created_at, edit.id)
    )
    last = {(edit.response_id, edit.user): edit.id for edit in edits}
    for edit in edits:
        yield edit, last[edit.response_id, edit.user] == edit.id


def _edit_verdict(signal: Signal) -> Verdict:
    return Verdict(
        first_wins=True,
        source=Source.EDIT,
        votes=1,
        raters=() if signal.user is None else (signal.user,),
        agreement=None,
        decided_at=signal.created_at,
    )


def _siblings(
    answers: dict[str, Answer], signals: Iterable[Signal], rule: Rule, held_out: Container[str]
) -> Iterator[Pair | Dropped]:
    about: defaultdict[str, list[Signal]] = defaultdict(list)
    for signal in signals:
        about[signal.response_id].append(signal)
    shown = sorted((answer.created_at, name) for name, answer in answers.items() if answer.shown)
    for (_, one), (_, other) in combinations(shown[-MAX_SIBLINGS:], 2):
        first, second = answers[one], answers[other]
        spoken = implicit.speaking(first, second, about[one] + about[other])
        if not spoken:
            continue
        inputs = tuple(sorted(signal.id for each in spoken for signal in each.signals))
        verdict = unfit((first, second), held_out) or implicit.decide(spoken)
        yield _concluded(first, second, verdict, rule, inputs)


def _why_alone(signal: Signal, answer: Answer | None, held_out: Container[str]) -> DropReason:
    if answer is None:
        return DropReason.UNKNOWN_RESPONSE
    if is_held_out(answer.prompt_hash, held_out):
        return DropReason.HELD_OUT
    if answer.probe:
        return DropReason.PROBE
    return (
        DropReason.NO_COUNTERPART if signal.kind in implicit.ORDERING_KINDS else DropReason.NOT_A_PREFERENCE
    )


def _from_import(imported: ImportedPair, held_out: Container[str]) -> Pair | Dropped:
    row, inputs = imported.row, (imported.id,)
    if is_held_out(row.prompt_hash, held_out):
        return Dropped(DropReason.HELD_OUT, inputs)
    reason = unusable_texts((row.chosen, row.rejected))
    return Dropped(reason, inputs) if reason else Kept(row, inputs=inputs)


def _concluded(
    a: Answer, b: Answer, verdict: Verdict | DropReason, rule: Rule, inputs: tuple[str, ...]
) -> Pair | Dropped:
    if isinstance(verdict, DropReason):
        return Dropped(verdict, inputs)
    chosen, rejected = (a, b) if verdict.first_wins else (b, a)
    if chosen.prompt is None:
        return Dropped(DropReason.UNSUPPORTED, inputs)
    row = PreferenceRow(
        prompt=chosen.prompt,
        chosen=chosen.text,
        rejected=rejected.text,
        chosen_response_id=chosen.id,
        rejected_response_id=rejected.id,
        chosen_policy=chosen.policy,
        rejected_policy=rejected.policy,
        chosen_decode=chosen.decode,
        rejected_decode=rejected.decode,
        source=verdict.source.value,
        votes=verdict.votes,
        weight=rule.weights[verdict.source],
        created_at=verdict.decided_at,
        prompt_hash=chosen.prompt_hash,
    )
    return Kept(row, verdict.raters, verdict.agreement, a.user or b.user, inputs)
