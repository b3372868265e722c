"""What a round writes into its folder can be read back, and the word in it is obeyed."""

import json
from pathlib import Path

import pytest

from ratchet.errors import ConfigError
from trainer.sink import EVENTS, CheckpointRecord, DataUse, FolderSink, Summary, write_control

USE = DataUse(4, {"empty_answer": 1}, 2, {}, 100, 40)


def test_a_round_is_told_line_by_line(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path)
    record = CheckpointRecord(
        tmp_path / "c", 2, 0.4, None, 0.5, 0.1, 0.2, 0.75, 0.6, {"0.5": 12.0}, "ab" * 32, True
    )
    sink.started(0, 2, USE)
    sink.metrics(1, {"loss": 0.69})
    sink.alarm("gradient_floor", "nothing is learned")
    sink.checkpoint(record)
    sink.finished(Summary(2, "complete", USE, (record,), 1.5, 100.0, 3.0, 1 << 30))
    events = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]
    assert [event["event"] for event in events] == ["started", "metrics", "alarm", "checkpoint", "finished"]
    assert events[0]["data"]["dropped"] == {"empty_answer": 1}
    assert events[1] == {"event": "metrics", "step": 1, "loss": 0.69}
    assert events[3]["path"] == str(tmp_path / "c")
    assert events[4]["checkpoints"][0]["kl_k1_se"] is None


def test_the_word_in_the_folder_is_obeyed(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path)
    assert sink.control() == "ok"
    write_control(tmp_path, "stop")
    assert sink.control() == "stop"
    write_control(tmp_path, "ok")
    assert sink.control() == "ok"
    (tmp_path / "control").write_text("halt")
    with pytest.raises(ConfigError, match="'halt'"):
        sink.control()
