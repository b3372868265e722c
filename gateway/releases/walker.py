"""Walks releases: an engine that is ready gets its first stage, each look advances, holds or aborts.

Everything is in the rows, so a walker that was ended goes on where the rows are; what an operator does
meanwhile is found by the lock of the model, and a step that was decided at another stage is not taken.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from gateway.releases import analysis, drill, machine, repository
from gateway.releases.audit import By, Refused
from gateway.releases.decision import Action
from gateway.releases.engines import let_engines_go
from gateway.releases.plan import HOLDBACK, ReleasePlan
from gateway.releases.probes import Trickle
from gateway.releases.readiness import why_not_ready
from gateway.releases.replication import observed_of
from gateway.releases.settings import ReleaseSettings
from gateway.releases.sources import Prices
from gateway.releases.webhook import Webhook
from ratchet.alarms import raise_alarm
from ratchet.db.engine import session_scope
from ratchet.db.models.releases import OfflineAbort, Release
from ratchet.errors import ConfigError
from ratchet.logs import get_logger

ACTOR = "walker"
WARM_ASKS = 8
RELEASE_ABORTED = "release_aborted"
"""Alarm: a release was aborted by itself; stands until a person clears it."""
RELEASE_HELD = "release_held"
"""Alarm: a release waits for more than time and users; stands until a person clears it."""
RELEASE_FAILED = "release_failed"
"""Alarm: a candidate's engine never became ready; stands until a person clears it."""

log = get_logger(__name__)


class Walker:
    """One round after the other over everything that is due.

    Args:
        engine: Connections as the role `ratchet_operator`.
        settings: The process's.
        trickle: Sends warm-ups and probes.
        webhook: Told what was done without an operator.
        clock: The time.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ReleaseSettings,
        trickle: Trickle,
        webhook: Webhook,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._trickle = trickle
        self._webhook = webhook
        self._clock = clock
        self._look_at: dict[UUID, float] = {}
        self._probe_at: dict[UUID, float] = {}
        self._warming: dict[UUID, Future[str | None]] = {}
        self._held: set[tuple[UUID, str, bool]] = set()

    def round(self) -> None:
        """Does what is due now; a release that cannot be looked at stays where it is, and holds no other up.

        Raises:
            DatabaseUnavailable: The rows cannot be read; the next round goes on.
        """
        self._settle_offline()
        with session_scope(self._engine) as session:
            releases = session.scalars(select(Release).where(Release.ended_at.is_(None))).all()
            let_engines_go(session, self._clock())
            drill.end_lost(session, self._clock())
        for release in releases:
            try:
                self._walk(release)
            except (ConfigError, SQLAlchemyError) as error:
                reason = str(error).splitlines()[0]
                log.warning("a release cannot be looked at, and stays", policy=release.policy, reason=reason)
                with session_scope(self._engine) as session:
                    raise_alarm(session, RELEASE_HELD, str(release.id), {"reason": reason})

    def _walk(self, release: Release) -> None:
        if release.state == machine.PREPARING:
            self._prepare(release)
            return
        self._probe(release)
        if self._is_due(self._look_at, release.id, machine.plan_of(release).look_seconds):
            self._look(release)

    def _settle_offline(self) -> None:
        with session_scope(self._engine) as session:
            waiting = session.scalars(
                select(OfflineAbort).where(OfflineAbort.settled_at.is_(None)).order_by(OfflineAbort.id)
            )
            for told in waiting.all():
                machine.settle_offline(session, told)

    def _prepare(self, release: Release) -> None:
        """Gives the policy its first stage once its engine is proved and warm; after too long, gives up."""
        with session_scope(self._engine) as session:
            reason = why_not_ready(session, release) or self._why_cold(release)
        if reason is None:
            self._step(release, lambda session, fresh: machine.enter(
                session, fresh, 0, By(ACTOR, "its engine is proved and warm")
            ))  # fmt: skip
            return
        if self._clock() - release.created_at > timedelta(seconds=self._settings.release_ready_s):
            by = By(ACTOR, f"its engine was not ready within {self._settings.release_ready_s:g} s: {reason}")
            self._step(release, lambda session, _: machine.fail(session, release.model, by))
            self._tell(RELEASE_FAILED, release, by.reason)

    def _why_cold(self, release: Release) -> str | None:
        """Why the engine is not warm yet; asks it in the background."""
        warming = self._warming.get(release.id)
        if warming is None:
            self._warming[release.id] = self._trickle.warm(release.policy, WARM_ASKS)
        elif warming.done():
            del self._warming[release.id]
            return warming.result()
        return "its engine is being warmed"

    def _look(self, release: Release) -> None:
        plan = machine.plan_of(release)
        if release.state == machine.PROMOTED and plan.holdback is None:
            self._close_when_old(release)
            return
        prices = Prices(self._settings.release_price_prompt, self._settings.release_price_output)
        with session_scope(self._engine) as session:
            seen = analysis.look(session, release, prices, self._clock())
            analysis.keep(session, release, seen)
        by = By(ACTOR, seen.decision.reason)
        match seen.decision.action:
            case Action.ABORT:
                if self._step(release, lambda session, _: machine.abort(session, release.model, by)):
                    self._tell(RELEASE_ABORTED, release, by.reason)
            case Action.HOLD:
                self._hold(release, plan, seen, by.reason)
            case _ if release.state == machine.PAUSED:
                pass
            case Action.DONE if release.stage == HOLDBACK:
                self._step(release, lambda session, fresh: machine.close(
                    session, release.model, by, observed_of(session, fresh)
                ))  # fmt: skip
            case Action.ADVANCE | Action.DONE:
                number = release.stage_number
                self._step(
                    release, lambda session, _: machine.advance(session, release.model, by, seen=number)
                )

    def _hold(self, release: Release, plan: ReleasePlan, seen: analysis.LookSeen, reason: str) -> None:
        """Tells once in each stage that waiting will not help, and once that users fell to the wrong arms."""
        mismatch = seen.ratio is not None and seen.ratio.mismatch
        hold = (release.id, release.stage, mismatch)
        if hold in self._held or not (mismatch or analysis.is_exposed(plan, release.stage, seen)):
            return
        self._held.add(hold)
        self._tell(RELEASE_HELD, release, reason)

    def _close_when_old(self, release: Release) -> None:
        kept = timedelta(hours=self._settings.release_keep_previous_hours)
        if self._clock() - release.stage_since >= kept:
            by = By(ACTOR, f"in production for {kept / timedelta(hours=1):g} h")
            self._step(release, lambda session, fresh: machine.close(
                session, release.model, by, observed_of(session, fresh)
            ))  # fmt: skip

    def _probe(self, release: Release) -> None:
        every_s = self._settings.release_probe_s
        walks = release.state in (machine.RUNNING, machine.PAUSED)
        if every_s and walks and self._is_due(self._probe_at, release.id, every_s):
            self._trickle.send_next(release.policy, release.baseline)

    def _step(self, release: Release, work: Callable[[Session, Release], object]) -> bool:
        """One step in a transaction of its own; False where an operator was first."""
        try:
            with session_scope(self._engine) as session:
                machine.lock(session, release.model)
                fresh = session.get_one(Release, release.id)
                if (fresh.state, fresh.stage) != (release.state, release.stage):
                    return False
                work(session, fresh)
        except Refused as refused:
            log.info("a step was not taken", release=str(release.id), reason=str(refused))
            return False
        return True

    def _tell(self, kind: str, release: Release, reason: str) -> None:
        with session_scope(self._engine) as session:
            document = repository.by_id(session, release.id)
            raise_alarm(session, kind, str(release.id), {"policy": release.policy, "reason": reason})
        log.warning("a release needs a look", kind=kind, policy=release.policy, reason=reason)
        url = machine.plan_of(release).webhook or self._settings.release_webhook
        if url is not None:
            kept = ("release", "model", "policy", "baseline", "stage", "state", "shares")
            told = {name: document[name] for name in kept}
            self._webhook.tell(str(url), {"event": kind, "reason": reason, **told})

    @staticmethod
    def _is_due(times: dict[UUID, float], release: UUID, every_s: float) -> bool:
        now = time.monotonic()
        if now < times.get(release, 0.0):
            return False
        times[release] = now + every_s
        return True
