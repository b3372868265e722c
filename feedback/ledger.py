"""The ledger: what became of every comparison, vote, signal and import; the counts add up.

A datum is used (it stands behind a row of the snapshot), held out, or left out for a reason. Everything a
candidate holds is settled by the time the next one is read, so the ledger keeps one candidate's fates at a
time and adds them up.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from feedback.evidence import Candidate, Comparison, Thread
from feedback.rows import DropReason, Kind
from feedback.rule import Dropped, Outcome, fates

USED = "used"


class Ledger:
    """Counts the data that pass by, and what became of them.

    Wrap the candidates in `watch` and give every outcome to `note`; the counts are complete when the
    candidates are exhausted.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.dropped: Counter[str] = Counter()
        """Candidates (of a thread: pairs of answers, edits, lone signals) left out, by reason."""
        self._seen: Counter[str] = Counter()
        self._fates: dict[str, Counter[str]] = {}
        self._open: Candidate | None = None
        self._outcomes: list[Outcome] = []

    def watch(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """Passes the candidates on and notes what data they hold."""
        for candidate in candidates:
            self._settle()
            self._open = candidate
            yield candidate
        self._settle()
        self._open = None

    def note(self, outcome: Outcome) -> None:
        """Takes an outcome of the candidate that was passed on last."""
        self._outcomes.append(outcome)
        if isinstance(outcome, Dropped):
            self.dropped[outcome.reason.value] += 1

    def content(self) -> dict[str, Any]:
        """The ledger in JSON types: in all and by kind of datum, what was used, held out, left out and why.

        `data` counts what was read, `accounted` what has a fate; they are equal, or the rule lost something.
        """
        total: Counter[str] = Counter()
        by_kind: dict[str, Any] = {}
        for kind, data in sorted(self._seen.items()):
            fate = self._fates.get(kind, Counter())
            total += fate
            by_kind[kind] = {"data": data, **_account(fate)}
        return {"data": self._seen.total(), **_account(total), "by_kind": by_kind}

    def _settle(self) -> None:
        if self._open is None:
            return
        held = _data_of(self._open, self._kind)
        self._seen.update(held.values())
        for name, reason in fates(self._outcomes).items():
            fate = USED if reason is None else reason.value
            self._fates.setdefault(held.get(name, "unknown"), Counter())[fate] += 1
        self._outcomes.clear()


def _account(fate: Counter[str]) -> dict[str, Any]:
    held_out = DropReason.HELD_OUT.value
    return {
        "used": fate[USED],
        "held_out": fate[held_out],
        "left_out": {
            reason: number for reason, number in sorted(fate.items()) if reason not in (USED, held_out)
        },
        "accounted": fate.total(),
    }


def _data_of(candidate: Candidate, kind: Kind) -> dict[str, str]:
    """Id to kind of the data that can become a row: of demonstrations edits and imports alone."""
    if isinstance(candidate, Comparison):
        return {candidate.id: "comparison", **{vote.id: "vote" for vote in candidate.votes}}
    if isinstance(candidate, Thread):
        wanted = (signal for signal in candidate.signals if kind is Kind.PAIRS or signal.kind == "edit")
        return {signal.id: "signal" for signal in wanted}
    return {candidate.id: "import"}
