"""A training process whose story is told beforehand: `python -m tests.support.scripted_round FOLDER SCRIPT`.

It speaks through the real `FolderSink` and obeys the real control file; what it leaves out is the training.
The script is JSON: `steps`; `checkpoints` (steps at which a tiny model is exported, the step being its seed);
`pause_at`, a step before which it waits until there is a file `go` in the folder; `fail_at`, a step at which
it ends with an error; `reason`, of its end.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ratchet.model_folder import inspect
from tests.support.tiny_model import make_tiny_model
from trainer.config import RoundConfig
from trainer.rounds.conduct import Launch
from trainer.rounds.start import leashed
from trainer.sink import CheckpointRecord, DataUse, FolderSink, Summary

DATA = DataUse(8, {"empty_answer": 2}, 4, {}, 640, 128)
_LOOK_S = 0.01


def scripted(**script: Any) -> Launch:
    """Starts such a process for every round."""

    def launch(_: RoundConfig, folder: Path) -> "subprocess.Popen[Any]":
        command = [sys.executable, "-m", "tests.support.scripted_round", str(folder), json.dumps(script)]
        return leashed(command, folder)

    return launch


def play(folder: Path, script: dict[str, Any]) -> None:
    """Tells a round; one that was cut off goes on behind its last step."""
    sink, done = FolderSink(folder), folder / "done"
    first = int(done.read_text()) if done.exists() else 0
    records: list[CheckpointRecord] = []
    sink.started(first, script["steps"], DATA)
    reason, step = script.get("reason", "complete"), first
    for step in range(first + 1, script["steps"] + 1):
        if step == script.get("fail_at"):
            raise ValueError(f"the loss of step {step} is NaN")
        while step == script.get("pause_at") and not (folder / "go").exists() and sink.control() == "ok":
            time.sleep(_LOOK_S)
        if sink.control() == "stop":
            reason = "control"
            break
        sink.metrics(step, {"loss": 1 / step, "accuracy": step / script["steps"]})
        if step in script.get("checkpoints", ()):
            records.append(exported(folder, step, script["steps"]))
            sink.checkpoint(records[-1])
        done.write_text(str(step))
    sink.alarm("gradient_floor", "the gradient norm was 0 for 5 steps")
    sink.finished(Summary(step, reason, DATA, tuple(records), 2.5, 200.0, 1.0, 123_456))


def exported(folder: Path, step: int, steps: int) -> CheckpointRecord:
    """A checkpoint of real files."""
    path = make_tiny_model(folder / f"step-{step}", seed=step)
    return CheckpointRecord(
        path=path,
        step=step,
        kl_k1=step / 2,
        kl_k1_se=0.1,
        kl_k3=step / 2,
        kl_k3_se=0.05,
        reward=step / 10,
        accuracy=0.5 + step / 100,
        validation_loss=0.6,
        length_quantiles={"0.5": 12.0},
        digest=inspect(path).weights_digest,
        is_last=step == steps,
    )


if __name__ == "__main__":
    play(Path(sys.argv[1]), json.loads(sys.argv[2]))
