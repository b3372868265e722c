"""The sealed store: closed without its key, and every changed byte is noticed."""

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet import sealed
from ratchet.artifacts import address
from ratchet.canonical import digest_of_file
from ratchet.errors import EnvironmentFault, NotFound
from ratchet.home import Home
from ratchet.sealed import KEY_VARIABLE, SealedStore, reward_store
from ratchet.secrets_store import shared_key

HEAD = 16 + 16 + 32
WEIGHTS = bytes(range(256)) * 40_000
"""Ten million bytes: three pieces."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder like a model's: weights of several pieces, a small file, an empty one in a folder."""
    folder = tmp_path / "source"
    (folder / "inner").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "config.json").write_text('{"num_labels": 1}')
    (folder / "inner" / "empty").touch()
    return folder


def files_of(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): digest_of_file(path)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def digest(tmp_path: Path, source: Path) -> str:
    """The folder, sealed."""
    store = SealedStore(tmp_path / "store", "first key")
    assert store.put(source, files_of(source))
    return address(files_of(source))


@pytest.fixture
def weights(tmp_path: Path, digest: str) -> Path:
    """The sealed weights, which a test may change."""
    file = tmp_path / "store" / digest / "model.safetensors"
    file.chmod(0o600)
    return file


def opened(tmp_path: Path, digest: str, key: str = "first key") -> dict[str, bytes]:
    with SealedStore(tmp_path / "store", key).opened(digest) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }


def test_what_was_sealed_is_opened_to_the_byte_and_the_plain_copy_goes(tmp_path: Path, digest: str) -> None:
    assert opened(tmp_path, digest) == {
        "model.safetensors": WEIGHTS,
        "config.json": b'{"num_labels": 1}',
        "inner/empty": b"",
    }
    assert [path.name for path in (tmp_path / "store").iterdir()] == [digest]


def test_nothing_plain_lies_in_the_store(tmp_path: Path, digest: str) -> None:
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            assert b"num_labels" not in path.read_bytes()
            assert WEIGHTS[:512] not in path.read_bytes()


def test_another_key_opens_nothing_and_the_error_names_the_mend(tmp_path: Path, digest: str) -> None:
    with pytest.raises(EnvironmentFault, match=r"sealed with another key: .*secrets/reward-store\.key"):
        opened(tmp_path, digest, "second key")
    assert [path.name for path in (tmp_path / "store").iterdir()] == [digest]


@pytest.mark.parametrize("place", [0, 16, 40, HEAD, HEAD + (4 << 20) + 20, -1])
def test_a_changed_byte_is_refused(tmp_path: Path, digest: str, weights: Path, place: int) -> None:
    content = bytearray(weights.read_bytes())
    content[place] ^= 1
    weights.write_bytes(content)
    with pytest.raises(EnvironmentFault, match=r"no sealed file|another key|was changed"):
        opened(tmp_path, digest)


def test_pieces_cannot_be_cut_off_or_exchanged(tmp_path: Path, digest: str, weights: Path) -> None:
    piece = (4 << 20) + 16
    content = weights.read_bytes()
    head, first, second, third = (
        content[:HEAD],
        content[HEAD : HEAD + piece],
        content[HEAD + piece : HEAD + 2 * piece],
        content[HEAD + 2 * piece :],
    )
    for forged in (head + first + second, head + second + first + third, head, head + first + third):
        weights.write_bytes(forged)
        with pytest.raises(EnvironmentFault, match="was changed"):
            opened(tmp_path, digest)


def test_a_file_from_elsewhere_in_the_store_is_refused(tmp_path: Path, digest: str, weights: Path) -> None:
    weights.write_bytes((tmp_path / "store" / digest / "config.json").read_bytes())
    with pytest.raises(EnvironmentFault, match="is not what was stored"):
        opened(tmp_path, digest)


def test_a_lost_file_is_refused(tmp_path: Path, digest: str, weights: Path) -> None:
    weights.unlink()
    with pytest.raises(EnvironmentFault, match="is not what was stored"):
        opened(tmp_path, digest)


def test_an_artefact_that_is_not_there(tmp_path: Path, digest: str) -> None:
    with pytest.raises(NotFound), SealedStore(tmp_path / "store", "first key").opened("0" * 64):
        pass


def test_the_format_is_what_its_docstring_says(tmp_path: Path, digest: str, weights: Path) -> None:
    """Opened by hand with the primitives: HKDF of key and salt, then AES-GCM with number and last mark."""
    content = weights.read_bytes()
    assert content[:16] == b"ratchet-sealed-1"
    key = HKDF(SHA256(), 32, content[32:64], b"ratchet sealed file").derive(b"first key")
    piece = (4 << 20) + 16
    plain = b"".join(
        AESGCM(key).decrypt(
            number.to_bytes(11, "big") + bytes([number == 2]),
            content[HEAD + number * piece : HEAD + (number + 1) * piece],
            None,
        )
        for number in range(3)
    )
    assert plain == WEIGHTS


@given(st.binary(max_size=100))
@settings(max_examples=50, deadline=None)
def test_any_length_around_the_pieces_edges(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "plain").mkdir()
    (folder / "plain" / "file").write_bytes(content)
    files = files_of(folder / "plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed, "_PIECE_BYTES", 10)
        SealedStore(folder / "store", "key").put(folder / "plain", files)
        with SealedStore(folder / "store", "key").opened(address(files)) as plain:
            assert (plain / "file").read_bytes() == content


def test_the_same_file_is_sealed_differently_each_time(tmp_path: Path, source: Path) -> None:
    """Salts are random, so equal files do not show that they are equal."""
    for name in ("a", "b"):
        SealedStore(tmp_path / name, "key").put(source, files_of(source))
    digest = address(files_of(source))
    first, second = (tmp_path / name / digest / "config.json" for name in ("a", "b"))
    assert first.read_bytes() != second.read_bytes()


def test_what_a_killed_process_left_open_goes_with_the_next_opening(tmp_path: Path, digest: str) -> None:
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal, sys; from pathlib import Path; from ratchet.sealed import SealedStore\n"
            "with SealedStore(Path(sys.argv[1]), 'first key').opened(sys.argv[2]):\n"
            "    os.kill(os.getpid(), signal.SIGKILL)",
            str(tmp_path / "store"),
            digest,
        ],
        check=False,
    )
    assert killed.returncode == -9
    assert len(list((tmp_path / "store").iterdir())) == 2
    opened(tmp_path, digest)
    assert [path.name for path in (tmp_path / "store").iterdir()] == [digest]


def test_the_key_comes_from_the_environment_or_the_secrets_and_else_nothing_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home").ensure()
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(NotFound, match=KEY_VARIABLE):
        reward_store(home)
    key = shared_key(home, "reward-store")
    file = tmp_path / "file"
    file.write_text("scores")
    files = {"file": digest_of_file(file)}
    reward_store(home).put(tmp_path, files)
    monkeypatch.setenv(KEY_VARIABLE, key)
    (home.secrets / "reward-store.key").unlink()
    with reward_store(home).opened(address(files)) as plain:
        assert (plain / "file").read_text() == "scores"
    monkeypatch.setenv(KEY_VARIABLE, "another")
    with pytest.raises(EnvironmentFault, match="another key"), reward_store(home).opened(address(files)):
        pass
