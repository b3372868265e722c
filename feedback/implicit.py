"""From what a user did about two answers that were shown at one point of a conversation to one verdict.

A kind of signal speaks for one answer over the other as follows:

- thumb: one has more thumbs up than down, the other more down than up (of each user the last thumb counts);
- rating: both are rated, and the mean of each user's last rating is higher;
- copy: one was copied, the other not;
- escalate: one led to an escalation, the other not;
- regenerate, retry: one was abandoned that way, the other came later and was kept.

The most trusted kind that speaks, in this order, gives the source and the weight. If kinds point both ways
nothing is concluded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from feedback.evidence import Answer, Signal, SignalKind
from feedback.rows import DropReason, Source
from feedback.votes import Verdict

Signals = Mapping[SignalKind, list[Signal]]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A kind of signal that speaks for one of two answers."""

    kind: SignalKind
    for_first: bool
    signals: tuple[Signal, ...]


def speaking(first: Answer, second: Answer, signals: Iterable[Signal]) -> list[Spoken]:
    """The kinds of signal that speak for one of two answers, most trusted first.

    Args:
        first: An answer that was shown.
        second: Another, shown at the same point.
        signals: Every signal on the two; those on other answers are not looked at.
    """
    in_time = sorted(signals, key=lambda signal: (signal.created_at, signal.id))
    on_first, on_second = _by_kind(in_time, first), _by_kind(in_time, second)
    spoken: list[Spoken] = []
    for kind, weigh in _KINDS.items():
        direction = weigh(kind, on_first, on_second)
        if kind in _ABANDONING and not _winner_came_later(direction, first, second):
            direction = 0
        if direction:
            heard = (*on_first.get(kind, ()), *on_second.get(kind, ()))
            spoken.append(Spoken(kind, direction > 0, heard))
    return spoken


def decide(spoken: Sequence[Spoken]) -> Verdict | DropReason:
    """The verdict of kinds that speak, at least one; or that they contradict one another."""
    if len({each.for_first for each in spoken}) > 1:
        return DropReason.CONFLICTING_SIGNALS
    decisive = spoken[0]
    return Verdict(
        first_wins=decisive.for_first,
        source=Source(decisive.kind),
        votes=len(decisive.signals),
        raters=tuple(sorted({signal.user for signal in decisive.signals if signal.user is not None})),
        agreement=None,
        decided_at=max(signal.created_at for each in spoken for signal in each.signals),
    )


def _by_kind(signals: Iterable[Signal], answer: Answer) -> Signals:
    kinds: dict[SignalKind, list[Signal]] = {}
    for signal in signals:
        if signal.response_id == answer.id:
            kinds.setdefault(signal.kind, []).append(signal)
    return kinds


def _winner_came_later(direction: int, first: Answer, second: Answer) -> bool:
    winner, loser = (first, second) if direction > 0 else (second, first)
    return winner.created_at > loser.created_at


def _last_values(signals: Iterable[Signal]) -> list[float]:
    """The last value of each user; signals are in the order of time."""
    return list({signal.user: signal.value for signal in signals if signal.value is not None}.values())


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _thumb(kind: SignalKind, first: Signals, second: Signals) -> int:
    up, down = (_sign(sum(_last_values(side.get(kind, [])))) for side in (first, second))
    return up if up * down < 0 else 0


def _rating(kind: SignalKind, first: Signals, second: Signals) -> int:
    ours, theirs = (_last_values(side.get(kind, [])) for side in (first, second))
    if not ours or not theirs:
        return 0
    return _sign(sum(ours) / len(ours) - sum(theirs) / len(theirs))


def _present(kind: SignalKind, first: Signals, second: Signals) -> int:
    return (kind in first) - (kind in second)


def _absent(kind: SignalKind, first: Signals, second: Signals) -> int:
    return (kind in second) - (kind in first)


def _abandoned(kind: SignalKind, first: Signals, second: Signals) -> int:
    gone = [bool(_ABANDONING & side.keys()) for side in (first, second)]
    return 0 if all(gone) else _absent(kind, first, second)


_KINDS: dict[SignalKind, Callable[[SignalKind, Signals, Signals], int]] = {
    "thumb": _thumb,
    "rating": _rating,
    "copy": _present,
    "escalate": _absent,
    "regenerate": _abandoned,
    "retry": _abandoned,
}
_ABANDONING: frozenset[SignalKind] = frozenset({"regenerate", "retry"})

ORDERING_KINDS = frozenset(_KINDS)
"""The kinds of signal that can order two answers."""
