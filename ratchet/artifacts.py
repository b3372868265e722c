"""Artefacts addressed by their content: folders that are written once, verified, and never changed.

A `Store` keeps the folders of one kind (`Kind`). `LocalStore` keeps them on this machine's disk; one in an
object store keeps to the same interface, and opens into a local folder.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol, Self
from uuid import uuid4

import psutil

from ratchet.canonical import SHORT_DIGEST, digest_of, digest_of_file
from ratchet.errors import EnvironmentFault, NotFound, UsageError
from ratchet.home import Home

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VERSION = re.compile(rf"[0-9a-f]{{{SHORT_DIGEST}}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_INCOMING = re.compile(r"\.incoming-(\d+)-[0-9a-f]{32}")
_COPY_BYTES = 4 << 20

Progress = Callable[[int], None]
"""Told the number of bytes that were just read or copied."""

Copy = Callable[[Path, Path, Progress | None], str]
"""Writes a file of a store from a source; returns the SHA-256 of the source."""


class Kind(StrEnum):
    """What an artefact is: the folder of its store, and who is given the store."""

    POLICY = "policies"
    REWARD_MODEL = "reward_models"
    JUDGE = "judges"


@dataclass(frozen=True, order=True)
class Ref:
    """`name@version`, the version being the first 12 hex digits of the digest of what it names."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `name@version`.

        Raises:
            UsageError: It is not one.
        """
        name, at, version = text.partition("@")
        if not at or not _VERSION.fullmatch(version):
            raise UsageError(f"{text!r} is no reference: `name@` and {SHORT_DIGEST} hex digits are expected")
        return cls(checked_name(name), version)


class PolicyRef(Ref):
    """A policy version."""


class RewardModelRef(Ref):
    """A reward model; a policy's or a judge's reference does not stand in for it."""


class JudgeRef(Ref):
    """A judge; a policy's or a reward model's reference does not stand in for it."""


def checked_name(name: str) -> str:
    """The name, if it may be one.

    Raises:
        UsageError: It holds more than letters, digits, `.`, `_` and `-`, or more than 64 of them.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name: letters, digits, '.', '_' and '-', 64 at most, the first a letter or digit"
        )
    return name


@dataclass(frozen=True)
class Stored:
    """An artefact in a store.

    Attributes:
        digest: Its address.
        size: Bytes.
        put_at: When it was last put, new or again.
    """

    digest: str
    size: int
    put_at: datetime


class Store(Protocol):
    """The artefacts of one kind."""

    def put(self, folder: Path, files: Mapping[str, str], progress: Progress | None = None) -> bool:
        """Stores copies of files as one artefact, whose address is `address(files)`.

        Args:
            folder: Where the files are now.
            files: Path within the folder to the SHA-256 its copy must have.
            progress: Told of each piece copied.

        Returns:
            Whether it was new; an artefact that is there is left as it is.

        Raises:
            EnvironmentFault: A file changed meanwhile, or cannot be read or written.
        """
        ...

    def open(self, digest: str, *, verify: bool = True) -> Path:
        """A local folder with the artefact, to be read only.

        Raises:
            NotFound: No such artefact.
            EnvironmentFault: `verify` found that its bytes are not what they were.
        """
        ...

    def list(self) -> list[Stored]:
        """Every artefact, by address."""
        ...

    def remove(self, digest: str) -> None:
        """Removes an artefact.

        Raises:
            NotFound: No such artefact.
        """
        ...


def address(files: Mapping[str, str]) -> str:
    """The address of an artefact: the digest of its files' paths and SHA-256 digests."""
    return digest_of(dict(files))


def store_of(home: Home, kind: Literal[Kind.POLICY, Kind.JUDGE]) -> "LocalStore":
    """The store of one kind in a data folder; that of reward models is `ratchet.sealed.reward_store`."""
    return LocalStore(home.artifacts / kind.value)


class LocalStore:
    """A store in a folder: `<root>/<digest>/...`."""

    def __init__(self, root: Path, copy: Copy | None = None) -> None:
        """A store whose files are what they are copies of, or what `copy` makes of them."""
        self.root = root
        self._copy = copy or copy_file

    def put(self, folder: Path, files: Mapping[str, str], progress: Progress | None = None) -> bool:
        """See `Store.put`. Readers see the whole artefact or none, also after a crash."""
        digest = address(files)
        final = self.root / digest
        if final.is_dir():
            os.utime(final)
            return False
        incoming = self.root / f".incoming-{os.getpid()}-{uuid4().hex}"
        try:
            for name, expected in sorted(files.items()):
                copied = self._copy(folder / name, incoming / name, progress)
                if copied != expected:
                    raise EnvironmentFault(f"{folder / name} changed while it was read; try again")
            for made in (incoming, *(path for path in incoming.rglob("*") if path.is_dir())):
                _sync(made)
            return self._rename(incoming, final)
        except OSError as error:
            raise EnvironmentFault(f"cannot store {folder} in {self.root}: {error}") from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def open(self, digest: str, *, verify: bool = True) -> Path:
        """See `Store.open`."""
        folder = self._existing(digest)
        if verify:
            found = {
                path.relative_to(folder).as_posix(): digest_of_file(path)
                for path in folder.rglob("*")
                if path.is_file()
            }
            if address(found) != digest:
                raise EnvironmentFault(
                    f"{folder} is not what was stored: a file in it was changed, added or lost; "
                    "remove the folder and add it again, or restore a backup"
                )
        return folder

    def list(self) -> list[Stored]:
        """See `Store.list`."""
        if not self.root.exists():
            return []
        return [
            Stored(
                digest=folder.name,
                size=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
                put_at=datetime.fromtimestamp(folder.stat().st_mtime, tz=UTC),
            )
            for folder in sorted(self.root.iterdir())
            if _DIGEST.fullmatch(folder.name)
        ]

    def remove(self, digest: str) -> None:
        """See `Store.remove`. A crash in the middle leaves nothing that can be opened."""
        folder = self._existing(digest)
        leaving = self.root / f".incoming-{os.getpid()}-{uuid4().hex}"
        folder.rename(leaving)
        shutil.rmtree(leaving)

    def remove_abandoned(self) -> tuple[Path, ...]:
        """Removes what processes that are gone left half done; returns what was removed."""
        abandoned = tuple(
            path
            for path in (self.root.iterdir() if self.root.exists() else ())
            if (found := _INCOMING.fullmatch(path.name)) and not psutil.pid_exists(int(found[1]))
        )
        for path in abandoned:
            shutil.rmtree(path, ignore_errors=True)
        return abandoned

    def _existing(self, digest: str) -> Path:
        folder = self.root / digest
        if not _DIGEST.fullmatch(digest) or not folder.is_dir():
            raise NotFound(f"no artefact {digest} in {self.root}")
        return folder

    def _rename(self, incoming: Path, final: Path) -> bool:
        try:
            incoming.rename(final)
        except OSError:
            if final.is_dir():
                return False
            raise
        _sync(self.root)
        return True


def copy_file(source: Path, target: Path, progress: Progress | None) -> str:
    """Copies a file, read-only and on disk when this returns; gives its SHA-256."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while piece := reader.read(_COPY_BYTES):
            digest.update(piece)
            writer.write(piece)
            if progress:
                progress(len(piece))
        writer.flush()
        os.fsync(writer.fileno())
    target.chmod(0o444)
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
