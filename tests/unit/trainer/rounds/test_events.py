"""Events of a round's folder: each read once, whole lines only, also after a killed process."""

import json
from dataclasses import asdict
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trainer.rounds.events import Event, EventReader, checkpoint_of, parse, summary_of
from trainer.sink import EVENTS, CheckpointRecord, DataUse, FolderSink, Summary

DATA = DataUse(3, {"empty_answer": 1}, 2, {}, 90, 30)
RECORD = CheckpointRecord(
    Path("/there/step-2"), 2, 0.5, 0.1, 0.4, None, 0.2, 0.75, 0.6, {"0.5": 9.0}, "d" * 64, True
)
SUMMARY = Summary(2, "complete", DATA, (RECORD,), 1.5, 60.0, 2.0, 1_000, None)


def test_what_the_sink_writes_is_what_is_read(tmp_path: Path) -> None:
    reader, sink = EventReader(tmp_path), FolderSink(tmp_path)
    assert reader.read() == []
    sink.started(0, 2, DATA)
    sink.metrics(1, {"loss": 0.25})
    assert [event.name for event in reader.read()] == ["started", "metrics"]
    assert reader.read() == []
    sink.checkpoint(RECORD)
    sink.finished(SUMMARY)
    kept, ended = reader.read()
    assert checkpoint_of(kept.values) == RECORD
    assert summary_of(ended.values) == SUMMARY


def test_half_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    reader, line = EventReader(tmp_path), json.dumps({"event": "alarm", "kind": "k", "detail": "é"}) + "\n"
    for cut in range(1, len(line)):
        with (tmp_path / EVENTS).open("w") as file:
            file.write(line[:cut])
        assert EventReader(tmp_path).read() == []
    with (tmp_path / EVENTS).open("w") as file:
        file.write(line)
    assert reader.read() == [Event("alarm", {"kind": "k", "detail": "é"})]


@given(st.integers(1, 60))
def test_behind_half_a_line_of_a_killed_process_the_next_start_is_read(cut: int) -> None:
    torn = json.dumps({"event": "checkpoint", **asdict(RECORD)}, default=str)[:cut].encode()
    following = json.dumps({"event": "metrics", "step": 3, "loss": 0.5}).encode()
    assert parse(torn + following) == Event("metrics", {"step": 3, "loss": 0.5})


@given(st.binary(max_size=80))
def test_any_bytes_are_an_event_or_nothing(line: bytes) -> None:
    found = parse(line)
    assert found is None or found.name
