"""The recorder on a real PostgreSQL, as the gateway's own role."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from gateway.recorder import Recorder
from gateway.storage import Storage
from ratchet.canonical import digest_of_text
from ratchet.db.roles import Role
from ratchet.ids import new_id, time_of
from tests.conftest import Database
from tests.support.recording import NOWHERE, closing, opening, settings

TOO_MANY = 1 << 40
"""More tokens than an integer column takes."""

Start = Callable[..., Recorder]


@pytest.fixture
def start(database: Database, tmp_path: Path) -> Iterator[Start]:
    """Starts recorders on one spool; stopped in the end."""
    started: list[Recorder] = []

    def make(url: str | None = None, **fields: Any) -> Recorder:
        chosen = settings(url or database.url(Role.GATEWAY), tmp_path, **fields)
        recorder = Recorder(chosen, f"gateway-{len(started)}")
        recorder.start()
        started.append(recorder)
        return recorder

    yield make
    for recorder in started:
        recorder.stop(5)


@pytest.fixture
def rows(database: Database) -> Callable[..., list[dict[str, Any]]]:
    """Runs a query as the owner."""

    def fetch(
        query: str = "SELECT * FROM serving.response ORDER BY id", *values: Any
    ) -> list[dict[str, Any]]:
        with psycopg.connect(database.owner_url, row_factory=dict_row) as connection:
            return connection.execute(query.encode(), values).fetchall()

    return fetch


def until(holds: Callable[[], bool], what: str) -> None:
    """Waits for the flusher's thread, which tells nobody when it has done something."""
    deadline = time.monotonic() + 20
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, f"it did not come: {what}"
        pause.wait(0.02)


def answer(recorder: Recorder, *pieces: str, **fields: Any) -> Any:
    """One request from beginning to end; returns its id."""
    asked = opening(**fields)
    handle = recorder.begin(asked)
    for piece in pieces:
        handle.delta(0, piece)
    handle.end(closing())
    return asked.id


def test_a_stream_is_one_row_and_the_spool_is_empty_afterwards(
    start: Start, rows: Callable[..., Any], tmp_path: Path
) -> None:
    recorder = start()
    identity = answer(recorder, "Blue", ", mostly.")
    until(lambda: recorder.status()["flushed"] == 1, "the row")
    recorder.stop(5)
    (row,) = rows()
    assert {name: row[name] for name in ("id", "created_at", "kind", "status", "http_status", "output")} == {
        "id": identity,
        "created_at": time_of(identity),
        "kind": "chat",
        "status": "ok",
        "http_status": 200,
        "output": "Blue, mostly.",
    }
    assert row["outputs"] == [
        {"index": 0, "text": "Blue, mostly.", "finish_reason": None, "tool_calls": None}
    ]
    assert row["messages"] == [{"role": "user", "content": "Why is the sky blue?"}]
    assert row["parameters_used"] == {"temperature": 0.7, "max_tokens": 64}
    assert (row["ttft_ms"], row["prompt_tokens"], row["queue_ms"]) == (12.5, 6, 0.25)
    assert row["output_sha256"] == digest_of_text("Blue, mostly.")
    assert (recorder.status()["depth"], list(tmp_path.iterdir())) == (0, [])


def test_a_batch_with_nul_and_surrogates_is_stored_whole(start: Start, rows: Callable[..., Any]) -> None:
    recorder = start()
    evil = "a\x00b\ud800c"
    for number in range(30):
        fields = {"user_id": evil, "parameters_asked": {evil: [evil]}, "messages": [{"content": evil}]}
        answer(recorder, evil if number % 3 == 0 else "good", **(fields if number % 3 == 1 else {}))
    recorder.stop(10)
    stored = rows()
    assert [row["sanitized"] for row in stored] == [True, True, False] * 10
    assert {row["output"] for row in stored} == {"a\ufffdb\ufffdc", "good"}
    assert stored[1]["parameters_asked"] == {"a\ufffdb\ufffdc": ["a\ufffdb\ufffdc"]}
    assert stored[0]["output_sha256"] == digest_of_text(evil)


def test_a_row_that_cannot_be_stored_is_put_aside_and_holds_up_no_other(
    start: Start, rows: Callable[..., Any], tmp_path: Path
) -> None:
    filling = start(NOWHERE)
    good = [answer(filling, "good") for _ in range(20)]
    poisonous = filling.begin(bad := opening())
    poisonous.delta(0, "too many\ud800")
    poisonous.end(closing(prompt_tokens=TOO_MANY))
    good += [answer(filling, "good") for _ in range(20)]
    filling.begin(timeless := opening(bad.key_id)).end(closing())
    filling.stop(1)

    recorder = start()
    until(lambda: recorder.status()["flushed"] == 40, "40 rows")
    until(lambda: len(rows("SELECT FROM operations.alarm")) == 1, "the alarm")
    assert [row["id"] for row in rows()] == good
    assert recorder.status()["rejected"] == 2
    aside = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "rejected").iterdir()}
    assert set(aside) == {str(bad.id), str(timeless.id)}
    assert "out of range for type integer" in aside[str(bad.id)]["reason"]
    assert aside[str(bad.id)]["texts"] == {"0": "too many\ud800"}
    assert json.loads(aside[str(bad.id)]["closing"])["prompt_tokens"] == TOO_MANY
    assert "only version 7" in aside[str(timeless.id)]["reason"]
    (alarm,) = rows("SELECT kind, detail, cleared_at FROM operations.alarm")
    assert (alarm["kind"], alarm["detail"]["count"], alarm["cleared_at"]) == ("response_rejected", 2, None)
    recorder.stop(5)
    assert [path.name for path in tmp_path.iterdir()] == ["rejected"]


def test_the_same_spool_read_twice_is_stored_once(
    start: Start, rows: Callable[..., Any], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = start(NOWHERE)
    ids = [answer(first, f"answer {number}") for number in range(50)]
    lost = first.begin(opening())
    lost.delta(0, "half an ans")
    first.stop(1)
    copy = tmp_path_factory.mktemp("copy") / "again"
    (folder,) = tmp_path.iterdir()
    shutil.copytree(folder, copy)

    second = start()
    until(lambda: second.status()["flushed"] == 51, "51 rows")
    before = rows()
    shutil.copytree(copy, tmp_path / "again")
    second.stop(5)
    third = start()
    third.stop(20)
    assert rows() == before
    assert [row["id"] for row in before[:50]] == ids
    assert (before[50]["status"], before[50]["output"], before[50]["http_status"]) == (
        "lost",
        "half an ans",
        0,
    )
    assert (third.status()["flushed"], third.status()["adopted"]) == (0, 1)
    assert list(tmp_path.iterdir()) == []


def test_requests_under_way_at_the_stop_are_lost_ones(start: Start, rows: Callable[..., Any]) -> None:
    recorder = start()
    recorder.begin(opening()).delta(0, "Bec")
    recorder.stop(5)
    assert [(row["status"], row["output"]) for row in rows()] == [("lost", "Bec")]


def test_segments_are_removed_while_requests_go_on_and_one_that_is_open_keeps_its_own(
    start: Start, rows: Callable[..., Any], tmp_path: Path
) -> None:
    recorder = start(spool_max_bytes=1 << 20)
    slow = recorder.begin(opening())
    for _ in range(8):
        answer(recorder, *["x" * 10_000] * 10)
    until(lambda: recorder.status()["flushed"] == 8, "8 rows")
    until(lambda: recorder.status()["bytes"] <= 3 << 17, "segments to go")
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir())[0] == "00000001.seg"
    slow.delta(0, "at last")
    slow.end(closing())
    until(lambda: recorder.status()["flushed"] == 9, "the slow one")
    until(lambda: not (folder / "00000001.seg").exists(), "its first segment to go")
    assert [row["output"] for row in rows() if row["output"] == "at last"] == ["at last"]


def test_a_damaged_segment_is_kept_and_told_of(
    start: Start, rows: Callable[..., Any], tmp_path: Path
) -> None:
    writer = start(NOWHERE)
    answer(writer, "whole")
    answer(writer, "hurt here")
    writer.stop(1)
    (segment,) = tmp_path.glob("*/*.seg")
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"hurt", b"HURT"))
    start().stop(10)
    assert [(row["status"], row["output"]) for row in rows()] == [("ok", "whole"), ("lost", None)]
    (kept,) = (tmp_path / "rejected").iterdir()
    assert kept.read_bytes() == content.replace(b"hurt", b"HURT")
    (alarm,) = rows("SELECT kind, detail FROM operations.alarm")
    assert (alarm["kind"], alarm["detail"]["file"]) == ("spool_damaged", str(kept))


def test_a_full_spool_raises_an_alarm_that_is_cleared_when_there_is_room(
    start: Start, rows: Callable[..., Any]
) -> None:
    recorder = start(spool_max_bytes=1 << 16, spool_full="fail-open", spool_fsync_interval_s=0.05)
    slow = recorder.begin(opening())
    for _ in range(2):
        slow.delta(0, "x" * 25_000)
    answer(recorder, "passed", messages=[{"content": "y" * 20_000}])
    alarms = "SELECT detail, cleared_at FROM operations.alarm WHERE kind = %s"
    until(lambda: len(rows(alarms, "spool_full")) == 1, "the alarm")
    assert recorder.status()["full"]
    slow.end(closing())
    until(lambda: not recorder.status()["full"], "room")
    until(lambda: rows(alarms, "spool_full")[0]["cleared_at"] is not None, "the alarm to be cleared")
    (standing,) = rows(alarms, "responses_unrecorded")
    assert (standing["detail"], standing["cleared_at"]) == ({"count": 1}, None)
    assert answer(recorder, "again") is not None
    recorder.stop(5)
    assert [row["output"] for row in rows()] == ["x" * 50_000, "again"]


def test_a_missing_grant_is_no_fault_of_the_rows(
    start: Start, rows: Callable[..., Any], database: Database, tmp_path: Path
) -> None:
    with psycopg.connect(database.owner_url, autocommit=True) as owner:
        owner.execute("REVOKE INSERT ON serving.response FROM ratchet_gateway")
        recorder = start()
        identity = answer(recorder, "patience")
        until(lambda: recorder.status()["last_error"] is not None, "the error")
        assert "permission denied" in recorder.status()["last_error"]
        assert (recorder.status()["depth"], recorder.status()["rejected"]) == (1, 0)
        assert recorder.status()["oldest_unflushed_s"] > 0
        owner.execute("GRANT INSERT ON serving.response TO ratchet_gateway")
    until(lambda: recorder.status()["flushed"] == 1, "the row")
    until(lambda: recorder.status()["last_error"] is None, "the error to be over")
    assert [row["id"] for row in rows()] == [identity]


def test_commits_of_the_recorder_outlive_a_crash_of_the_server(database: Database) -> None:
    storage = Storage(database.url(Role.GATEWAY))
    storage.raise_alarm("test", "it", {})
    connection = storage._connection
    assert connection is not None
    assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    storage.close()


def test_large_answers_and_many_choices(start: Start, rows: Callable[..., Any]) -> None:
    recorder = start()
    handle = recorder.begin(opening(new_id()))
    piece = "0123456789" * 100_000
    for index in range(4):
        for _ in range(3):
            handle.delta(index, piece)
    handle.end(
        closing(outputs=[{"index": n, "finish_reason": "length"} for n in range(4)], finish_reason=None)
    )
    recorder.stop(20)
    (row,) = rows()
    assert row["output"] == piece * 3
    assert [(choice["index"], len(choice["text"])) for choice in row["outputs"]] == [
        (index, 3_000_000) for index in range(4)
    ]
    assert row["finish_reason"] == "length"
