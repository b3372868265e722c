"""Policy versions: registered once, never changed, found by name.

A version stands for weights, tokenizer, chat template and decode config together. Equal content under one
name has one version; anything else has another.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, RowMapping, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from ratchet import subprogram
from ratchet.artifacts import Kind, PolicyRef, Progress, address, checked_name, store_of
from ratchet.canonical import canonical_json, digest_of, short
from ratchet.db.engine import session_scope
from ratchet.db.models.registry import DecodeConfigRow, Policy
from ratchet.decode import DecodeConfig
from ratchet.errors import DecodeConfigError, NotFound, PolicyRefused, RatchetError, UsageError
from ratchet.home import Home
from ratchet.model_folder import GENERATION, ModelFolder, inspect, source_of
from ratchet.prompts import storable

Report = Callable[[str], None]
Golden = Callable[[Path, Report], list[dict[str, Any]]]

GOLDEN_PROGRAM = "trainer.golden"


@dataclass(frozen=True)
class PolicyVersion:
    """A registered policy version; the fields are those of its row, without the golden entries.

    Attributes:
        ref: `name@version`.
        number: Grows with each registration.
        artifact: Address of its folder in the store of policies.
    """

    ref: str
    name: str
    version: str
    number: int
    digest: str
    weights_digest: str
    tokenizer_digest: str
    template_digest: str
    decode_digest: str
    decode: DecodeConfig
    artifact: str
    parent: str | None
    architecture: dict[str, Any]
    provenance: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True)
class Added:
    """What `add_policy` did.

    Attributes:
        policy: The version that stands for the content.
        created: Whether it is new; else the version that was there is given, with its own provenance.
    """

    policy: PolicyVersion
    created: bool


def quiet(_: str) -> None:
    """Reports nothing."""


def golden_of(folder: Path, report: Report = quiet) -> list[dict[str, Any]]:
    """The golden entries of a model folder, computed by a child process that loads torch.

    Raises:
        PolicyRefused: The folder cannot be loaded, or its weights are not all finite numbers.
        EnvironmentFault: The child died.
    """
    return subprogram.run(GOLDEN_PROGRAM, ["--path", str(folder)], report)["entries"]


def add_policy(
    engine: Engine,
    home: Home,
    *,
    name: str,
    path: Path,
    decode: DecodeConfig | None = None,
    parent: str | None = None,
    provenance: dict[str, Any] | None = None,
    report: Report = quiet,
    progress: Progress | None = None,
    golden: Golden = golden_of,
) -> Added:
    """Registers a model folder as a version of a policy: read, store, prove that it loads, write the row.

    Nothing holds a transaction open while the folder is read; two callers with the same folder get the same
    version. Content that is registered already is only stored again, should the store have lost it.

    Args:
        engine: The database, as the operator or the trainer.
        home: The data folder whose store takes a copy.
        name: The policy's name; clients ask for it as `model`.
        path: A Hugging Face causal-LM folder.
        decode: The decode config it is served with; None takes the folder's own (`default_decode`).
        parent: `name@version`, or a name for its newest version, of the policy this one was trained from.
        provenance: Where it comes from: any JSON object. None records the folder's path and, of a fetched
            folder, its source.
        report: Told each stage.
        progress: Told the number of bytes just read or copied; the folder is read once and copied once.
        golden: Computes the golden entries of the stored folder.

    Raises:
        PolicyRefused: The folder cannot become a policy, or its content is registered with another parent.
        DecodeConfigError: The decode config does not fit the model.
        NotFound: The parent is not registered.
        UsageError: The name is none, or the provenance holds what PostgreSQL cannot store.
    """
    checked_name(name)
    origin = _found_at(path) if provenance is None else _storable(provenance)
    report("reading the model folder")
    folder = inspect(path, progress)
    decode = decode or default_decode(folder)
    check_decode(decode, folder.architecture)
    digest = policy_digest(folder, decode)
    ref = str(PolicyRef(name, short(digest)))
    with session_scope(engine) as session:
        parent = resolve(session, parent).ref if parent else None
        known = find(session, ref)
    store = store_of(home, Kind.POLICY)
    artifact = address(folder.files)
    if known:
        _same(known, digest, parent)
        if artifact == known.artifact:
            store.put(path, folder.files, progress)
        return Added(known, created=False)

    report("storing a copy")
    stored = store.put(path, folder.files, progress)
    report("asking the weights about known prompts")
    try:
        entries = golden(store.open(artifact, verify=False), report)
    except RatchetError:
        if stored:
            store.remove(artifact)
        raise

    with session_scope(engine) as session:
        session.execute(
            insert(DecodeConfigRow)
            .values(digest=decode.digest, config=decode.content())
            .on_conflict_do_nothing()
        )
        created = session.execute(
            insert(Policy)
            .values(
                ref=ref,
                name=name,
                version=short(digest),
                digest=digest,
                weights_digest=folder.weights_digest,
                tokenizer_digest=folder.tokenizer_digest,
                template_digest=folder.template_digest,
                decode_digest=decode.digest,
                artifact=artifact,
                parent=parent,
                architecture=folder.architecture,
                golden=entries,
                provenance=origin,
            )
            .on_conflict_do_nothing()
            .returning(Policy.ref)
        ).scalar_one_or_none()
        return Added(_same(get_policy(session, ref), digest, parent), created=created is not None)


def policy_digest(folder: ModelFolder, decode: DecodeConfig) -> str:
    """The identity of a policy's content: SHA-256 over its four component digests."""
    return digest_of(
        {
            "weights": folder.weights_digest,
            "tokenizer": folder.tokenizer_digest,
            "template": folder.template_digest,
            "decode": decode.digest,
        }
    )


def default_decode(folder: ModelFolder) -> DecodeConfig:
    """The decode config of a folder that is given none.

    Temperature, top_p, top_k, min_p and repetition_penalty as `generation_config.json` states them; what it
    does not state is neutral (temperature 1). `max_tokens` is 512, or half the context where that is less.

    Raises:
        DecodeConfigError: A stated value is out of range.
    """
    neutral = DecodeConfig()
    longest = max(1, min(neutral.max_tokens, int(folder.architecture["context_length"]) // 2))
    values = {**folder.sampling, "max_tokens": longest}
    return DecodeConfig.parse(values, source=str(folder.path / GENERATION))


def check_decode(decode: DecodeConfig, architecture: dict[str, Any]) -> None:
    """Refuses a decode config that the model cannot be served with.

    Raises:
        DecodeConfigError: `max_tokens` leaves no room for a prompt, or `logit_bias` names an unknown token.
    """
    context = int(architecture["context_length"])
    if decode.max_tokens >= context:
        raise DecodeConfigError(
            f"max_tokens {decode.max_tokens} leaves no room for a prompt: the model's context has {context} "
            "tokens"
        )
    vocabulary = int(architecture["vocab_size"])
    unknown = [token for token in decode.logit_bias if token >= vocabulary]
    if unknown:
        raise DecodeConfigError(
            f"logit_bias names token {min(unknown)}, but the model's vocabulary ends at {vocabulary - 1}"
        )


def get_policy(session: Session, ref: str) -> PolicyVersion:
    """One policy version by its `name@version`.

    Raises:
        NotFound: It is not registered.
    """
    found = find(session, ref)
    if found is None:
        raise NotFound(f"no policy {ref} is registered; `ratchet policy list` shows those that are")
    return found


def find(session: Session, ref: str) -> PolicyVersion | None:
    """One policy version by its `name@version`; None when it is not registered."""
    row = session.execute(_QUERY.where(Policy.ref == ref)).mappings().one_or_none()
    return _version(row) if row else None


def list_policies(session: Session, name: str | None = None) -> list[PolicyVersion]:
    """Every policy version, or those of one name, newest first."""
    query = _QUERY.order_by(Policy.number.desc())
    if name is not None:
        query = query.where(Policy.name == name)
    return [_version(row) for row in session.execute(query).mappings()]


def resolve(session: Session, text: str) -> PolicyVersion:
    """The policy version that a person names: `name@version`, or a name for its newest version.

    Raises:
        NotFound: It is not registered.
    """
    if "@" in text:
        return get_policy(session, text)
    query = _QUERY.where(Policy.name == text).order_by(Policy.number.desc()).limit(1)
    newest = session.execute(query).mappings().first()
    if newest is None:
        raise NotFound(f"no policy is called {text!r}; `ratchet policy list` shows those that are registered")
    return _version(newest)


def folder_of(home: Home, policy: PolicyVersion, *, verify: bool = True) -> Path:
    """The stored folder of a policy, to be read only.

    Raises:
        NotFound: The store has lost it.
        EnvironmentFault: `verify` found that its bytes are not what they were.
    """
    return store_of(home, Kind.POLICY).open(policy.artifact, verify=verify)


def golden_entries(session: Session, ref: str) -> list[dict[str, Any]]:
    """The golden entries of a policy version (`trainer.golden`).

    Raises:
        NotFound: It is not registered.
    """
    entries = session.scalar(select(Policy.golden).where(Policy.ref == ref))
    if entries is None:
        raise NotFound(f"no policy {ref} is registered")
    return entries


def _found_at(path: Path) -> dict[str, Any]:
    source = source_of(path) or {}
    return {"path": str(path.resolve()), **{key: value for key, value in source.items() if key != "files"}}


def _storable(provenance: dict[str, Any]) -> dict[str, Any]:
    try:
        canonical_json(provenance)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the provenance is no JSON: {error}") from error
    if any(storable(text) != text for text in _texts(provenance)):
        raise UsageError("the provenance holds NUL or half a surrogate pair, which PostgreSQL cannot store")
    return provenance


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from (*_texts(key), *_texts(item))
    elif isinstance(value, list | tuple):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item)


def _same(known: PolicyVersion, digest: str, parent: str | None) -> PolicyVersion:
    if known.digest != digest:
        raise PolicyRefused(
            f"{known.ref} already stands for other content whose digest begins alike; use another name"
        )
    if parent is not None and parent != known.parent:
        raise PolicyRefused(
            f"this content is registered as {known.ref} with {known.parent or 'no'} parent, and a version "
            f"never changes; it cannot have the parent {parent}"
        )
    return known


_QUERY = select(
    Policy.ref,
    Policy.name,
    Policy.version,
    Policy.number,
    Policy.digest,
    Policy.weights_digest,
    Policy.tokenizer_digest,
    Policy.template_digest,
    Policy.decode_digest,
    DecodeConfigRow.config.label("decode"),
    Policy.artifact,
    Policy.parent,
    Policy.architecture,
    Policy.provenance,
    Policy.created_at,
).join(DecodeConfigRow, DecodeConfigRow.digest == Policy.decode_digest)


def _version(row: RowMapping) -> PolicyVersion:
    values: dict[str, Any] = dict(row)
    values["decode"] = DecodeConfig.parse(values["decode"], source=f"the decode config of {values['ref']}")
    return PolicyVersion(**values)
