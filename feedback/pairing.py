"""Building a snapshot: from the rows through the rule into files, and what the database keeps of it.

A build can be run twice or be cut off anywhere: the folder appears whole or not at all, its name is the
digest of its rows, and the rows about it are written in one transaction after it is there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from feedback.demonstrations import build_demonstrations
from feedback.errors import SnapshotError
from feedback.ledger import Ledger
from feedback.lengths import DEFAULT_BOUND
from feedback.members import Members
from feedback.pairs import build_pairs
from feedback.policies import Registry
from feedback.privacy import Masker
from feedback.repository import Window, evidence, frozen_view
from feedback.rows import Kind, Row, Source
from feedback.rule import AnyKept, Dropped, Outcome, Rule
from feedback.snapshot import Snapshot, write_snapshot
from feedback.staleness import staleness
from ratchet.db.engine import session_scope
from ratchet.errors import UsageError

_HELD_OUT = text("SELECT DISTINCT prompt_hash FROM feedback.heldout_prompt")
_REGISTER = text("""
    INSERT INTO feedback.dataset_snapshot (digest, kind, path, manifest)
    VALUES (:digest, :kind, :path, CAST(:manifest AS jsonb)) ON CONFLICT (digest) DO NOTHING
    RETURNING digest
""")
_WITHDRAWN = text("SELECT withdrawn_reason FROM feedback.dataset_snapshot WHERE digest = :digest")


class BuildRequest(BaseModel):
    """The filter of a snapshot; times are fixed when it is asked for, so that it means the same later."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind = Kind.PAIRS
    policy: str | None = None
    """`current`, `lineage`, a name or `name@version`; None: every policy."""
    model: str | None = None
    """Whose policy is current, where several models are served."""
    max_distance: int | None = None
    """Of a lineage, steps back at most."""
    policy_match: Literal["both", "either"] = "both"
    since: datetime | None = None
    until: datetime | None = None
    sources: tuple[Source, ...] | None = None
    min_votes: int = 1
    min_agreement: float = 0.6
    max_per_user: int | None = None
    length_bound: float = DEFAULT_BOUND

    def rule(self, registry: Registry) -> Rule:
        """The rule this filter means now.

        Raises:
            UsageError: A value is out of its range, or a policy is not there.
        """
        if self.max_distance is not None and self.policy != "lineage":
            raise UsageError("--max-distance belongs to --policy lineage")
        wanted = None if self.policy is None else registry.chosen(self.policy, self.model, self.max_distance)
        try:
            return Rule(
                min_votes=self.min_votes,
                min_agreement=self.min_agreement,
                sources=frozenset(Source) if self.sources is None else frozenset(self.sources),
                policies=wanted,
                policy_match=self.policy_match,
                since=self.since,
                until=self.until,
                max_per_user=self.max_per_user,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Built:
    """A snapshot and what led to it."""

    snapshot: Snapshot
    ledger: dict[str, Any]
    staleness: dict[str, Any] | None
    """Shares by distance from the policy now served; None where there is no one such policy."""


def build_snapshot(
    engine: Engine, root: Path, request: BuildRequest, *, now: datetime, masker: Masker | None = None
) -> Built:
    """Reads the evidence, applies the rule, writes the snapshot and registers it.

    Args:
        engine: As the role `ratchet_feedback`.
        root: Folder of all snapshots.
        request: What is wanted.
        now: Time of the build, for the manifest.
        masker: Masks personal data in what is written; None: it is masked on export.

    Raises:
        UsageError: A value is out of its range, or a policy is not there.
        SnapshotError: The very same rows were withdrawn, because a person in them asked to be forgotten.
    """
    with Members() as members, frozen_view(engine) as connection:
        registry = Registry.read(connection)
        rule = request.rule(registry)
        held_out = frozenset(connection.execute(_HELD_OUT).scalars())
        ledger = Ledger(request.kind)
        outcomes = _outcomes(connection, request.kind, rule, held_out, ledger)
        snapshot = write_snapshot(
            root,
            request.kind,
            _kept(outcomes, ledger, masker),
            wanted={**rule.content(), "kind": request.kind.value, "policy": request.policy},
            dropped=ledger.dropped,
            created=now,
            held_out=held_out,
            member=members.add,
            length_bound=request.length_bound,
        )
        with session_scope(engine) as session:
            _register(session, snapshot, members)
        return Built(snapshot, ledger.content(), _staleness(members.rows(), registry, request.model))


def read_ledger(engine: Engine, request: BuildRequest) -> dict[str, Any]:
    """The ledger a build would have, without building."""
    with frozen_view(engine) as connection:
        rule = request.rule(Registry.read(connection))
        held_out = frozenset(connection.execute(_HELD_OUT).scalars())
        ledger = Ledger(request.kind)
        for outcome in _outcomes(connection, request.kind, rule, held_out, ledger):
            ledger.note(outcome)
        return ledger.content()


def _outcomes(
    connection: Connection, kind: Kind, rule: Rule, held_out: frozenset[str], ledger: Ledger
) -> Iterator[Outcome]:
    candidates = ledger.watch(evidence(connection, kind, Window(rule.since)))
    if kind is Kind.PAIRS:
        yield from build_pairs(candidates, rule, held_out=held_out)
    else:
        yield from build_demonstrations(candidates, rule, held_out=held_out)


def _kept(outcomes: Iterator[Outcome], ledger: Ledger, masker: Masker | None) -> Iterator[AnyKept]:
    for outcome in outcomes:
        ledger.note(outcome)
        if isinstance(outcome, Dropped):
            continue
        yield outcome if masker is None else replace(outcome, row=masker.answers(outcome.row))


def _staleness(rows: Iterator[Row], registry: Registry, model: str | None) -> dict[str, Any] | None:
    try:
        current = registry.current(model)
    except UsageError:
        return None
    return staleness(rows, current, registry.parents).content()


def _register(session: Session, snapshot: Snapshot, members: Members) -> None:
    manifest = snapshot.manifest
    fresh = session.execute(
        _REGISTER,
        {
            "digest": manifest.digest,
            "kind": manifest.kind.value,
            "path": str(snapshot.path),
            "manifest": manifest.model_dump_json(),
        },
    ).scalar()
    if fresh is not None:
        members.copy_into(session, manifest.digest, manifest.kind)
    elif (reason := session.execute(_WITHDRAWN, {"digest": manifest.digest}).scalar()) is not None:
        raise SnapshotError(f"these very rows were withdrawn: {reason}")
