"""The store of artefacts: whole or not at all, verified, never changed."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.artifacts import JudgeRef, Kind, LocalStore, PolicyRef, RewardModelRef, address, store_of
from ratchet.canonical import digest_of, digest_of_file
from ratchet.errors import EnvironmentFault, NotFound, UsageError
from ratchet.home import Home


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with two files, one of them in a folder of its own."""
    folder = tmp_path / "source"
    (folder / "inner").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "inner" / "data").write_bytes(bytes(range(256)) * 20_000)
    (folder / "left out").write_text("not named")
    return folder


@pytest.fixture
def files(source: Path) -> dict[str, str]:
    """What of the folder is stored."""
    return {name: digest_of_file(source / name) for name in ("config.json", "inner/data")}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """An empty store."""
    return store_of(Home(tmp_path / "home"), Kind.POLICY)


def test_what_was_put_is_opened_to_the_byte(store: LocalStore, source: Path, files: dict[str, str]):
    copied: list[int] = []
    assert store.put(source, files, copied.append)
    folder = store.open(address(files))
    assert folder == store.root / digest_of(files)
    assert (folder / "inner/data").read_bytes() == (source / "inner/data").read_bytes()
    assert sorted(path.name for path in folder.rglob("*")) == ["config.json", "data", "inner"]
    assert sum(copied) == 2 + 256 * 20_000


def test_putting_again_changes_nothing(store: LocalStore, source: Path, files: dict[str, str]):
    assert store.put(source, files)
    assert not store.put(source, files)
    assert [(stored.digest, stored.size) for stored in store.list()] == [(address(files), 2 + 256 * 20_000)]


def test_putting_again_renews_the_time_that_keeps_it_from_collection(
    store: LocalStore, source: Path, files: dict[str, str]
):
    store.put(source, files)
    os.utime(store.root / address(files), (0, 0))
    assert store.list()[0].put_at.year == 1970
    store.put(source, files)
    assert store.list()[0].put_at.year > 1970


def test_the_address_follows_names_and_bytes_not_their_order_or_time(source: Path, files: dict[str, str]):
    os.utime(source / "config.json", (0, 0))
    again = {name: digest_of_file(source / name) for name in reversed(files)}
    assert address(again) == address(files)
    assert address({**files, "config.json": "0" * 64}) != address(files)
    assert address({"renamed.json": files["config.json"], "inner/data": files["inner/data"]}) != address(
        files
    )


def test_a_source_that_changed_meanwhile_is_refused_and_leaves_nothing(
    store: LocalStore, source: Path, files: dict[str, str]
):
    (source / "config.json").write_text("[]")
    with pytest.raises(EnvironmentFault, match=r"config\.json changed while it was read"):
        store.put(source, files)
    assert list(store.root.iterdir()) == []


def test_a_source_that_vanished_is_refused_and_leaves_nothing(
    store: LocalStore, source: Path, files: dict[str, str]
):
    (source / "inner/data").unlink()
    with pytest.raises(EnvironmentFault, match="cannot store"):
        store.put(source, files)
    assert list(store.root.iterdir()) == []


@pytest.mark.parametrize("harm", ["change", "add", "lose"])
def test_opening_finds_out_every_harm(store: LocalStore, source: Path, files: dict[str, str], harm: str):
    store.put(source, files)
    folder = store.root / address(files)
    if harm == "change":
        (folder / "config.json").chmod(0o644)
        (folder / "config.json").write_text("()")
    elif harm == "add":
        (folder / "more").write_text("")
    else:
        (folder / "config.json").unlink()
    with pytest.raises(EnvironmentFault, match="not what was stored"):
        store.open(address(files))
    assert store.open(address(files), verify=False) == folder


def test_removal(store: LocalStore, source: Path, files: dict[str, str]):
    store.put(source, files)
    store.remove(address(files))
    assert list(store.root.iterdir()) == []
    for act in (store.open, store.remove):
        with pytest.raises(NotFound):
            act(address(files))


@pytest.mark.parametrize("digest", ["", "..", "../policies", "0" * 64, "Z" * 64])
def test_no_address_leads_out_of_the_store(
    store: LocalStore, source: Path, files: dict[str, str], digest: str
):
    store.put(source, files)
    with pytest.raises(NotFound):
        store.open(digest)
    with pytest.raises(NotFound):
        store.remove(digest)


def test_an_absent_store_is_empty(store: LocalStore):
    assert store.list() == []
    assert store.remove_abandoned() == ()


def test_many_that_put_the_same_at_once_store_one(store: LocalStore, source: Path, files: dict[str, str]):
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda _: store.put(source, files), range(8)))
    assert created.count(True) == 1
    assert [path.name for path in store.root.iterdir()] == [address(files)]
    store.open(address(files))


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_writes_is_kept(store: LocalStore):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, living = (store.root / f".incoming-{pid}-{uuid4().hex}" for pid in (ended.pid, os.getpid()))
    for folder in (dead, living):
        folder.mkdir(parents=True)
        (folder / "file").write_text("half")
    assert store.list() == []
    assert store.remove_abandoned() == (dead,)
    assert list(store.root.iterdir()) == [living]


def test_a_reference_reads_back_what_it_wrote():
    ref = PolicyRef.parse("smollm2@0123456789ab")
    assert (ref.name, ref.version, str(ref)) == ("smollm2", "0123456789ab", "smollm2@0123456789ab")


def test_references_of_different_kinds_are_never_equal():
    text = "m@0123456789ab"
    kinds = {PolicyRef.parse(text), RewardModelRef.parse(text), JudgeRef.parse(text)}
    assert len(kinds) == 3


@pytest.mark.parametrize(
    "text",
    [
        "m",
        "m@",
        "@0123456789ab",
        "m@0123",
        "m@0123456789AB",
        "a/b@0123456789ab",
        "m@0123456789ab\n",
        "a b@0123456789ab",
    ],
)
def test_what_is_no_reference_is_refused(text: str):
    with pytest.raises(UsageError):
        PolicyRef.parse(text)


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
)
def test_every_name_and_version_makes_a_reference(name: str, version: str):
    assert PolicyRef.parse(f"{name}@{version}") == PolicyRef(name, version)
