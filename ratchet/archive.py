"""The file that `ratchet backup` writes and `ratchet restore` reads: a tar that proves its own content.

Members: `database.dump` (pg_dump's custom format), `artifacts/...`, `snapshots/...`, and last `manifest.json`
with the SHA-256 and size of every other member. Passwords and keys are not in it; a restore makes new ones.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ratchet.errors import EnvironmentFault, UsageError

FORMAT = 1
MANIFEST = "manifest.json"
DUMP = "database.dump"
FOLDERS = ("artifacts", "snapshots")
_PIECE = 4 << 20


@dataclass
class ArchiveWriter:
    """Adds members to a new archive, and remembers what the manifest must say."""

    _tar: tarfile.TarFile
    files: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def add(self, path: Path, name: str) -> None:
        """Adds a file as it is now."""
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            hashing = _Hashing(opened)
            member = tarfile.TarInfo(name)
            member.size = size
            self._tar.addfile(member, hashing)
        self.files[name] = {"sha256": hashing.digest.hexdigest(), "size": size}

    def add_folder(self, folder: Path, name: str) -> None:
        """Adds every file below a folder, but for what is still being written, in `.incoming-...` folders."""
        for path in sorted(folder.rglob("*")):
            relative = path.relative_to(folder)
            if path.is_file() and not any(part.startswith(".") for part in relative.parts[:2]):
                self.add(path, f"{name}/{relative.as_posix()}")

    def finish(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Adds the manifest, and returns it."""
        manifest = {"format": FORMAT, **facts, "files": self.files}
        text = json.dumps(manifest, indent=1, sort_keys=True).encode()
        member = tarfile.TarInfo(MANIFEST)
        member.size = len(text)
        self._tar.addfile(member, io.BytesIO(text))
        return manifest


class _Hashing(io.RawIOBase):
    """Reads a file and takes its digest on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self.digest.update(piece)
        return piece


@contextmanager
def new_archive(target: Path) -> Generator[ArchiveWriter]:
    """Makes an archive that appears whole, under its name, or not at all."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                yield ArchiveWriter(tar)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {target}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def unpack(archive: Path, place: Callable[[str], Path]) -> dict[str, Any]:
    """Unpacks an archive and proves each file against the manifest.

    Args:
        archive: The file.
        place: Where a member goes, by its name; asked for names within `FOLDERS`, and for `DUMP`.

    Returns:
        The manifest.

    Raises:
        UsageError: Not an archive of ours, or not whole: a file is missing, added or changed. What was
            unpacked until then is still there.
    """
    seen: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] | None = None
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                source = tar.extractfile(member)
                if source is None or not _is_ours(member.name):
                    raise UsageError(f"{archive} holds {member.name!r}, which no backup of ours holds")
                if member.name == MANIFEST:
                    manifest = json.load(source)
                else:
                    seen[member.name] = _write(source, place(member.name))
    except FileNotFoundError as error:
        raise UsageError(f"there is no {archive}") from error
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise UsageError(f"{archive} is no whole backup: {error}") from error
    if manifest is None or manifest.get("format") != FORMAT:
        raise UsageError(
            f"{archive} is no whole backup of format {FORMAT}: its manifest is missing or another"
        )
    wrong = sorted(
        name
        for name in seen.keys() | manifest["files"].keys()
        if seen.get(name) != manifest["files"].get(name)
    )
    if wrong:
        raise UsageError(
            f"{archive} was damaged: {', '.join(wrong[:3])} are not what was saved ({len(wrong)} in all)"
        )
    return manifest


def _is_ours(name: str) -> bool:
    path = PurePosixPath(name)
    if name in (MANIFEST, DUMP):
        return True
    return path.parts[0] in FOLDERS and ".." not in path.parts and not path.is_absolute()


def _write(source: IO[bytes], target: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    size = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        while piece := source.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "size": size}
