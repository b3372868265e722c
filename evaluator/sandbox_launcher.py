"""Makes the sandbox and runs the code in it; a program of its own, told what to do on standard input.

It reports on a pipe that the code never gets: "ready" once every wall stands, then the exit code or
"timed_out".
"""

import ctypes
import json
import os
import platform
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
READ_ONLY = 0x1 | 0x2
"""MOUNT_ATTR_RDONLY and MOUNT_ATTR_NOSUID."""
SYS_MOUNT_SETATTR = 442
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_NO_NEW_PRIVS = 38
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64")
INNER_USER = 65_534
FIRST_FREE_USER = 1 << 30

libc = ctypes.CDLL(None, use_errno=True)


def checked(what: str, result: int) -> None:
    """Turns a failed call into an OSError that names it."""
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def main() -> None:
    """Reads the order, makes the sandbox, runs the code, reports."""
    order = json.load(sys.stdin)
    report = order["report_fd"]
    os.set_inheritable(report, False)
    try:
        privileged = enter_namespaces()
        build_root(order)
    except OSError as error:
        os.write(report, str(error.strerror or error).encode())
        return
    child = os.fork()
    if child == 0:
        run(order, privileged, report)
    os.write(report, f"\n{outcome(child, order['wall_seconds'])}".encode())


def enter_namespaces() -> bool:
    """New namespaces for this process; true where it needed no user namespace for that."""
    user, group = os.getuid(), os.getgid()
    if user == 0 and libc.unshare(NAMESPACES) == 0:
        return True
    checked("unshare", libc.unshare(NAMESPACES | CLONE_NEWUSER))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INNER_USER} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{INNER_USER} {group} 1")
    return False


def build_root(order: dict[str, Any]) -> None:
    """A root of read-only system folders and an empty /scratch; the rest of the machine is out of reach."""
    root = Path(order["root"])
    checked("mount private", libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    options = f"size={order['scratch_bytes']},mode=755".encode()
    checked("mount tmpfs", libc.mount(b"tmpfs", bytes(root), b"tmpfs", MS_NOSUID | MS_NODEV, options))
    for name in dict.fromkeys([*SYSTEM, order["prefix"]]):
        show(root, Path(name))
    null = root / "dev" / "null"
    null.parent.mkdir()
    null.touch()
    checked("bind /dev/null", libc.mount(b"/dev/null", bytes(null), None, MS_BIND, None))
    scratch = root / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    (scratch / "main.py").write_text(order["code"], encoding="utf-8", errors="surrogatepass")
    (scratch / "main.py").chmod(0o644)
    os.chdir(root)
    number = SYS_PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"no sandbox for processors of the kind {platform.machine()}")
    checked("pivot_root", libc.syscall(number, b".", b"."))
    checked("umount", libc.umount2(b".", MNT_DETACH))
    os.chdir("/scratch")


def show(root: Path, folder: Path) -> None:
    """Mounts a folder of the machine read-only at its own place under the root."""
    place = root / folder.relative_to("/")
    if folder.is_symlink():
        place.symlink_to(folder.readlink())
        return
    if not folder.is_dir() or place.exists():
        return
    place.mkdir(parents=True)
    checked(f"bind {folder}", libc.mount(bytes(folder), bytes(place), None, MS_BIND | MS_REC, None))
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY, 0, 0, 0)
    checked(
        f"read-only {folder}",
        libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, bytes(place), AT_RECURSIVE, attributes, 32),
    )


def run(order: dict[str, Any], privileged: bool, report: int) -> None:
    """Gives up every privilege and becomes the code; the first process of its namespace. Does not return."""
    try:
        limits = {
            resource.RLIMIT_CPU: order["cpu_seconds"],
            resource.RLIMIT_AS: order["memory_bytes"],
            resource.RLIMIT_NPROC: order["processes"],
            resource.RLIMIT_NOFILE: order["open_files"],
            resource.RLIMIT_FSIZE: order["file_bytes"],
            resource.RLIMIT_CORE: 0,
        }
        for limit, value in limits.items():
            resource.setrlimit(limit, (value, value))
        if privileged:
            user = FIRST_FREE_USER + int.from_bytes(os.urandom(3), "big")
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        checked("no_new_privs", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.write(report, b"ready")
        program = [order["python"], "-I", "-B", "main.py"]
        os.execve(order["python"], program, {"HOME": "/scratch"})  # noqa: S606
    except OSError as error:
        os.write(report, f"{error}".encode())
    os._exit(1)


def outcome(child: int, wall_seconds: float) -> str:
    """Waits for the code, and kills it when its time is up; all its processes go with the first."""
    descriptor = os.pidfd_open(child)
    ready, _, _ = select.select([descriptor], [], [], wall_seconds)
    if not ready:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return str(os.waitstatus_to_exitcode(status)) if ready else "timed_out"


if __name__ == "__main__":
    main()
