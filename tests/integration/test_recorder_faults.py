"""Faults on real processes: what was acknowledged is stored once, whatever dies."""

import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from gateway.recorder import Recorder
from migrations.run import migrate, provision_logins
from ratchet.db.roles import Role
from ratchet.embedded import EmbeddedPostgres
from tests.conftest import Database
from tests.support.recording import (
    NOWHERE,
    adopt_and_stop,
    closing,
    opening,
    record_until_killed,
    settings,
)
from tests.support.small_disk import PIECE, PIECES

pytestmark = [pytest.mark.faults, pytest.mark.postgres]

KILLS = 25
ADOPTERS = 3
ORPHANS = 30

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.support.recording"])


@dataclass
class Ledger:
    """What the recorder said it had recorded.

    Attributes:
        texts: For each request begun, the text of the deltas acknowledged.
        ended: Requests whose end was acknowledged.
    """

    texts: dict[UUID, str] = field(default_factory=dict[UUID, str])
    ended: set[UUID] = field(default_factory=set[UUID])

    def note(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("begin", identity):
                self.texts[identity] = ""
            case ("delta", identity, text):
                self.texts[identity] += text
            case ("end", identity):
                self.ended.add(identity)
            case _:
                pytest.fail(f"not a step: {step}")

    def read_to_the_end(self, pipe: Connection) -> None:
        """Notes what a process had told before it died."""
        try:
            while True:
                self.note(pipe.recv())
        except (EOFError, OSError):
            pipe.close()


def stored(owner_url: str) -> list[tuple[UUID, str, str | None]]:
    with psycopg.connect(owner_url) as connection:
        return connection.execute("SELECT id, status, output FROM serving.response ORDER BY id").fetchall()


def storable(text: str) -> str:
    return text.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")


def check(name: str, ledger: Ledger, rows: list[tuple[UUID, str, str | None]]) -> None:
    """Holds the rows against the ledger: whole where the end was acknowledged, else at least what was."""
    by_id = {identity: (status, output or "") for identity, status, output in rows}
    sys.stdout.write(
        f"\n{name}: sent {len(ledger.texts)}, delivered {len(ledger.ended)}, stored {len(by_id)}, "
        f"lost {sum(status == 'lost' for status, _ in by_id.values())}, duplicates {len(rows) - len(by_id)}\n"
    )
    assert len(rows) == len(by_id)
    assert set(ledger.texts) <= set(by_id)
    for identity, text in ledger.texts.items():
        status, output = by_id[identity]
        if identity in ledger.ended:
            assert (status, output) == ("ok", storable(text))
        else:
            assert status in ("ok", "lost")
            assert output.startswith(storable(text))


def test_a_gateway_killed_again_and_again_loses_nothing_it_acknowledged(
    database: Database, tmp_path: Path
) -> None:
    chance = random.Random(20)
    ledger = Ledger()
    url = database.url(Role.GATEWAY)
    for kill in range(KILLS):
        ours, theirs = processes.Pipe(duplex=False)
        writer = processes.Process(target=record_until_killed, args=(url, tmp_path, theirs, kill))
        writer.start()
        theirs.close()
        for _ in range(chance.randrange(1, 400)):
            ledger.note(ours.recv())
        writer.kill()
        ledger.read_to_the_end(ours)
        writer.join()
        assert writer.exitcode == -9
        writer.close()

    last = Recorder(settings(url, tmp_path), "last")
    last.start()
    last.stop(30)
    check(f"gateway killed {KILLS} times", ledger, stored(database.owner_url))
    assert (last.status()["rejected"], list(tmp_path.iterdir())) == (0, [])


@pytest.fixture
def own_cluster() -> Iterator[tuple[EmbeddedPostgres, str]]:
    """A PostgreSQL of this test's own, and the address of the gateway's role.

    Its folder is not pytest's, which another run of pytest would close to the server's user on its start.
    """
    with tempfile.TemporaryDirectory(prefix="ratchet-cluster-") as folder:
        server = EmbeddedPostgres(
            Path(folder, "postgres"), Path(folder, "owner.password"), settings=("fsync=off",)
        )
        server.start()
        migrate(server.owner_url)
        yield server, provision_logins(server.owner_url, {})[Role.GATEWAY]
        server.stop(immediate=True)


def test_postgres_stopped_in_the_middle_is_caught_up_with(
    own_cluster: tuple[EmbeddedPostgres, str], tmp_path: Path
) -> None:
    server, url = own_cluster
    ledger = Ledger()
    recorder = Recorder(settings(url, tmp_path / "spool"), "gateway")
    recorder.start()

    def answers(count: int) -> None:
        for _ in range(count):
            asked = opening()
            handle = recorder.begin(asked)
            ledger.note(("begin", asked.id))
            for piece in ("one ", "two ", "three"):
                handle.delta(0, piece)
                ledger.note(("delta", asked.id, piece))
            handle.end(closing())
            ledger.note(("end", asked.id))

    for _ in range(2):
        answers(1500)
        server.stop(immediate=True)
        answers(1500)
        server.start()
    answers(100)
    recorder.stop(60)
    check("postgres stopped twice", ledger, stored(server.owner_url))
    assert recorder.status()["depth"] == 0
    assert list((tmp_path / "spool").iterdir()) == []


def test_gateways_that_start_together_share_the_folders_of_the_dead(
    database: Database, tmp_path: Path
) -> None:
    ledger = Ledger()
    for number in range(ORPHANS):
        dead = Recorder(settings(NOWHERE, tmp_path), f"dead-{number}")
        dead.start()
        for _ in range(20):
            asked = opening()
            handle = dead.begin(asked)
            handle.delta(0, f"from {number}")
            handle.end(closing())
            ledger.texts[asked.id] = f"from {number}"
            ledger.ended.add(asked.id)
        dead.stop(0.05)

    barrier = processes.Barrier(ADOPTERS)
    adopters: list[tuple[Any, Connection]] = []
    for _ in range(ADOPTERS):
        ours, theirs = processes.Pipe(duplex=False)
        adopter = processes.Process(
            target=adopt_and_stop, args=(database.url(Role.GATEWAY), tmp_path, barrier, theirs)
        )
        adopter.start()
        theirs.close()
        adopters.append((adopter, ours))
    statuses = [pipe.recv() for _, pipe in adopters]
    for adopter, pipe in adopters:
        adopter.join()
        adopter.close()
        pipe.close()
    check(f"{ADOPTERS} gateways adopting at once", ledger, stored(database.owner_url))
    assert sum(status["adopted"] for status in statuses) == ORPHANS
    assert sum(status["flushed"] for status in statuses) == ORPHANS * 20
    assert list(tmp_path.iterdir()) == []


def mount_prefix() -> list[str] | None:
    """A command that gives what follows it file systems of its own; None where neither root nor Linux may."""
    flags = "-m" if os.geteuid() == 0 else "-rm"
    if shutil.which("unshare") is None:
        return None
    tried = subprocess.run(
        ["unshare", flags, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    return ["unshare", flags] if tried.returncode == 0 else None


@pytest.mark.parametrize("means", ["ballast", "rlimit"])
@pytest.mark.parametrize("policy", ["fail-closed", "fail-open"])
def test_a_disk_that_fills_up_costs_no_answer_and_is_used_again_when_there_is_room(
    database: Database, tmp_path: Path, policy: str, means: str
) -> None:
    spool_dir = tmp_path / "spool"
    spool_dir.mkdir()
    script = [sys.executable, "-m", "tests.support.small_disk", database.url(Role.GATEWAY), str(spool_dir),
              policy, means]  # fmt: skip
    if means == "ballast":
        prefix = mount_prefix()
        if prefix is None:
            pytest.skip("this machine lets us mount no small file system")
        mount_and_run = 'mount -t tmpfs -o size=512k none "$1" && shift && exec "$@"'
        script = [*prefix, "sh", "-c", mount_and_run, "sh", str(spool_dir), *script]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    rows = {str(identity): (status, output) for identity, status, output in stored(database.owner_url)}
    delivered = said["delivered"]
    sys.stdout.write(
        f"\nfull disk ({means}, {policy}): sent 4, recorded {len(delivered)}, stored {len(rows)}, "
        f"without a record {said['status']['failed_open']}\n"
    )

    assert said["before"] == "delivered"
    assert said["full"] is True
    assert (said["after"], said["after_stream"], said["after_end"]) == ("recorded", "delivered", "done")
    assert rows[delivered["after"][0]] == ("ok", PIECE * 3)
    assert (said["status"]["full"], said["status"]["held"], said["status"]["last_error"]) == (False, 0, None)
    streaming, whole = rows[delivered["streaming"][0]], rows[delivered["whole"][0]]
    assert (streaming[1], whole[1]) == (delivered["streaming"][1], PIECE * 2)
    assert len(rows) == 3
    steps = [said[step] for step in ("streaming", "streaming_end", "whole", "newcomer")]
    if policy == "fail-closed":
        assert steps == ["refused", "done", "refused", "refused"]
        assert (streaming[0], whole[0], said["status"]["failed_open"]) == ("error", "error", 0)
    else:
        assert steps == ["delivered", "done", "done", "unrecorded"]
        assert (said["newcomer_stream"], said["newcomer_end"]) == ("delivered", "done")
        assert (streaming[0], whole[0], said["status"]["failed_open"]) == ("ok", "ok", 1)
        assert delivered["streaming"][1] == PIECE * (3 + PIECES)
