"""The rule that turns edits and imports into demonstrations: the corrected text as the answer to copy.

It goes by the steps of `pairs`, with three differences: the original may have failed or been blocked, since
its words are not learned from; there is one text, so nothing can be tied; and the policy filter leaves
written text alone, since no policy spoke it.
"""

from collections.abc import Container, Iterable, Iterator

from feedback.evidence import Answer, Candidate, ImportedDemonstration, Signal, Thread
from feedback.pairs import edits_of
from feedback.rows import HUMAN_EDIT, DemonstrationRow, DropReason, Source
from feedback.rule import Demonstration, Dropped, Gate, Kept, Rule, in_order, is_held_out, unusable_texts


def build_demonstrations(
    candidates: Iterable[Candidate], rule: Rule, *, held_out: Container[str] = frozenset()
) -> Iterator[Demonstration | Dropped]:
    """Applies the rule, one candidate at a time.

    Args:
        candidates: The evidence, in the order of `evidence.order_of`; only threads' edits and imported
            demonstrations are looked at.
        rule: Its sources, window, policies, weights and cap are used.
        held_out: Hashes of the prompts of held-out suites, beside those the split holds out.

    Yields:
        One outcome for every edit and every imported demonstration.

    Raises:
        ValueError: A candidate comes twice or out of its order.
    """
    gate = Gate(rule)
    for candidate in in_order(candidates):
        for outcome in _outcomes(candidate, rule, held_out):
            yield gate.admit(outcome) if isinstance(outcome, Kept) else outcome


def _outcomes(
    candidate: Candidate, rule: Rule, held_out: Container[str]
) -> Iterator[Demonstration | Dropped]:
    if isinstance(candidate, ImportedDemonstration):
        yield _from_import(candidate, held_out)
    elif isinstance(candidate, Thread):
        answers = {answer.id: answer for answer in candidate.answers if answer.id is not None}
        for signal, is_last in edits_of(candidate.signals):
            yield _from_edit(signal, is_last, answers.get(signal.response_id), rule, held_out)


def _from_import(imported: ImportedDemonstration, held_out: Container[str]) -> Demonstration | Dropped:
    row, inputs = imported.row, (imported.id,)
    if is_held_out(row.prompt_hash, held_out):
        return Dropped(DropReason.HELD_OUT, inputs)
    reason = unusable_texts((row.completion,))
    return Dropped(reason, inputs) if reason else Kept(row, inputs=inputs)


def _from_edit(
    signal: Signal, is_last: bool, original: Answer | None, rule: Rule, held_out: Container[str]
) -> Demonstration | Dropped:
    inputs = (signal.id,)
    if original is None:
        return Dropped(DropReason.UNKNOWN_RESPONSE, inputs)
    text = signal.text or ""
    reason = _unfit(original, text, held_out) or (None if is_last else DropReason.SUPERSEDED)
    if reason is not None or original.prompt is None:
        return Dropped(reason or DropReason.UNSUPPORTED, inputs)
    row = DemonstrationRow(
        prompt=original.prompt,
        completion=text,
        response_id=original.id,
        policy=HUMAN_EDIT,
        decode=None,
        source=Source.EDIT.value,
        votes=1,
        weight=rule.weights[Source.EDIT],
        created_at=signal.created_at,
        prompt_hash=original.prompt_hash,
    )
    raters = () if signal.user is None else (signal.user,)
    return Kept(row, raters, None, original.user, inputs)


def _unfit(original: Answer, text: str, held_out: Container[str]) -> DropReason | None:
    if is_held_out(original.prompt_hash, held_out):
        return DropReason.HELD_OUT
    if original.probe:
        return DropReason.PROBE
    if original.prompt is None:
        return DropReason.UNSUPPORTED
    return unusable_texts((text,)) or (
        DropReason.IDENTICAL if text.strip() == original.text.strip() else None
    )
