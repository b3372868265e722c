"""The rating desk: each thing a rater can do, as one transaction."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Engine

from feedback.blinding import masked
from feedback.leases import Item, LeaseRule, lease_next
from feedback.raters import SignedIn, note_guidelines, sign_in, sign_out, signed_in
from feedback.settings import FeedbackSettings
from feedback.voting import Vote, cast_vote, undo_last
from ratchet.db.engine import session_scope
from ratchet.prompts import message_text


@dataclass(frozen=True, slots=True)
class Shown:
    """An item as the rater sees it: blind."""

    lease: UUID
    turns: tuple[tuple[str, str], ...]
    """Role and text of each message of the prompt."""
    left: str
    right: str
    expires_at: datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Desk:
    """Where raters sit.

    Args:
        engine: Connections as the role `ratchet_feedback`.
        settings: The rules.
        clock: The time.
    """

    def __init__(
        self, engine: Engine, settings: FeedbackSettings, clock: Callable[[], datetime] = _utc_now
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        address = settings.database_url.get_secret_value()
        self._rule = LeaseRule(
            timedelta(minutes=settings.feedback_lease_minutes),
            settings.gold,
            hashlib.sha256(address.encode()).hexdigest(),
        )

    def sign_in(self, link: str) -> tuple[str, datetime]:
        """A session for a link.

        Raises:
            RatingError: The link is not good, or the rater is no longer asked.
        """
        with session_scope(self._engine) as session:
            return sign_in(session, link, now=self._clock(), hours=self._settings.feedback_session_hours)

    def who(self, token: str | None) -> SignedIn:
        """Who is signed in.

        Raises:
            RatingError: Nobody, or no longer.
        """
        with session_scope(self._engine) as session:
            return signed_in(session, token, now=self._clock())

    def sign_out(self, token: str) -> None:
        """Ends a session."""
        with session_scope(self._engine) as session:
            sign_out(session, token)

    def accept_guidelines(self, rater: UUID) -> None:
        """Notes that the guidelines and the warning were read."""
        with session_scope(self._engine) as session:
            note_guidelines(session, rater, now=self._clock())

    def next_item(self, rater: UUID) -> Shown | None:
        """The item the rater is at, else the next; None while there is none.

        Raises:
            RatingError: The rater is no longer asked, or had enough for today.
        """
        with session_scope(self._engine) as session:
            item = lease_next(session, rater, self._rule, now=self._clock())
        return None if item is None else _blind(item)

    def vote(self, rater: UUID, vote: Vote) -> bool:
        """Counts a vote; returns whether the rater is still asked.

        Raises:
            RatingError: The item went back, or the rater is no longer asked.
        """
        known = [reason for reason in vote.reasons if reason in self._settings.feedback_reasons]
        meant = Vote(vote.lease, vote.shown, vote.seconds, known, vote.note)
        with session_scope(self._engine) as session:
            return cast_vote(session, rater, meant, self._settings.gold, now=self._clock())

    def undo(self, rater: UUID) -> UUID:
        """Takes the last vote back; returns the lease that is open again.

        Raises:
            RatingError: There is none to take back.
        """
        with session_scope(self._engine) as session:
            return undo_last(session, rater, self._rule, now=self._clock())


def _blind(item: Item) -> Shown:
    turns = tuple(
        (str(message.get("role")), masked(message_text(message), item.policies)) for message in item.prompt
    )
    return Shown(
        lease=item.lease,
        turns=turns,
        left=masked(item.left, item.policies),
        right=masked(item.right, item.policies),
        expires_at=item.expires_at,
    )
