"""Selection: candidates on their KL axis in, one proposal or none out, with the reason in words.

Nothing here knows a reward: a candidate is what held-out judges, tasks and floors say of it, and how far it
has moved.

A candidate is eligible where no floor is breached, no dimension is shown to be, or could still be, worse than
production by more than its margin, as many of its answers as of production's can be told right or wrong, and
its primary figure is better than production by more than chance, counted over all candidates together. Of the
eligible ones the one with the best figure is taken; where candidates tie, the one that moved least.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.statistics.interval import Interval

ALPHA = 0.05
TIE = 1e-9
LEAST_TOLD = 0.5
"""A floor says nothing where fewer of the answers are right or wrong."""


@dataclass(frozen=True, slots=True)
class Primary:
    """What candidates are ranked by: a judge's win rate over production, or a task metric's gain."""

    name: str
    value: Interval
    nothing_gained: float
    """What the value is for a candidate as good as production: 0.5 for a win rate, 0 for a gain."""
    p_value: float
    """That it is better than that, adjusted over all candidates."""


@dataclass(frozen=True, slots=True)
class Change:
    """One dimension, as the difference from production."""

    name: str
    gain: Interval
    """Better is positive, whatever the metric's own direction."""
    margin: float
    """How much worse is still accepted; not negative."""

    @property
    def kept(self) -> bool:
        """Whether a loss beyond the margin is ruled out by the interval."""
        return self.gain.low is not None and self.gain.low >= -self.margin


@dataclass(frozen=True, slots=True)
class Floor:
    """A level that a metric must not fall below, whatever else is gained."""

    name: str
    value: Interval
    """Better is higher."""
    minimum: float
    told: float = 1.0
    """Share of the answers that are right or wrong, not truncated or unscored."""

    @property
    def passed(self) -> bool:
        """Whether the estimate is known, from enough answers, and on or above the floor."""
        level = self.value.estimate
        return level is not None and self.told >= LEAST_TOLD and level >= self.minimum

    @property
    def shown(self) -> str:
        """The level in words beside what is asked."""
        told = "" if self.told >= LEAST_TOLD else f" of the {self.told:.0%} that can be told"
        return f"{self.name} {_number(self.value.estimate)}{told}, at least {self.minimum:g} is asked"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint as the held-out evaluation sees it."""

    policy: str
    step: int
    kl: float
    """From the reference, in nats a sequence, measured on held-back prompts; not negative."""
    primary: Primary | None
    """Null where it could not be measured."""
    changes: tuple[Change, ...] = ()
    floors: tuple[Floor, ...] = ()
    told: tuple[Change, ...] = ()
    """Of each metric, the change in the share of answers that can be told right or wrong: figures count those
    alone, and one that left out the hard prompts would look better than it is."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One candidate in the record."""

    candidate: Candidate
    on_frontier: bool
    """No other candidate has at most its KL and a better primary figure."""
    refused: tuple[str, ...]
    """Why it is not eligible; empty where it is."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A proposal, or none, with its reason."""

    chosen: str | None
    reason: str
    standings: tuple[Standing, ...]
    """On the KL axis, the nearest to the reference first."""


class UnusableCandidates(ValueError):
    """The candidates cannot be put on one axis."""


def select(candidates: Sequence[Candidate], *, alpha: float = ALPHA) -> Selection:
    """Chooses one candidate or none.

    Args:
        candidates: Of one round, in any order.
        alpha: The chance, over all candidates together, to propose one that is no better than production.

    Raises:
        UnusableCandidates: A policy is there twice, a KL is negative or no number, a margin is negative, or
            the primary figures are not the same one.
    """
    _check(candidates)
    if not candidates:
        return Selection(None, "the round has no candidate", ())
    ordered = sorted(candidates, key=lambda one: (one.kl, one.step, one.policy))
    standings = tuple(
        Standing(one, _on_frontier(one, ordered), tuple(_refusals(one, alpha))) for one in ordered
    )
    eligible = [standing for standing in standings if not standing.refused]
    if not eligible:
        return Selection(None, _why_none(standings), standings)
    best = max(_estimate(standing.candidate) or 0.0 for standing in eligible)
    chosen = next(one for one in eligible if (_estimate(one.candidate) or 0.0) >= best - TIE)
    return Selection(chosen.candidate.policy, _why(chosen, eligible, standings), standings)


def _check(candidates: Sequence[Candidate]) -> None:
    policies = [one.policy for one in candidates]
    if len(set(policies)) < len(policies):
        raise UnusableCandidates("a policy is among the candidates twice")
    for one in candidates:
        if not 0 <= one.kl < float("inf"):
            raise UnusableCandidates(f"the KL of {one.policy} is {one.kl}: measure it before selecting")
        if any(change.margin < 0 for change in (*one.changes, *one.told)):
            raise UnusableCandidates(f"a margin of {one.policy} is negative")
    primaries = {(one.primary.name, one.primary.nothing_gained) for one in candidates if one.primary}
    if len(primaries) > 1:
        names = ", ".join(sorted(name for name, _ in primaries))
        raise UnusableCandidates(f"candidates are ranked by different figures: {names}")


def _estimate(candidate: Candidate) -> float | None:
    return None if candidate.primary is None else candidate.primary.value.estimate


def _on_frontier(candidate: Candidate, others: Sequence[Candidate]) -> bool:
    mine = _estimate(candidate)
    if mine is None:
        return False
    rivals = [
        value
        for one in others
        if one.policy != candidate.policy and one.kl <= candidate.kl and (value := _estimate(one)) is not None
    ]
    return all(value <= mine for value in rivals)


def _refusals(candidate: Candidate, alpha: float) -> list[str]:
    reasons: list[str] = []
    primary = candidate.primary
    if primary is None or primary.value.estimate is None:
        reasons.append("its primary figure could not be measured")
    elif primary.value.estimate <= primary.nothing_gained:
        reasons.append(f"{primary.name} {primary.value.estimate:.3f} is no gain over production")
    elif not primary.p_value <= alpha:
        reasons.append(
            f"{primary.name} {primary.value.estimate:.3f} could be chance (p = {primary.p_value:.3f} over all"
            " candidates)"
        )
    reasons.extend(f"floor {floor.shown}" for floor in candidate.floors if not floor.passed)
    reasons.extend(
        f"{change.name} may be worse by {_worst(change)}, more than its margin {change.margin:g}"
        for change in candidate.changes
        if not change.kept
    )
    reasons.extend(
        f"of {change.name} {_worst(change)} more may be truncated or unscored, and {change.margin:.2g} may be"
        for change in candidate.told
        if not change.kept
    )
    return reasons


def _worst(change: Change) -> str:
    return _number(None if change.gain.low is None else -change.gain.low)


def _why_none(standings: Sequence[Standing]) -> str:
    told = "; ".join(f"{one.candidate.policy}: {', '.join(one.refused)}" for one in standings)
    return f"no candidate is proposed. {told}"


def _why(chosen: Standing, eligible: Sequence[Standing], standings: Sequence[Standing]) -> str:
    candidate = chosen.candidate
    primary = candidate.primary
    shown = "unknown" if primary is None else f"{primary.name} {_range(primary.value)}"
    words = [
        f"{candidate.policy} (step {candidate.step}, KL {candidate.kl:.3g}) has {shown} against production,"
        f" the best of {len(eligible)} eligible among {len(standings)} candidates"
    ]
    farther = [one for one in eligible if one.candidate.kl > candidate.kl]
    if farther:
        words.append(f"{len(farther)} eligible candidates moved farther from the reference for no more")
    words.append("all floors hold and no dimension may be worse past its margin")
    return "; ".join(words) + "."


def _range(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return _number(interval.estimate)
    return f"{_number(interval.estimate)} [{interval.low:.3f}, {interval.high:.3f}]"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
