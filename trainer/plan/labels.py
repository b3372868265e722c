"""Which method the labels at hand are good for.

The first question of a round is not which algorithm, but which labels there are, what they cost, and how fast
they come. The answer is a rule, in order:

1. A check that says by itself whether an answer is right teaches what no rater wrote down, if it is quick
   beside the sampling it waits for: verifiable RL.
2. Else pairs, if enough of them compare answers of the policy itself or of a near ancestor: DPO. On old pairs
   it would learn to tell apart answers that the policy no longer gives.
3. Else demonstrations: SFT, which needs nothing but answers worth copying.
4. Else there is nothing to train on yet.

Demonstrations come first of all where the policy has never seen the format: SFT, then one of the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

ENOUGH_PAIRS = 200
"""Fewer fresh pairs leave a share of one half uncertain by more than 7 points (95%, normal interval)."""
ENOUGH_DEMONSTRATIONS = 50
FRESH_DISTANCE = 2
"""Steps back to the policy that spoke, up to which a pair is fresh."""
QUICK_SHARE = 0.5
"""Share of the sampling time of an answer up to which a check is quick."""


@dataclass(frozen=True)
class Verifier:
    """A check that needs no person.

    Attributes:
        name: What it checks.
        milliseconds: Time of one check.
    """

    name: str
    milliseconds: float


@dataclass(frozen=True)
class Labels:
    """What there is to learn from.

    Attributes:
        demonstrations: Answers worth copying.
        pairs: Preference pairs by distance: 0 where the policy itself spoke both answers, 1 its parent, ...;
            None where a side is no ancestor's or nobody knows whose it is.
        verifiers: Checks that need no person.
        sampling_ms: Time the policy takes for one answer.
    """

    demonstrations: int = 0
    pairs: Mapping[int | None, int] = field(default_factory=dict[int | None, int])
    verifiers: tuple[Verifier, ...] = ()
    sampling_ms: float = 1000.0

    @property
    def all_pairs(self) -> int:
        """Pairs of every age."""
        return sum(self.pairs.values())

    @property
    def fresh_pairs(self) -> int:
        """Pairs that the policy or a near ancestor spoke."""
        return sum(
            count
            for distance, count in self.pairs.items()
            if distance is not None and distance <= FRESH_DISTANCE
        )


@dataclass(frozen=True)
class Recommendation:
    """What to run.

    Attributes:
        method: `sft`, `dpo`, `rl` (with verifiable rewards), or None where there is nothing to learn from.
        reason: Why, with the numbers.
        then: What to do first or next.
    """

    method: str | None
    reason: str
    then: str


def recommend(labels: Labels) -> Recommendation:
    """The method the labels are good for, and why."""
    quick = sorted(
        (each for each in labels.verifiers if each.milliseconds <= QUICK_SHARE * labels.sampling_ms),
        key=lambda each: each.milliseconds,
    )
    slow = [each for each in labels.verifiers if each not in quick]
    if quick:
        named = ", ".join(f"{each.name} {each.milliseconds:g} ms" for each in quick)
        return Recommendation(
            "rl",
            f"checks that need no person are quick beside {labels.sampling_ms:g} ms for an answer: {named}",
            "train SFT first if the policy does not know the format of answers that the check reads"
            if labels.demonstrations
            else "keep held-out tasks of another kind: a check that is gamed does not show it",
        )
    waits = ", ".join(f"{each.name} {each.milliseconds:g} ms" for each in slow)
    beside = f"; checks are too slow beside {labels.sampling_ms:g} ms for an answer ({waits})" if slow else ""
    if labels.fresh_pairs >= ENOUGH_PAIRS:
        return Recommendation(
            "dpo",
            f"{labels.fresh_pairs} of {labels.all_pairs} pairs compare answers of this policy or an ancestor "
            f"at most {FRESH_DISTANCE} steps back{beside}",
            "collect pairs of the new policy afterwards: the share of fresh ones falls with every release",
        )
    few = (
        f"{labels.fresh_pairs} fresh pairs of {labels.all_pairs} are fewer than {ENOUGH_PAIRS}{beside}"
        if labels.all_pairs
        else f"there are no pairs{beside}"
    )
    if labels.demonstrations >= ENOUGH_DEMONSTRATIONS:
        return Recommendation(
            "sft",
            f"{few}, and {labels.demonstrations} demonstrations are worth copying",
            "then collect pairs of the policy it makes, for DPO",
        )
    return Recommendation(
        None,
        f"{few}, and {labels.demonstrations} demonstrations are fewer than {ENOUGH_DEMONSTRATIONS}",
        "collect first: ratings (`ratchet rater add`) for pairs, edits and imports for demonstrations",
    )
