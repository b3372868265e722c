"""Evaluation raters as a source of verdicts, beside a judge and of equal standing.

A comparison goes into the queue of the evaluation pool, blind like every other; the raters of that pool label
nothing that trains. The majority of the votes is the verdict, and raters who do not all say the same count as
a disagreement, like the two orders of a judge.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from evaluator.comparing import Contest
from evaluator.judge.pairwise import PairVerdict
from ratchet.canonical import canonical_json
from ratchet.errors import RatchetError
from ratchet.ids import id_beside
from ratchet.prompts import history_hash, split

SOURCE = "raters"

_ASK = text("""
    INSERT INTO feedback.comparison
        (id, pool, source, prompt, prompt_hash, history_hash, split, a_answer, a_text, a_policy,
         b_answer, b_text, b_policy, answered_at, names_policy, wanted)
    VALUES
        (:id, 'evaluation', 'candidate', CAST(:prompt AS jsonb), :prompt_hash, :history_hash, :split,
         :a_answer, :a_text, :a_policy, :b_answer, :b_text, :b_policy, :now, :names_policy, :wanted)
    ON CONFLICT DO NOTHING
""")
_VOTES = text("""
    SELECT DISTINCT ON (comparison_id, rater_id) comparison_id, choice FROM feedback.rating
    WHERE comparison_id = ANY (:ids) AND undone_at IS NULL AND NOT flagged AND choice <> 'skip'
    ORDER BY comparison_id, rater_id, created_at DESC
""")


class StillRating(RatchetError):
    """Raters have not voted on everything yet: the run waits, and goes on when it is called again."""


def ask_raters(
    session: Session, run: UUID, contests: Sequence[Contest], wanted: int, *, now: datetime
) -> None:
    """Puts contests into the queue of the evaluation raters; one that is there already stays.

    Args:
        session: As the role `ratchet_evaluator`.
        run: Whose they are.
        contests: What is asked; of equal answers nobody needs to be.
        wanted: Votes for each.
        now: The time.
    """
    values = [_row(run, contest, wanted, now) for contest in contests]
    if values:
        session.execute(_ASK, values)


def collect(
    session: Session, run: UUID, contests: Sequence[Contest], wanted: int
) -> tuple[list[dict[str, Any]], int]:
    """The verdicts of contests that have their votes, as rows, and how many contests still wait."""
    names = {_identity(run, contest): contest for contest in contests}
    votes: dict[UUID, list[int]] = {}
    for row in session.execute(_VOTES, {"ids": list(names)}):
        votes.setdefault(row.comparison_id, []).append(_score(row.choice, _candidate_is_a(run, names, row)))
    rows = [
        contest.row(SOURCE, _verdict(contest, votes[identity]), (None, None))
        for identity, contest in names.items()
        if len(votes.get(identity, ())) >= wanted
    ]
    return rows, len(names) - len(rows)


def _verdict(contest: Contest, scores: Sequence[int]) -> PairVerdict:
    total = sum(scores)
    result = "win" if total > 0 else "loss" if total < 0 else "tie"
    return PairVerdict(
        contest.item.prompt_hash, result, len(set(scores)) == 1, f"{len(scores)} votes, {total:+d} in all"
    )


def _score(choice: str, candidate_is_a: bool) -> int:
    value = {"a": 1, "b": -1}.get(choice, 0)
    return value if candidate_is_a else -value


def _candidate_is_a(run: UUID, names: dict[UUID, Contest], row: Any) -> bool:
    contest = names[row.comparison_id]
    return _answer(run, contest, contest.candidate) < _answer(run, contest, contest.other)


def _identity(run: UUID, contest: Contest) -> UUID:
    return id_beside(run, *contest.key)


def _answer(run: UUID, contest: Contest, policy: str) -> str:
    return f"evaluation:{run}:{contest.item.suite}:{contest.item.name}:{policy}"


def _row(run: UUID, contest: Contest, wanted: int, now: datetime) -> dict[str, Any]:
    sides = sorted(
        (_answer(run, contest, policy), answer.text, policy)
        for policy, answer in ((contest.candidate, contest.mine), (contest.other, contest.theirs))
    )
    (a_answer, a_text, a_policy), (b_answer, b_text, b_policy) = sides
    names = {policy.partition("@")[0].casefold() for policy in (a_policy, b_policy)}
    messages = list(contest.item.messages)
    return {
        "id": _identity(run, contest),
        "prompt": canonical_json(messages),
        "prompt_hash": contest.item.prompt_hash,
        "history_hash": history_hash(messages),
        "split": split(contest.item.prompt_hash).value,
        "a_answer": a_answer,
        "a_text": a_text,
        "a_policy": a_policy,
        "b_answer": b_answer,
        "b_text": b_text,
        "b_policy": b_policy,
        "now": now,
        "names_policy": any(name in (a_text + b_text).casefold() for name in names),
        "wanted": wanted,
    }
