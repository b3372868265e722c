"""Rounds in real processes: ranks that share one model in every stage, and processes killed at any moment."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.snapshots import pairs_snapshot
from tests.support.tied_model import make_tied_model
from trainer.checkpoints import STATE, latest
from trainer.config import RoundConfig, parse
from trainer.errors import RoundFailed
from trainer.launch import command, failure, launch, processes_of
from trainer.round import prepare, run_round
from trainer.sink import EVENTS, FolderSink, write_control

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}
LIMITED = """
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tied_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs_snapshot(tmp_path_factory.mktemp("pairs"), rows=24, validation=6)


def asked(model: Path, snapshot: Path, **changes: Any) -> RoundConfig:
    values: dict[str, Any] = {
        "method": "dpo",
        "model": str(model),
        "snapshot": str(snapshot),
        "data": {"max_length": 64},
        "optim": {
            "lr": 1e-3,
            "eps": 1e-4,
            "batch": 5,
            "micro_tokens": 64,
            "steps": 3,
            "schedule": "constant",
        },
        "checkpoints": {"kl_at": [], "kl_prompts": 3, "kl_tokens": 6, "measure_every": 0},
    }
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, Mapping) else value
    return parse(values, source="test")


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / EVENTS
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["event"] == name]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in events(folder, "metrics") if "loss" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    return {name: value.detach() for name, value in loaded.named_parameters()}


def test_two_processes_in_every_stage_are_one(model: Path, pairs: Path, tmp_path: Path) -> None:
    """Five pairs a step over two ranks, an odd share: losses and weights of one process, ties kept."""
    folders: dict[str, Path] = {}
    for stage in (1, 2, 3):
        folders[f"stage {stage}"] = tmp_path / str(stage)
        prepare(asked(model, pairs, engine={"processes": 2, "zero_stage": stage}), tmp_path / str(stage))
    folders["adapter"] = tmp_path / "adapter"
    lora = {"lora": {"rank": 2}, "reference_policy": {"way": "adapter"}, "optim": {"lr": 1e-2}}
    prepare(asked(model, pairs, engine={"processes": 2, "zero_stage": 3}, **lora), folders["adapter"])
    prepare(asked(model, pairs), tmp_path / "alone")
    run_round(tmp_path / "alone")
    ranks = subprocess.run(
        processes_of("tests.support.round_ranks", [str(folder) for folder in folders.values()], 2),
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ranks.returncode == 0, ranks.stderr[-3000:]

    expected = weights(tmp_path / "alone" / "checkpoints" / "step-00000003")
    adapted = folders.pop("adapter")
    for name, folder in folders.items():
        assert losses(folder) == pytest.approx(losses(tmp_path / "alone"), rel=1e-4), name
        found = weights(folder / "checkpoints" / "step-00000003")
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=2e-5, msg=f"{name} {key}")
        assert events(folder, "metrics")[0]["kl_k3"] == 0.0
    assert events(adapted, "metrics")[0]["kl_k3"] == 0.0
    assert losses(adapted)[2] < losses(adapted)[0]
    assert weights(adapted / "checkpoints" / "step-00000003").keys() == expected.keys()


def killed_when(config: RoundConfig, folder: Path, ready: Callable[[], bool]) -> None:
    """Starts a round and kills it with no warning as soon as something is so."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command(config, folder), env={**os.environ, **ENVIRONMENT}, stdout=log, stderr=log
        )
    while not ready():
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.faults
def test_a_round_killed_in_a_step_and_in_a_save_goes_on(model: Path, pairs: Path, tmp_path: Path) -> None:
    """Two deaths: behind the third step, and while the save of the fourth is being written."""
    config = asked(model, pairs, optim={"steps": 5}, checkpoints={"save_every": 2, "kl_prompts": 0})
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    prepare(config, whole)
    prepare(config, folder)
    run_round(whole)

    killed_when(config, folder, lambda: len(losses(folder)) >= 3)
    saved = latest(folder)
    assert saved is not None
    killed_when(config, folder, lambda: any((folder / STATE).glob(".incoming-*/ranks/*.pt")))
    assert latest(folder) in (saved, folder / STATE / "step-00000004")
    summary = launch(config, folder, ENVIRONMENT)

    assert events(folder, "started")[1]["first_step"] in (2, 4)
    assert summary["steps"] == 5
    last = {line["step"]: line["loss"] for line in events(folder, "metrics") if "loss" in line}
    assert [last[step] for step in range(1, 6)] == losses(whole)
    expected, found = (weights(each / "checkpoints" / "step-00000005") for each in (whole, folder))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert not list(folder.rglob(".incoming-*"))


@pytest.mark.faults
def test_ranks_end_with_their_launcher(model: Path, pairs: Path, tmp_path: Path) -> None:
    """The launcher is killed with no warning: rank 0 lets go of the folder, so the round can be resumed."""
    endless = {"optim": {"steps": 100_000}, "checkpoints": {"kl_prompts": 0}, "engine": {"processes": 2}}
    config = asked(model, pairs, **endless)
    prepare(config, tmp_path)
    killed_when(config, tmp_path, lambda: len(losses(tmp_path)) >= 1)
    with (tmp_path / "trainer.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = len(losses(tmp_path))
    assert len(losses(tmp_path)) == told


@pytest.mark.faults
def test_a_full_disk_is_a_clear_error_and_corrupts_nothing(model: Path, pairs: Path, tmp_path: Path) -> None:
    """A bound on file sizes stands for the disk: the optimiser's state outgrows it, events do not."""
    config = asked(model, pairs, optim={"steps": 6}, checkpoints={"save_every": 2, "kl_prompts": 0})
    prepare(config, tmp_path)

    class StopAtTwo(FolderSink):
        def metrics(self, step: int, values: Mapping[str, float]) -> None:
            super().metrics(step, values)
            write_control(self.folder, "stop" if step == 1 else "ok")

    run_round(tmp_path, StopAtTwo)
    saved = latest(tmp_path)
    assert saved == tmp_path / STATE / "step-00000002"
    with (tmp_path / "log").open("ab") as log:
        ended = subprocess.run(
            [sys.executable, "-c", LIMITED, *command(config, tmp_path)],
            env={**os.environ, **ENVIRONMENT},
            stdout=log,
            stderr=log,
        )
    assert ended.returncode == 2
    assert "no room to save" in str(failure(tmp_path))
    assert latest(tmp_path) == saved
    assert not list(tmp_path.rglob(".incoming-*"))
    assert run_round(tmp_path).steps == 6


def test_a_process_that_fails_says_why(model: Path, pairs: Path, tmp_path: Path) -> None:
    config = asked(model, tmp_path / "nowhere")
    prepare(config, tmp_path / "round")
    with pytest.raises(RoundFailed, match="nowhere is no snapshot"):
        launch(config, tmp_path / "round", ENVIRONMENT)
