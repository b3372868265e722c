"""Raters' votes as matches of policies, for their ranking."""

from collections.abc import Iterable

from feedback.evidence import Comparison
from feedback.votes import standing_votes
from ratchet.bradley_terry import Match


def matches_of(comparisons: Iterable[Comparison]) -> Iterable[Match]:
    """The standing votes as matches; both-bad is a tie, skips and flagged raters are left out."""
    scores = {"a": 1.0, "b": 0.0, "tie": 0.5, "both_bad": 0.5}
    for comparison in comparisons:
        for vote in standing_votes(comparison.votes):
            if vote.choice != "skip" and not vote.flagged:
                yield Match(
                    comparison.a.policy,
                    comparison.b.policy,
                    scores[vote.choice],
                    comparison.a.prompt_hash,
                )
