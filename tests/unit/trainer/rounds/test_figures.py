"""A round's figures: bars, CSV, TensorBoard's event file, a picture, and what differs between two rounds."""

import csv
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import EnvironmentFault, UsageError
from trainer.commands.live import figures
from trainer.commands.tables import sparkline
from trainer.rounds.export import write_csv, write_picture, write_tensorboard
from trainer.rounds.reading import difference, flat

SERIES = {"loss": [(1, 0.7), (2, 0.5), (3, 0.25)], "kl_k3": [(2, 0.125)]}
CHECKPOINT = {"step": 2, "kl_k1": 0.5, "kl_k3": 0.25, "kl_k3_se": None, "reward": None, "accuracy": 0.75}


def test_bars_by_hand() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 1, 5, 5], width=2) == "▁█"
    assert sparkline([3, 3]) == "▁▁"
    assert sparkline([float("nan"), float("inf")]) == ""


@given(st.lists(st.floats(-1e9, 1e9), max_size=200), st.integers(1, 80))
def test_bars_never_exceed_their_width(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == min(width, len(values))


def test_the_figures_that_matter_come_first() -> None:
    told = {
        "step": 3,
        "tokens_per_second": 9.0,
        "gradient_norm": 1.0,
        "loss": 0.5,
        "accuracy": 0.75,
        "x": 1.0,
    }
    assert figures(told) == "loss 0.5  accuracy 0.75  gradient_norm 1  tokens_per_second 9"


def test_a_csv_file_has_a_line_for_each_step(tmp_path: Path) -> None:
    assert write_csv(tmp_path / "round.csv", SERIES) == 3
    with (tmp_path / "round.csv").open() as file:
        assert list(csv.reader(file)) == [
            ["step", "loss", "kl_k3"], ["1", "0.7", ""], ["2", "0.5", "0.125"], ["3", "0.25", ""],
        ]  # fmt: skip
    with pytest.raises(EnvironmentFault, match="No such file"):
        write_csv(tmp_path / "nowhere" / "round.csv", SERIES)


def test_an_event_file_holds_every_value(tmp_path: Path) -> None:
    """Read back record by record: length (8 bytes), its checksum (4), an `Event`, its checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    assert write_tensorboard(tmp_path, SERIES, [CHECKPOINT]) == 7
    (path,) = tmp_path.iterdir()
    data, found, place = path.read_bytes(), set[tuple[str, int, float]](), 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        event: Any = Event.FromString(data[place + 12 : place + 12 + length])
        found |= {(value.tag, event.step, round(value.simple_value, 6)) for value in event.summary.value}
        place += length + 16
    assert found == {
        ("round/loss", 1, 0.7), ("round/loss", 2, 0.5), ("round/loss", 3, 0.25), ("round/kl_k3", 2, 0.125),
        ("checkpoint/kl_k1", 2, 0.5), ("checkpoint/kl_k3", 2, 0.25), ("checkpoint/accuracy", 2, 0.75),
    }  # fmt: skip


def test_a_picture_is_drawn_and_another_ending_refused(tmp_path: Path) -> None:
    write_picture(tmp_path / "round.png", SERIES, [CHECKPOINT], "a round")
    assert (tmp_path / "round.png").read_bytes().startswith(b"\x89PNG")
    write_picture(tmp_path / "round.svg", SERIES, [CHECKPOINT], "a round")
    assert b"<svg" in (tmp_path / "round.svg").read_bytes()
    with pytest.raises(UsageError, match="png"):
        write_picture(tmp_path / "round.txt", SERIES, [], "a round")


def test_two_rounds_differ_in_what_differs() -> None:
    one: dict[str, Any] = {
        "id": 1, "method": "dpo", "policy": "a@1", "reference": "a@1", "snapshot": "s", "code_version": "1",
        "config": {"loss": {"beta": 0.1, "kind": None}, "seed": 0}, "state": "done", "step": 4,
        "checkpoints": [CHECKPOINT], "data": {"used": 8},
    }  # fmt: skip
    other = {
        **one, "id": 2, "policy": "b@2", "checkpoints": [], "data": None,
        "config": {"loss": {"beta": 0.2, "kind": None}, "seed": 0, "lora": {"rank": 4}},
    }  # fmt: skip
    found = difference(one, other)
    assert found["what"] == {"policy": ["a@1", "b@2"]}
    assert found["config"] == {"loss.beta": [0.1, 0.2], "lora.rank": [None, 4]}
    assert found["outcome"]["accuracy"] == [0.75, None]
    assert found["outcome"]["used"] == [8, None]
    assert flat({"a": {"b": {"c": 1}}, "d": [2]}) == {"a.b.c": 1, "d": [2]}
