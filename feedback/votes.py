"""From the votes of raters on two answers to one verdict."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from feedback.evidence import Vote
from feedback.rows import DropReason, Source


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which of two answers is preferred, and on what it rests."""

    first_wins: bool
    source: Source
    votes: int
    raters: tuple[str, ...]
    agreement: float | None
    decided_at: datetime


def standing_votes(votes: Iterable[Vote]) -> list[Vote]:
    """The last vote of every rater, oldest first."""
    in_time = sorted(votes, key=lambda vote: (vote.created_at, vote.id))
    latest = {vote.rater: vote for vote in in_time}
    return [vote for vote in in_time if latest[vote.rater] is vote]


def tally(votes: Iterable[Vote], min_votes: int, min_agreement: float) -> Verdict | DropReason:
    """Counts the votes on one comparison; the first answer is `a`.

    Of each rater the last vote stands; skips and evaluation raters never count, flagged raters do not. Then,
    of n counted votes: fewer than `min_votes` decide nothing; half or more both-bad, or half or more ties, or
    as many for the one as for the other decide nothing; else the winner needs `min_agreement` of the n.
    """
    meant = [vote for vote in standing_votes(votes) if vote.choice != "skip"]
    ours = [vote for vote in meant if vote.pool == "preference"]
    counted = [vote for vote in ours if not vote.flagged]
    if meant and not ours:
        return DropReason.EVALUATION_RATER
    if len(counted) < min_votes:
        return DropReason.FLAGGED_RATER if len(ours) >= min_votes else DropReason.TOO_FEW_VOTES
    total = len(counted)
    choices = Counter(vote.choice for vote in counted)
    if 2 * choices["both_bad"] >= total:
        return DropReason.BOTH_BAD
    if 2 * choices["tie"] >= total or choices["a"] == choices["b"]:
        return DropReason.TIE
    agreement = max(choices["a"], choices["b"]) / total
    if agreement < min_agreement:
        return DropReason.DISAGREEMENT
    return Verdict(
        first_wins=choices["a"] > choices["b"],
        source=Source.COMPARISON,
        votes=total,
        raters=tuple(sorted(vote.rater for vote in counted)),
        agreement=agreement,
        decided_at=max(vote.created_at for vote in counted),
    )
