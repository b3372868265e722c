"""The store of reward models: encrypted where they lie, so that their folder alone tells nothing.

Its key is a secret of the data folder which the stack hands to the trainer's processes and to no other.
A file is sealed in pieces with AES-256-GCM, as the STREAM construction of Hoang, Reyhanitabar, Rogaway and
Vizár 2015 ("Online authenticated-encryption and its nonce-reuse misuse-resistance", section 7): the nonce is
the piece's number and a mark on the last one, so that pieces can be neither exchanged nor cut off. Every file
has a key of its own, derived with HKDF (RFC 5869) from the store's key and a random salt, so that no nonce is
used twice.

    file   = "ratchet-sealed-1" | key id [16] | salt [32] | piece ...
    piece  = AES-GCM(at most 4 MiB of the file) | tag [16]

That a sealed file stands at its right place in the right artefact is proved by the artefact's address, which
is a digest of all plain files.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import psutil
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ratchet.artifacts import Kind, LocalStore, Progress, Stored, address
from ratchet.errors import EnvironmentFault, NotFound
from ratchet.home import Home
from ratchet.secrets_store import known_shared_key

KEY_NAME = "reward-store"
KEY_VARIABLE = "RATCHET_REWARD_STORE_KEY"

_MAGIC = b"ratchet-sealed-1"
_ID_BYTES = 16
_SALT_BYTES = 32
_TAG_BYTES = 16
_PIECE_BYTES = 4 << 20
_OPENED = re.compile(r"\.opened-(\d+)-[0-9a-f]{32}")


class SealedStore:
    """A store whose artefacts can be opened with its key only.

    Args:
        root: Its folder.
        key: Its key, any text that cannot be guessed.
    """

    def __init__(self, root: Path, key: str) -> None:
        self.root = root
        self._key = key.encode()
        self._store = LocalStore(root, self._seal)

    def put(self, folder: Path, files: dict[str, str], progress: Progress | None = None) -> bool:
        """Seals copies of files as one artefact; arguments, result and errors as of `artifacts.Store.put`."""
        return self._store.put(folder, files, progress)

    @contextmanager
    def opened(self, digest: str) -> Generator[Path]:
        """The plain artefact in a folder that only this user may enter, removed at the end.

        What processes that were killed left open is removed first.

        Raises:
            NotFound: No such artefact.
            EnvironmentFault: It was sealed with another key, or its bytes are not what they were.
        """
        sealed = self._store.open(digest, verify=False)
        self._remove_abandoned()
        plain = self.root / f".opened-{os.getpid()}-{uuid4().hex}"
        plain.mkdir(mode=0o700)
        try:
            self._unseal(sealed, plain, digest)
            yield plain
        finally:
            shutil.rmtree(plain, ignore_errors=True)

    def list(self) -> list[Stored]:
        """Every artefact, by address; sizes are those of the sealed files."""
        return self._store.list()

    def remove(self, digest: str) -> None:
        """Removes an artefact.

        Raises:
            NotFound: No such artefact.
        """
        self._store.remove(digest)

    def _unseal(self, sealed: Path, plain: Path, digest: str) -> None:
        try:
            found = {
                path.relative_to(sealed).as_posix(): self._open(path, plain / path.relative_to(sealed))
                for path in sorted(sealed.rglob("*"))
                if path.is_file()
            }
        except OSError as error:
            raise EnvironmentFault(f"cannot open {sealed}: {error}") from error
        if address(found) != digest:
            raise EnvironmentFault(f"{sealed} is not what was stored: {_MEND}")

    def _seal(self, source: Path, target: Path, progress: Progress | None) -> str:
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        salt = os.urandom(_SALT_BYTES)
        cipher = AESGCM(_derived(self._key, salt, b"file", 32))
        with source.open("rb") as reader, target.open("wb") as writer:
            writer.write(_MAGIC + _derived(self._key, salt, b"id", _ID_BYTES) + salt)
            for number, piece, last in _pieces(reader, _PIECE_BYTES):
                digest.update(piece)
                writer.write(cipher.encrypt(_nonce(number, last), piece, None))
                if progress:
                    progress(len(piece))
            writer.flush()
            os.fsync(writer.fileno())
        target.chmod(0o400)
        return digest.hexdigest()

    def _open(self, source: Path, target: Path) -> str:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with source.open("rb") as reader, target.open("xb") as writer:
            head = reader.read(len(_MAGIC) + _ID_BYTES + _SALT_BYTES)
            magic, rest = head[: len(_MAGIC)], head[len(_MAGIC) :]
            identity, salt = rest[:_ID_BYTES], rest[_ID_BYTES:]
            if magic != _MAGIC or len(salt) != _SALT_BYTES:
                raise EnvironmentFault(f"{source} is no sealed file: {_MEND}")
            if identity != _derived(self._key, salt, b"id", _ID_BYTES):
                raise EnvironmentFault(
                    f"{source} was sealed with another key: bring back secrets/{KEY_NAME}.key of the data "
                    f"folder it was made in (or set {KEY_VARIABLE}); without that key it stays closed"
                )
            cipher = AESGCM(_derived(self._key, salt, b"file", 32))
            for number, piece, last in _pieces(reader, _PIECE_BYTES + _TAG_BYTES):
                try:
                    plain = cipher.decrypt(_nonce(number, last), piece, None)
                except InvalidTag:
                    raise EnvironmentFault(f"{source} was changed since it was sealed: {_MEND}") from None
                digest.update(plain)
                writer.write(plain)
        return digest.hexdigest()

    def _remove_abandoned(self) -> None:
        for path in self.root.iterdir():
            found = _OPENED.fullmatch(path.name)
            if found and not psutil.pid_exists(int(found[1])):
                shutil.rmtree(path, ignore_errors=True)


_MEND = "restore it from a backup, or train the reward model again"


def reward_store(home: Home, key: str | None = None) -> SealedStore:
    """The store of reward models.

    Args:
        home: The data folder.
        key: Its key; None takes that of the environment, else of the data folder's secrets.

    Raises:
        NotFound: There is no key: no stack was ever set up here, or this process may not have it.
    """
    found = key or os.environ.get(KEY_VARIABLE) or known_shared_key(home, KEY_NAME)
    if found is None:
        raise NotFound(
            f"no key of the reward store: neither {KEY_VARIABLE} nor {home.secrets / (KEY_NAME + '.key')}; "
            "start the stack there once, or give --data-dir / RATCHET_HOME of the stack you mean"
        )
    return SealedStore(home.artifacts / Kind.REWARD_MODEL.value, found)


def _derived(key: bytes, salt: bytes, purpose: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, b"ratchet sealed " + purpose).derive(key)


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _pieces(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes, bool]]:
    """Number, bytes, and whether it is the last; an empty file is one empty piece."""
    piece = file.read(size)
    number = 0
    while True:
        following = file.read(size)
        yield number, piece, not following
        if not following:
            return
        piece, number = following, number + 1
