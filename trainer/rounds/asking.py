"""What a round starts from, found by the names people use: a policy, a snapshot, a configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from ratchet.db.engine import session_scope
from ratchet.db.models.feedback import DatasetSnapshot
from ratchet.errors import ConfigError, NotFound
from ratchet.home import Home
from ratchet.plan import current_plans
from ratchet.registry import PolicyVersion, Report, add_policy, find, folder_of, quiet, resolve
from trainer.config import Method, RoundConfig, parse
from trainer.data.snapshot import MANIFEST, open_snapshot
from trainer.data.template import require_template
from trainer.errors import SnapshotRefused
from trainer.rounds.repository import Asked, ask

CURRENT = "current"
LATEST = "latest"
PATHS = ("model", "reference", "snapshot", "cache")
"""Keys of a configuration that name folders."""

Build = Callable[[dict[str, Any]], RoundConfig]
"""Makes the configuration, given the folders `model` and `snapshot` where they are known already."""


class RoundRequest(BaseModel):
    """A round asked for over HTTP."""

    model_config = ConfigDict(extra="forbid")

    method: Method
    policy: str = CURRENT
    """As `find_policy` understands it."""
    snapshot: str = LATEST
    """`latest`, or a digest or its beginning."""
    config: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Sections and keys of a round's configuration, without method, model and snapshot."""
    reason: str = Field(min_length=1, max_length=2_000)


@dataclass(frozen=True)
class Prepared:
    """A round that could be asked for.

    Attributes:
        config: The whole configuration.
        policy: The policy it trains on; None where that is a plain folder, which is registered first.
        data: The snapshot it learns from.
    """

    config: RoundConfig
    policy: PolicyVersion | None
    data: "Data"


@dataclass(frozen=True)
class Data:
    """A snapshot: its digest, its folder on this machine, and whose answers it holds.

    Attributes:
        digest: Of its rows.
        folder: Where it lies.
        policies: `name@version`, or `import:<name>`.
    """

    digest: str
    folder: Path
    policies: tuple[str, ...]

    @classmethod
    def of_row(cls, row: DatasetSnapshot) -> "Data":
        """As its row tells."""
        return cls(row.digest, Path(row.path).resolve(), tuple(row.manifest["by_policy"]))


def kind_of(method: Method) -> str:
    """The kind of snapshot a method learns from."""
    return "demonstrations" if method is Method.SFT else "pairs"


def find_policy(session: Session, text: str) -> PolicyVersion:
    """The policy that is meant.

    Args:
        session: As a role that reads traffic plans.
        text: `NAME@VERSION`; `NAME`, its newest version; `current`, what is in production; `current:MODEL`
            where several models are served.

    Raises:
        NotFound: None is called so, or `current` is not one.
    """
    word, _, model = text.partition(":")
    if word != CURRENT:
        return resolve(session, text)
    plans = current_plans(session)
    if model in plans:
        return resolve(session, plans[model].production)
    if model or len(plans) != 1:
        served = ", ".join(sorted(plans)) or "none"
        raise NotFound(f"{text!r} is not one policy: say current:MODEL; models served: {served}")
    (only,) = plans.values()
    return resolve(session, only.production)


def find_data(session: Session, text: str, kind: str, *, by_path: bool = True) -> Data:
    """The snapshot that is meant.

    Args:
        session: As a role that reads `feedback.dataset_snapshot`.
        text: `latest`, a digest or its beginning, or a snapshot's folder.
        kind: pairs or demonstrations.
        by_path: Whether a folder may be named; over HTTP it may not.

    Raises:
        NotFound: There is none, or several begin so.
        SnapshotRefused: It is of the other kind, was withdrawn, or is no snapshot.
    """
    known = select(DatasetSnapshot)
    if text == LATEST:
        newest = known.where(DatasetSnapshot.kind == kind, DatasetSnapshot.withdrawn_at.is_(None))
        found = session.scalars(newest.order_by(DatasetSnapshot.created_at.desc()).limit(1)).first()
        if found is None:
            raise NotFound(
                f"there is no snapshot of {kind} yet: `ratchet pairs build --kind {kind}` makes one"
            )
        return Data.of_row(found)
    folder = Path(text).expanduser()
    if by_path and folder.is_dir():
        opened = open_snapshot(folder, kind)
        data = Data(opened.digest, folder.resolve(), opened.policies)
        row = session.get(DatasetSnapshot, data.digest)
    else:
        rows = session.scalars(known.where(DatasetSnapshot.digest.startswith(text.lower())).limit(2)).all()
        if len(rows) != 1 or not text:
            several = "several snapshots begin" if rows else "no folder is called so and no snapshot begins"
            raise NotFound(f"{several} with {text!r}: `ratchet pairs list` names them")
        (row,) = rows
        data = Data.of_row(row)
        if row.kind != kind:
            raise SnapshotRefused(f"snapshot {data.digest[:12]} holds {row.kind}; {kind} are needed")
    if row is not None and row.withdrawn_at is not None:
        raise SnapshotRefused(
            f"snapshot {data.digest[:12]} was withdrawn: {row.withdrawn_reason}; "
            "build another with `ratchet pairs build`"
        )
    return data


def prepare(
    engine: Engine,
    home: Home,
    method: Method,
    build: Build,
    *,
    policy: str | None,
    snapshot: str | None,
    by_path: bool = True,
) -> Prepared:
    """Finds what a round starts from and checks its configuration; nothing is written.

    Args:
        engine: As the operator or the trainer.
        home: The data folder.
        method: What the configuration must be of.
        build: Makes the configuration.
        policy: See `find_policy`; None takes the folder that the configuration names.
        snapshot: See `find_data`; None takes the folder that the configuration names.
        by_path: See `find_data`.

    Raises:
        NotFound: The policy or the snapshot is not there.
        SnapshotRefused: The snapshot cannot be trained on.
        ConfigError: The configuration is wrong, or of another method.
    """
    given: dict[str, Any] = {}
    with session_scope(engine) as session:
        version = find_policy(session, policy) if policy else None
        data = find_data(session, snapshot, kind_of(method), by_path=by_path) if snapshot else None
    if version is not None:
        given["model"] = folder_of(home, version)
    if data is not None:
        given["snapshot"] = data.folder
    config = build(given)
    if config.method is not method:
        raise ConfigError(
            f"the configuration is of method {config.method}, not {method}: "
            f"run `ratchet train {config.method}`"
        )
    if data is None:
        with session_scope(engine) as session:
            data = find_data(session, str(config.snapshot), kind_of(method))
    return Prepared(config, version, data)


def with_template(engine: Engine, prepared: Prepared, template: str) -> RoundConfig:
    """The configuration with the chat template that the data's answers were served with, which must be the
    model's; that of imported answers is not known.

    Args:
        engine: As a role that reads policies.
        prepared: The round.
        template: Digest of the model's chat template.

    Raises:
        TemplateMismatch: The data was made for another.
    """
    config, digest = prepared.config, prepared.data.digest[:12]
    with session_scope(engine) as session:
        spoke = [policy for ref in prepared.data.policies if (policy := find(session, ref)) is not None]
    for policy in spoke:
        require_template(
            policy.template_digest,
            template,
            data=f"snapshot {digest} with its answers of {policy.ref}",
            model=prepared.policy.ref if prepared.policy else str(config.model),
        )
    if config.data.template_digest is not None or not spoke:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"template_digest": template})})


def ask_for(
    engine: Engine,
    home: Home,
    prepared: Prepared,
    *,
    by: str,
    reason: str,
    sweep: UUID | None = None,
    report: Report = quiet,
) -> UUID:
    """Asks for a prepared round; plain model folders become policies first.

    Args:
        engine: As the operator or the trainer.
        home: The data folder.
        prepared: The round.
        by: Who asks, for people.
        reason: Why.
        sweep: Shared by the rounds of one sweep.
        report: Told each stage.

    Raises:
        PolicyRefused: A folder cannot become a policy.
        TemplateMismatch: The data's answers were served with another chat template.
    """
    config = prepared.config
    trained = prepared.policy or registered(engine, home, config.model, report)
    config = with_template(engine, prepared, trained.template_digest)
    apart = config.reference is not None and config.reference != config.model
    reference = registered(engine, home, config.reference_folder, report) if apart else trained
    with session_scope(engine) as session:
        return ask(
            session,
            Asked(config, trained.ref, reference.ref, prepared.data.digest, by, reason, sweep),
        )


def ask_by_request(engine: Engine, home: Home, request: RoundRequest, *, by: str) -> UUID:
    """Asks for a round that was described over HTTP; no request names a path on this machine.

    Raises:
        UsageError: See `prepare`; or the configuration names a folder.
    """
    named = [key for key in PATHS if key in request.config]
    if named:
        raise ConfigError(
            f"config: {', '.join(named)} cannot be given over HTTP: "
            "say `policy` by its name and `snapshot` by its digest"
        )

    def build(given: dict[str, Any]) -> RoundConfig:
        return parse({**request.config, "method": request.method.value, **given}, source="config")

    prepared = prepare(
        engine, home, request.method, build, policy=request.policy, snapshot=request.snapshot, by_path=False
    )
    return ask_for(engine, home, prepared, by=by, reason=request.reason)


def registered(engine: Engine, home: Home, folder: Path, report: Report = quiet) -> PolicyVersion:
    """The policy version a plain model folder stands for, under the folder's name; registered now if need be.

    Raises:
        PolicyRefused: The folder cannot become a policy.
    """
    return add_policy(engine, home, name=folder.resolve().name, path=folder, report=report).policy


def data_folders(session: Session, digest: str, written: Path) -> tuple[Path, ...]:
    """Where a snapshot may lie on this machine: as its row says, else as the round's configuration does.

    Raises:
        SnapshotRefused: It was withdrawn since the round was asked for.
    """
    row = session.get(DatasetSnapshot, digest)
    if row is not None and row.withdrawn_at is not None:
        raise SnapshotRefused(f"snapshot {digest[:12]} was withdrawn: {row.withdrawn_reason}")
    return (written,) if row is None else tuple(dict.fromkeys((Path(row.path), written)))


def opened_folder(folders: tuple[Path, ...], digest: str, kind: str) -> Path:
    """The folder that holds a snapshot, every file of it read and compared with its digest.

    Args:
        folders: See `data_folders`.
        digest: What the round was asked for on.
        kind: pairs or demonstrations.

    Raises:
        SnapshotRefused: None is there, what is there is another one, or a file is damaged.
    """
    there = [folder for folder in folders if (folder / MANIFEST).is_file()]
    if not there:
        raise SnapshotRefused(
            f"snapshot {digest[:12]} is not on this machine: {folders[-1]} holds no {MANIFEST}"
        )
    found = open_snapshot(there[0], kind)
    if found.digest != digest:
        raise SnapshotRefused(
            f"{there[0]} holds snapshot {found.digest[:12]} by now, "
            f"and the round was asked for on {digest[:12]}"
        )
    return there[0]
