"""Two readings, one for each order of the answers, become one verdict; verdicts become a run's tally."""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.judge.parse import Choice, Reading
from evaluator.statistics.interval import LEVEL, Interval
from evaluator.statistics.wilson import wilson
from evaluator.statistics.winrate import Result, Verdict
from ratchet.errors import RatchetError

UNSCORED_BOUND = 0.05

_FORWARD: dict[Choice, Result] = {"first": "win", "second": "loss", "tie": "tie"}
_BACKWARD: dict[Choice, Result] = {"first": "loss", "second": "win", "tie": "tie"}


class JudgeFailed(RatchetError):
    """Too many comparisons have no verdict for the rest to mean anything."""


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """What both orders say together, from the candidate's side."""

    prompt: str
    result: Result | None
    """Null where either order could not be read."""
    agreed: bool | None
    """Whether both orders said the same; null where either could not be read."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JudgeTally:
    """A run of a judge over pairs."""

    verdicts: tuple[Verdict, ...]
    """The scored ones."""
    scored: int
    unscored: int
    inconsistency: Interval
    """Share of scored pairs on which the orders disagreed, with Wilson's interval."""
    unscored_reasons: tuple[str, ...]
    """Each once, the most frequent first."""


def combine(prompt: str, candidate_first: Reading, candidate_second: Reading) -> PairVerdict:
    """One verdict from both orders. Where they disagree it is a tie, and counted as a disagreement.

    Args:
        prompt: Hash or id.
        candidate_first: The reading with the candidate's answer shown as A.
        candidate_second: The reading with it shown as B.
    """
    for reading in (candidate_first, candidate_second):
        if reading.choice is None:
            return PairVerdict(prompt, None, None, reading.reason)
    assert candidate_first.choice is not None  # noqa: S101
    assert candidate_second.choice is not None  # noqa: S101
    forward, backward = _FORWARD[candidate_first.choice], _BACKWARD[candidate_second.choice]
    return PairVerdict(prompt, forward if forward == backward else "tie", forward == backward)


def tally_verdicts(
    pairs: Sequence[PairVerdict], *, unscored_bound: float = UNSCORED_BOUND, level: float = LEVEL
) -> JudgeTally:
    """Adds up a run.

    Args:
        pairs: One for each prompt and pair of policies.
        unscored_bound: The share of unscored pairs above which the run has failed.
        level: Of confidence.

    Raises:
        JudgeFailed: More are unscored than the bound allows, or nothing was compared.
    """
    if not pairs:
        raise JudgeFailed("nothing was compared: the two policies have no prompt in common")
    scored = [pair for pair in pairs if pair.result is not None]
    reasons = [pair.reason for pair in pairs if pair.result is None]
    ordered = tuple(sorted(set(reasons), key=lambda reason: (-reasons.count(reason), reason)))
    if len(reasons) > unscored_bound * len(pairs):
        raise JudgeFailed(
            f"{len(reasons)} of {len(pairs)} comparisons have no verdict, more than {unscored_bound:.0%};"
            f" most often:"
            f" {ordered[0]}"
        )
    verdicts = tuple(Verdict(pair.prompt, pair.result) for pair in scored if pair.result is not None)
    disagreements = sum(pair.agreed is False for pair in scored)
    return JudgeTally(verdicts, len(scored), len(reasons), wilson(disagreements, len(scored), level), ordered)
