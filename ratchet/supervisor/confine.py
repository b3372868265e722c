"""Becomes a command that sees only what it was shown (Linux: user, mount and IPC namespaces).

Run as `python -I -S confine.py ORDER COMMAND...`, with ORDER a JSON object of three lists of paths: `hide` is
covered by an empty folder in memory, `show` is put back to be read, `keep` is put back to be written too.
Everything else of the machine can be read, where the user may, and nothing of it can be written. In a user
namespace of its own the command can look into no process outside, not even of the same user: neither its
memory nor its environment nor its open files. It keeps no privilege; a namespace it makes itself cannot lift
what covers the hidden folders. Nor does it keep a folder from before: its working folder is entered anew
(`/` where that is covered), and open folders that it inherits are closed.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID = 4096, 16384, 1 << 18, 2
SYS_MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY = 1
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
NOT_ROOT = 65_533
"""How root is called inside: only a user other than 0 may make further user namespaces there."""
DEVICES = ("null", "zero", "full", "random", "urandom")

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Confines this process and becomes the command."""
    order, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        place = Path.cwd()
        enter_namespaces()
        cover(*([Path(path) for path in order[kind]] for kind in ("hide", "show", "keep")))
        let_go_of_folders(place)
        give_up_privileges()
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"the process cannot be confined: {error}")


def enter_namespaces() -> None:
    """New namespaces, in which this user and group are the only ones, under their own numbers unless 0."""
    user, group = os.geteuid(), os.getegid()
    checked("unshare", libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user or NOT_ROOT} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group or NOT_ROOT} {group} 1")
    checked("mount private", libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))


def cover(hide: list[Path], show: list[Path], keep: list[Path]) -> None:
    """Makes everything read-only, covers what is hidden and puts back what is shown, outermost first."""
    devices = [Path("/dev") / name for name in DEVICES]
    returned = {path: os.open(path, os.O_PATH) for path in (*devices, *show, *keep)}
    set_read_only(Path("/"), AT_RECURSIVE)
    set_writable(Path("/proc"))
    bind(Path("/proc/sys"), Path("/proc/sys"))
    set_read_only(Path("/proc/sys"))
    for path in sorted({Path("/dev"), *hide, *returned}, key=lambda path: len(path.parts)):
        if path in returned:
            put_back(returned[path], path)
            (set_writable if path in keep else set_read_only)(path)
        else:
            path.mkdir(parents=True, exist_ok=True)
            checked(f"cover {path}", libc.mount(b"tmpfs", bytes(path), b"tmpfs", MS_NOSUID, b"mode=755"))
    (Path("/dev") / "shm").mkdir(mode=0o1777)
    Path("/dev/fd").symlink_to("/proc/self/fd")
    for descriptor in returned.values():
        os.close(descriptor)


def let_go_of_folders(place: Path) -> None:
    """Enters the working folder again as it is seen now, and closes every folder that is open: through either
    a path could go below a cover."""
    os.chdir(place if place.is_dir() else "/")
    for link in Path("/proc/self/fd").iterdir():
        if link.is_dir():
            os.close(int(link.name))


def put_back(descriptor: int, path: Path) -> None:
    """Binds what a descriptor names at its own place, made there where it is covered."""
    source = Path(f"/proc/self/fd/{descriptor}")
    if not path.exists():
        if source.is_dir():
            path.mkdir(parents=True)
        else:
            path.touch()
    bind(source, path)


def bind(source: Path, target: Path) -> None:
    """Mounts a folder or file a second time."""
    checked(f"show {target}", libc.mount(bytes(source), bytes(target), None, MS_BIND | MS_REC, None))


def set_read_only(path: Path, flags: int = 0) -> None:
    """Makes a mount read-only; with `AT_RECURSIVE` those below it too."""
    set_attributes(path, MOUNT_ATTR_RDONLY, 0, flags)


def set_writable(path: Path) -> None:
    """Makes a mount writable again."""
    set_attributes(path, 0, MOUNT_ATTR_RDONLY, 0)


def set_attributes(path: Path, wanted: int, unwanted: int, flags: int) -> None:
    """Changes the attributes of a mount."""
    attributes = (ctypes.c_uint64 * 4)(wanted, unwanted, 0, 0)
    checked(
        f"attributes of {path}",
        libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, bytes(path), flags, attributes, ctypes.sizeof(attributes)),
    )


def give_up_privileges() -> None:
    """What is run from here on has no privilege, being no root, and gets none; its parent's death is told."""
    checked("no new privileges", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    checked("parent-death signal", libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0))


def checked(what: str, result: int) -> None:
    """Turns a failed call into an OSError that names it."""
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


if __name__ == "__main__":
    main()
