"""What the gateway must know to serve, held in memory, so that no request waits for a row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from gateway.jsontext import as_object
from gateway.keys_cache import KnownKey
from ratchet.db.engine import session_scope
from ratchet.db.models.registry import DecodeConfigRow, EngineRow, Policy
from ratchet.db.models.serving import ApiKey
from ratchet.decode import DecodeConfig
from ratchet.errors import RatchetError
from ratchet.logs import get_logger
from ratchet.plan import Plan, current_plans

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Golden:
    """What the policy's own weights say of a known prompt.

    Attributes:
        token_ids: The prompt.
        logprobs: Log-probability in nats of each token but the first, given those before it.
        text: The prompt as text, None of a chat.
        messages: The prompt as a chat, None of a text.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str | None
    messages: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A policy version as the gateway needs it."""

    ref: str
    decode: DecodeConfig
    decode_digest: str
    golden: tuple[Golden, ...]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine that is wanted, as its row has it.

    Attributes:
        id: Its row.
        policy: `name@version`.
        managed: The supervisor runs it; otherwise it is only reached by its URL.
        state: What the supervisor says of it.
        url: Where it listens; None before a managed engine first starts.
        fingerprint: What its answers must carry; None when an operator gave none.
        last_error: What it last died of.
    """

    id: UUID
    policy: str
    managed: bool
    state: str
    url: str | None
    fingerprint: str | None
    last_error: str | None

    @property
    def reachable(self) -> bool:
        """Whether there is something to prove."""
        return self.url is not None and (self.state == "up" or not self.managed)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent view of the rows."""

    plans: Mapping[str, Plan] = field(default_factory=dict[str, Plan])
    keys: Mapping[bytes, KnownKey] = field(default_factory=dict[bytes, KnownKey])
    policies: Mapping[str, ServedPolicy] = field(default_factory=dict[str, ServedPolicy])
    engines: tuple[EngineSpec, ...] = ()

    @property
    def served(self) -> frozenset[str]:
        """Policies that engines are wanted for."""
        return frozenset(engine.policy for engine in self.engines if engine.policy in self.policies)


class SnapshotReader:
    """Reads snapshots as the gateway's role; policies, which never change, are read once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._policies: dict[str, ServedPolicy] = {}
        self._reported: set[str] = set()

    def read(self) -> Snapshot:
        """The rows as they are now; blocks on the database.

        Raises:
            DatabaseUnavailable: It cannot be reached.
            sqlalchemy.exc.SQLAlchemyError: It refuses.
        """
        with session_scope(self._engine) as session:
            plans = current_plans(session)
            engines = _engines(session)
            wanted = {engine.policy for engine in engines}.union(*(plan.policies for plan in plans.values()))
            self._learn(session, wanted - self._policies.keys())
            keys = self._keys(session)
        policies = {ref: self._policies[ref] for ref in wanted if ref in self._policies}
        return Snapshot(plans=plans, keys=keys, policies=policies, engines=engines)

    def _learn(self, session: Session, refs: set[str]) -> None:
        if not refs:
            return
        query = (
            select(Policy, DecodeConfigRow.config)
            .join(DecodeConfigRow, DecodeConfigRow.digest == Policy.decode_digest)
            .where(Policy.ref.in_(refs))
        )
        for row, config in session.execute(query).tuples():
            try:
                self._policies[row.ref] = ServedPolicy(
                    ref=row.ref,
                    decode=DecodeConfig.parse(config, source=row.ref),
                    decode_digest=row.decode_digest,
                    golden=tuple(parse_golden(item) for item in row.golden),
                    created_at=row.created_at,
                )
            except (RatchetError, ValueError) as error:
                self._report(row.ref, f"a policy that cannot be served: {error}")

    def _keys(self, session: Session) -> dict[bytes, KnownKey]:
        query = select(ApiKey.hash, ApiKey.id, ApiKey.role, ApiKey.limits).where(ApiKey.revoked_at.is_(None))
        keys: dict[bytes, KnownKey] = {}
        for hashed, identity, role, limits in session.execute(query).tuples():
            try:
                keys[hashed] = KnownKey.from_row(identity, role, limits)
            except ValueError as error:
                self._report(str(identity), f"an API key that cannot be used: {error}")
        return keys

    def _report(self, subject: str, reason: str) -> None:
        if subject not in self._reported:
            self._reported.add(subject)
            log.error("row left out", subject=subject, reason=reason)


def parse_golden(item: Any) -> Golden:
    """One entry of `registry.policy.golden`.

    Raises:
        ValueError: It is not one.
    """
    entry = as_object(item) or {}
    try:
        token_ids = tuple(int(token) for token in entry["token_ids"])
        logprobs = tuple(float(value) for value in entry["logprobs"] if value is not None)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a golden entry lacks token_ids or logprobs: {error}") from error
    if len(token_ids) < 2 or len(logprobs) != len(token_ids) - 1:
        raise ValueError(
            f"a golden entry has {len(token_ids)} tokens and {len(logprobs)} log-probabilities, "
            "not one for each token but the first"
        )
    text, messages = entry.get("text"), entry.get("messages")
    if (text is None) == (messages is None):
        raise ValueError("a golden entry has either text or messages")
    return Golden(token_ids, logprobs, text, messages)


def _engines(session: Session) -> tuple[EngineSpec, ...]:
    query = select(EngineRow).where(EngineRow.desired == "up").order_by(EngineRow.id)
    return tuple(
        EngineSpec(
            id=row.id,
            policy=row.policy,
            managed=row.managed,
            state=row.state,
            url=row.url.rstrip("/") if row.url else None,
            fingerprint=row.fingerprint,
            last_error=row.last_error,
        )
        for row in session.scalars(query)
    )
