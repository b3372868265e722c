"""The edge of releases: each thing an operator or the walker does, as one transaction; a refusal is
audited too."""

from collections.abc import Callable
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from gateway.releases import machine, repository
from gateway.releases.audit import By, Refused, note_refusal
from gateway.releases.replication import observed_of
from gateway.releases.repository import Document
from ratchet.db.engine import session_scope
from ratchet.db.models.releases import Release


class Control:
    """What can be done with releases.

    Whoever acts on what they saw says so: `release` is the release they saw open, `seen` the name of its
    stage. Where another one is open by now, or it is at another stage, the step is refused.

    Args:
        engine: Connections as the role `ratchet_operator`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(self, wish: machine.Wish, by: By) -> Document:
        """Begins a release.

        Raises:
            UsageError: It cannot begin; the message says why.
        """
        model = wish.policy.partition("@")[0]
        return self._step("start", model, by, lambda session: machine.start(session, wish, by))

    def promote(
        self,
        model: str,
        by: By,
        *,
        to_end: bool = False,
        release: UUID | None = None,
        seen: str | None = None,
    ) -> Document:
        """Goes on to the next stage, or right to production.

        Raises:
            Refused: The release's state does not allow it.
        """

        def work(session: Session) -> Release:
            return machine.advance(session, model, by, to_end=to_end)

        return self._step("promote", model, by, work, release, seen)

    def pause(self, model: str, by: By, *, release: UUID | None = None, seen: str | None = None) -> Document:
        """Keeps the shares as they are.

        Raises:
            Refused: The release's state does not allow it.
        """
        return self._step(
            "pause", model, by, lambda session: machine.pause(session, model, by), release, seen
        )

    def resume(self, model: str, by: By, *, release: UUID | None = None, seen: str | None = None) -> Document:
        """Lets a paused release go on.

        Raises:
            Refused: The release's state does not allow it.
        """
        return self._step(
            "resume", model, by, lambda session: machine.resume(session, model, by), release, seen
        )

    def abort(self, model: str, by: By, *, cut: bool = False, release: UUID | None = None) -> Document:
        """Sends all traffic back to the last good policy, whatever the stage.

        Raises:
            Refused: No release is open.
        """
        return self._step(
            "abort", model, by, lambda session: machine.abort(session, model, by, cut=cut), release
        )

    def close(self, model: str, by: By, *, release: UUID | None = None, seen: str | None = None) -> Document:
        """Ends a release that was promoted.

        Raises:
            Refused: It was not promoted.
        """

        def work(session: Session) -> Release:
            found = machine.open_release(session, model)
            observed = observed_of(session, found) if found else None
            return machine.close(session, model, by, observed)

        return self._step("close", model, by, work, release, seen)

    def status(self, model: str) -> Document:
        """The newest release of a model.

        Raises:
            NotFound: It never had one.
        """
        with session_scope(self._engine) as session:
            return repository.newest(session, model)

    def everything(self) -> list[Document]:
        """The newest release of every model, by name."""
        with session_scope(self._engine) as session:
            return repository.newest_of_each(session)

    def history(self, model: str | None) -> list[Document]:
        """Releases, the newest first, each with its audit."""
        with session_scope(self._engine) as session:
            return repository.history(session, model)

    def _step(
        self,
        word: str,
        model: str,
        by: By,
        work: Callable[[Session], Release],
        release: UUID | None = None,
        seen: str | None = None,
    ) -> Document:
        try:
            with session_scope(self._engine) as session:
                machine.lock(session, model)
                machine.expect(session, model, release, seen)
                done = work(session)
                session.flush()
                return repository.view(session, done)
        except Refused as refused:
            with session_scope(self._engine) as session:
                note_refusal(session, model, word, by, machine.open_release(session, model), str(refused))
            raise
