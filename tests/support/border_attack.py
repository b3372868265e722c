"""Tries every way to what the evaluator must not have, from within a process; prints what came of each.

Run as `python border_attack.py` with one JSON object on standard input: `home`, `pids` (process name to
number), `programs` (folder of the running code), `passwords` (what a thief would recognise) and `url` (the
trainer's address). Prints a JSON object: attempt to "refused: ..." or "got: ...".
"""

import ctypes
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

libc = ctypes.CDLL(None, use_errno=True)
NEWUSER_NEWNS = 0x10020000
MNT_DETACH, PTRACE_SEIZE, MS_BIND = 2, 0x4206, 4096


def called(name: str, result: int) -> int:
    """A call that must not have worked."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def listed(folder: Path) -> list[str]:
    """Names in a folder."""
    return [path.name for path in folder.iterdir()]


def in_child(work: Callable[[], Any]) -> Any:
    """Does work in a child, whose namespaces may change; its words come back."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, f"got: {work()}".encode()[:2000])
        except BaseException as error:  # noqa: BLE001 - whatever stops the attack is its result
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:2000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    os.waitpid(child, 0)
    if not text.startswith("got: "):
        raise PermissionError(text)
    return text.removeprefix("got: ")


def uncovered(path: Path) -> list[str]:
    """What lies below a cover, from a namespace of one's own in which one may unmount."""
    called("unshare", libc.unshare(NEWUSER_NEWNS))
    called("umount", libc.umount2(bytes(path), MNT_DETACH))
    return listed(path / "secrets")


def joined(pid: int, home: Path) -> list[str]:
    """What another process sees, from within its namespaces."""
    for kind in ("user", "mnt"):
        descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        called("setns", libc.setns(descriptor, 0))
    return listed(home / "secrets")


def bound_elsewhere(home: Path) -> list[str]:
    """What lies at the data folder when its parent is bound to another place."""
    called("unshare", libc.unshare(NEWUSER_NEWNS))
    place = Path("/dev/shm/elsewhere")
    place.mkdir(exist_ok=True)
    called("mount", libc.mount(bytes(home.parent), bytes(place), None, MS_BIND, None))
    return listed(place / home.name / "secrets")


def login(url: str) -> str:
    """Who PostgreSQL says one is."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_user").fetchone()
        return str(row)


def query(statement: str) -> list[Any]:
    """What one's own role is told."""
    with psycopg.connect(os.environ["RATCHET_DATABASE_URL"]) as connection:
        return connection.execute(statement.encode()).fetchall()


def told_by_alarms() -> list[Any]:
    """What alarms say of reward models beside which measurement holds it."""
    told = query("SELECT detail - 'measurement' FROM operations.alarm WHERE kind = 'reward-model-drift'")
    figures = [detail for (detail,) in told if detail]
    if told and not figures:
        raise LookupError("alarms name measurements, and tell no figure")
    return figures


def left_behind(folder: Path) -> Path:
    """A file that every Python process would read at its start, gone again at once."""
    path = folder / "ratchet-border-attack.pth"
    path.touch()
    path.unlink()
    return path


def attempts(order: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Every attack, by name."""
    home, programs = Path(order["home"]), Path(order["programs"])
    ways: dict[str, Callable[[], Any]] = {
        "list the secrets": lambda: listed(home / "secrets"),
        "read the reward store's key": (home / "secrets" / "reward-store.key").read_text,
        "read the trainer's address": (home / "secrets" / "trainer.url").read_text,
        "read the owner's password": (home / "secrets" / "owner.password").read_text,
        "list the reward models": lambda: listed(home / "artifacts" / "reward_models"),
        "list the snapshots": lambda: listed(home / "snapshots"),
        "list the logs": lambda: listed(home / "logs"),
        "read the database's own files": lambda: listed(home / "postgres"),
        "find a secret in the own environment": lambda: secret_in(dict(os.environ), order["passwords"]),
        "lift the cover": lambda: called("umount", libc.umount2(bytes(home), MNT_DETACH)),
        "lift the cover in another namespace": lambda: in_child(lambda: uncovered(home)),
        "bind the folder to another place": lambda: in_child(lambda: bound_elsewhere(home)),
        "change the trainer's code": lambda: (programs / "trainer" / "worker.py").open("a"),
        "leave code that every process runs": lambda: left_behind(Path(sysconfig.get_path("purelib"))),
        "log in as the trainer without a password": lambda: login(order["url_without_password"]),
        "log in as the owner without a password": lambda: login(order["owner_without_password"]),
        "read reward models' rows": lambda: query("SELECT * FROM reward.reward_model"),
        "read figures of reward models in alarms": told_by_alarms,
        "read the measurements that alarms name": lambda: query(
            "SELECT report FROM reward.measurement JOIN operations.alarm ON detail ->> 'measurement' = "
            "measurement.id::text"
        ),
        "read rewards of checkpoints": lambda: query("SELECT reward FROM training.checkpoint"),
        "become the trainer": lambda: query("SET ROLE ratchet_trainer"),
        "read files through the server": lambda: query("SELECT pg_read_file('/etc/hostname')"),
    }
    for name, pid in order["pids"].items():
        process = Path(f"/proc/{pid}")
        ways |= {
            f"environment of {name}": (process / "environ").read_bytes,
            f"memory of {name}": lambda process=process: (process / "mem").open("rb"),
            f"output of {name}": lambda process=process: (process / "fd" / "1").open(),
            f"root of {name}": lambda process=process: listed(process / "root"),
            f"folder of {name}": lambda process=process: listed(process / "cwd"),
            f"attach to {name}": lambda pid=pid: called("ptrace", libc.ptrace(PTRACE_SEIZE, pid, 0, 0)),
            f"namespaces of {name}": lambda pid=pid: in_child(lambda: joined(pid, home)),
        }
    return ways


def secret_in(environment: dict[str, str], passwords: list[str]) -> str:
    """A variable that holds a secret."""
    for name, value in environment.items():
        if any(password in value for password in passwords):
            return name
    raise LookupError("no variable holds one")


def main() -> None:
    """Tries them all."""
    said: dict[str, str] = {}
    for name, way in attempts(json.load(sys.stdin)).items():
        try:
            said[name] = f"got: {str(way())[:60]}"
        except (OSError, LookupError, psycopg.Error) as error:
            said[name] = f"refused: {type(error).__name__}: {str(error).splitlines()[0]}"
    print(json.dumps(said))


if __name__ == "__main__":
    main()
