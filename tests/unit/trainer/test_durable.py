"""A file or folder is there whole or not at all, and a full disk is called one."""

import errno
import os
from pathlib import Path

import pytest

from trainer.durable import INCOMING, place, room, write_text
from trainer.errors import DiskFull


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "1")
    write_text(path, "2")
    assert path.read_text() == "2"
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """The kernel's own device for a disk without room stands where the new file would be written."""
    path = tmp_path / "a.json"
    write_text(path, "good")
    (tmp_path / f"{INCOMING}{os.getpid()}-a.json").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match="make room and resume"):
        write_text(path, "never")
    assert path.read_text() == "good"


def test_a_folder_takes_its_place(tmp_path: Path) -> None:
    for word in ("old", "new"):
        incoming = tmp_path / f"{INCOMING}step"
        (incoming / "inner").mkdir(parents=True)
        (incoming / "inner" / "file").write_text(word)
        place(incoming, tmp_path / "step")
    assert (tmp_path / "step" / "inner" / "file").read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["step"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        RuntimeError("[enforce fail at inline_container.cc:668] . PytorchStreamWriter failed writing file"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 289408 vs 289296"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_every_librarys_word_for_a_full_disk_is_known(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(DiskFull), room(tmp_path):
        raise error


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), room(tmp_path):
        raise PermissionError(errno.EACCES, "no")
    with pytest.raises(RuntimeError, match="shape"), room(tmp_path):
        raise RuntimeError("shape mismatch")
