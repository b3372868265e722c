"""A real Celery worker in its own process, and a real Redis, seen by what they log."""

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90


class Logged:
    """A process whose log lines are events to wait for."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, pattern: str, times: int = 1) -> None:
        """Blocks until so many further lines match."""
        while times:
            try:
                line = self._lines.get(timeout=PATIENCE_S)
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no line like {pattern!r} in:\n{''.join(self.seen[-60:])}")
            self.seen.append(line)
            times -= re.search(pattern, line) is not None

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer sends it."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that is not heard."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def worker(env: Mapping[str, str], folder: Path, *, beat: bool = True) -> Iterator[Logged]:
    """A feedback worker as `ratchet up` starts it; ready when this returns.

    Args:
        env: Its settings.
        folder: For beat's schedule.
        beat: Whether it runs the periodic tasks.
    """
    command = [
        sys.executable, "-m", "celery", "-A", "feedback.worker", "worker", "--queues", "feedback",
        "--pool", "solo", "--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat",
        *(["--beat", "--schedule", str(folder / "beat")] if beat else []),
    ]  # fmt: skip
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    started = Logged(command, {**inherited, "PYTHONUNBUFFERED": "1", **env})
    try:
        started.wait_for(r"celery@\S+ ready|ready\.")
        yield started
    finally:
        started.stop()


@contextmanager
def redis_server(folder: Path, port: int) -> Iterator[Logged]:
    """A real Redis on a port of the loopback address, kept in a folder."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server on this machine: apt-get install redis-server")
    command = [
        program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
        "--appendonly", "yes", "--appendfsync", "always", "--save", "",
    ]  # fmt: skip
    started = Logged(command, {"PATH": os.environ["PATH"]})
    try:
        started.wait_for("Ready to accept connections")
        yield started
    finally:
        started.stop()
