"""The switch on the gateway's own host: a file takes a policy out of traffic while the database is away.

`ratchet release abort --offline` leaves `<id>.json` in the switch folder. Every gateway process on the
host sends the model's traffic to its last good policy as soon as it sees the file, says so in
`<id>.followed`, and tells the database when that is back. It keeps on taking the same policies out of newer
traffic plans, and removes the file once one serves none of them.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.ledger import Ledger
from gateway.snapshot import Snapshot
from ratchet.account import account
from ratchet.errors import EnvironmentFault
from ratchet.ids import new_id
from ratchet.logs import get_logger
from ratchet.plan import WITHDRAWN, Arm, Plan, PlannedArm

LOOK_EVERY_S = 0.1
FOLLOWED_WITHIN_S = 2.0
FOLLOWED = ".followed"

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OfflineAbort:
    """One throw of the switch.

    Attributes:
        id: Its own; the file's name.
        model: Whose release is taken back.
        actor: Who threw it.
        reason: Why.
        switched_at: When, by the host's clock, ISO 8601.
        cut: Answers under way of the bad policy are ended.
    """

    id: str
    model: str
    actor: str
    reason: str
    switched_at: str
    cut: bool = False


def throw(folder: Path, model: str, reason: str, *, cut: bool) -> OfflineAbort:
    """Writes the file that every gateway on this host follows.

    Raises:
        EnvironmentFault: The folder cannot be written.
    """
    abort = OfflineAbort(str(new_id()), model, account(), reason, datetime.now(UTC).isoformat(), cut)
    path = folder / f"{abort.id}.json"
    unfinished = path.with_suffix(".tmp")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(asdict(abort)) + "\n", "utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise EnvironmentFault(f"the switch folder {folder} cannot be written: {error.strerror}") from error
    return abort


def is_followed(folder: Path, abort: OfflineAbort) -> bool:
    """Waits for a gateway of this host that serves the model by the switch; False where none does in time."""
    file = folder / f"{abort.id}.json"
    until = time.monotonic() + FOLLOWED_WITHIN_S
    while file.exists() and not file.with_suffix(FOLLOWED).exists():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_EVERY_S / 2)
    return True


@dataclass(frozen=True, slots=True)
class _Thrown:
    """A switch that this process follows.

    Attributes:
        abort: What was thrown.
        path: Its file.
        version: The plan in force when it was first followed; None before that.
        good: Where that plan's traffic returned to.
        bad: The policies that were taken back.
    """

    abort: OfflineAbort
    path: Path
    version: int | None = None
    good: str = ""
    bad: frozenset[str] = frozenset()

    def at(self, plan: Plan) -> "_Thrown":
        """The same, first followed at this plan."""
        good = plan.withdrawn().production
        return replace(self, version=plan.version, good=good, bad=frozenset(_served(plan)) - {good})

    def holds(self, plan: Plan) -> bool:
        """Whether the switch still has something to say about a plan."""
        return plan.version == self.version or not self.bad.isdisjoint(_served(plan))

    def withdraw(self, plan: Plan) -> Plan:
        """The plan with everyone on the good policy."""
        arms = (PlannedArm(Arm.PRODUCTION, self.good, 1.0),)
        return replace(plan, stage=WITHDRAWN, arms=arms, fallback=None, cut=self.abort.cut)


def _served(plan: Plan) -> set[str]:
    return {arm.policy for arm in plan.arms}


class OfflineSwitch:
    """What this process knows of its host's switch folder.

    Args:
        folder: The folder; None: there is no such switch.
        ledger: Tells the database.
    """

    def __init__(self, folder: Path | None, ledger: Ledger) -> None:
        self._folder = folder
        self._ledger = ledger
        self._thrown: dict[str, _Thrown] = {}
        self._seen: set[str] = set()

    def look(self) -> bool:
        """Takes new files in; returns whether there were any."""
        found = [path for path in self._files() if path.name not in self._seen]
        for path in found:
            self._seen.add(path.name)
            abort = _read(path)
            if abort is None:
                continue
            self._thrown[abort.model] = _Thrown(abort, path)
            self._ledger.offline_abort(
                UUID(abort.id),
                abort.model,
                abort.actor,
                abort.reason,
                datetime.fromisoformat(abort.switched_at),
                cut=abort.cut,
            )
            log.warning(
                "the offline switch was thrown", model=abort.model, actor=abort.actor, reason=abort.reason
            )
        return bool(found)

    def apply(self, rows: Snapshot) -> Snapshot:
        """The snapshot to serve by: plans whose switch is thrown have their traffic on the last good
        policy."""
        if not self._thrown:
            return rows
        plans = dict(rows.plans)
        for model, thrown in list(self._thrown.items()):
            plan = plans.get(model)
            if plan is None:
                continue
            if thrown.version is None:
                self._thrown[model] = thrown = thrown.at(plan)
                _say_followed(thrown.path)
            if thrown.holds(plan):
                plans[model] = thrown.withdraw(plan)
            else:
                del self._thrown[model]
                thrown.path.unlink(missing_ok=True)
                thrown.path.with_suffix(FOLLOWED).unlink(missing_ok=True)
                log.info("the offline switch was reconciled", model=model, plan_version=plan.version)
        return replace(rows, plans=plans)

    def _files(self) -> Iterator[Path]:
        if self._folder is not None and self._folder.is_dir():
            yield from sorted(self._folder.glob("*.json"))


def _say_followed(path: Path) -> None:
    try:
        path.with_suffix(FOLLOWED).touch()
    except OSError as error:
        log.warning("that the switch is followed cannot be said", file=path.name, reason=error.strerror)


def _read(path: Path) -> OfflineAbort | None:
    try:
        document: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
        abort = OfflineAbort(**document)
        UUID(abort.id)
        datetime.fromisoformat(abort.switched_at)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        log.error("a file in the switch folder is no switch", file=path.name, reason=str(error))
        return None
    return abort
