"""Rounds on a tiny model, from a real snapshot to folders that transformers loads, in this very process."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from transformers import AutoModelForCausalLM, AutoTokenizer

from ratchet.errors import ConfigError, RatchetError
from ratchet.model_folder import inspect
from tests.support.snapshots import demonstrations_snapshot, pairs_snapshot
from tests.support.tied_model import make_tied_model
from trainer.config import RoundConfig, parse
from trainer.errors import (
    NoUsableRows,
    ReferenceChanged,
    ResumeRefused,
    RoundFailed,
    SnapshotRefused,
    TemplateMismatch,
)
from trainer.round import prepare, run_round
from trainer.sink import EVENTS, FolderSink, Summary, write_control

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

VALIDATION = 40
MEASURED = {"kl_prompts": 2, "kl_tokens": 6, "measure_every": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tied_model(tmp_path_factory.mktemp("model"), dropout=0.3)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs_snapshot(tmp_path_factory.mktemp("pairs"), rows=24, validation=VALIDATION)


def asked(model: Path, snapshot: Path, **changes: Any) -> RoundConfig:
    values: dict[str, Any] = {
        "method": "dpo",
        "model": str(model),
        "snapshot": str(snapshot),
        "data": {"max_length": 128, "validation_rows": 4},
        "optim": {"lr": 2e-3, "batch": 6, "micro_tokens": 256, "steps": 4, "schedule": "constant"},
        "checkpoints": {"kl_at": [], "kl_prompts": 0},
    }
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, Mapping) else value
    return parse(values, source="test")


def ran(config: RoundConfig, folder: Path) -> Summary:
    prepare(config, folder)
    return run_round(folder)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in events(folder, "metrics") if "loss" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    return {name: value.detach() for name, value in loaded.named_parameters()}


def test_a_planted_preference_is_learned(model: Path, pairs: Path, tmp_path: Path) -> None:
    """Exactly undecided at first, then above chance: the lower 95% bound of the validation accuracy."""
    changes = {
        "data": {"validation_rows": VALIDATION},
        "optim": {"steps": 8},
        "checkpoints": {**MEASURED, "kl_at": [0.01], "every": 4},
    }
    summary = ran(asked(model, pairs, **changes), tmp_path)
    first = events(tmp_path, "metrics")[0]
    assert (first["step"], first["kl_k1"], first["kl_k3"], first["validation_reward"]) == (0, 0.0, 0.0, 0.0)
    assert (first["validation_accuracy"], first["validation_loss"]) == (0.5, pytest.approx(math.log(2)))
    assert (summary.reason, summary.steps, summary.data.used) == ("complete", 8, 24)
    last = summary.checkpoints[-1]
    right = round((last.accuracy or 0) * VALIDATION)
    assert binomtest(right, VALIDATION).proportion_ci(0.95).low > 0.5
    assert (last.is_last, last.step) == (True, 8)
    assert last.reward is not None
    assert last.reward > 0
    assert last.kl_k3 is not None
    assert last.kl_k3 > 0
    assert last.kl_k3_se is not None
    steps = [record.step for record in summary.checkpoints]
    assert steps == sorted(set(steps))
    assert {4, 8} <= set(steps)
    assert summary.peak_memory_bytes > 100_000_000


def test_a_candidate_is_a_policy_of_the_same_family(model: Path, pairs: Path, tmp_path: Path) -> None:
    summary = ran(asked(model, pairs, optim={"steps": 1}), tmp_path)
    (record,) = summary.checkpoints
    exported, source = inspect(record.path), inspect(model)
    assert exported.weights_digest == record.digest != source.weights_digest
    assert exported.template_digest == source.template_digest
    assert exported.tokenizer_digest == source.tokenizer_digest
    loaded = AutoModelForCausalLM.from_pretrained(record.path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert loaded.config.attention_dropout == 0.3
    assert AutoTokenizer.from_pretrained(record.path).chat_template is not None
    assert not any(path.name.startswith(".") for path in tmp_path.rglob("*"))


def test_a_candidate_keeps_generation_defaults_that_transformers_would_not_save(
    pairs: Path, tmp_path: Path
) -> None:
    model = make_tied_model(tmp_path / "model")
    stated = json.dumps({"temperature": 0.6, "top_p": 0.9, "eos_token_id": 1})
    (model / "generation_config.json").write_text(stated)
    (record,) = ran(asked(model, pairs, optim={"steps": 1}), tmp_path / "round").checkpoints
    assert (record.path / "generation_config.json").read_text() == stated
    (model / "generation_config.json").unlink()
    (record,) = ran(asked(model, pairs, optim={"steps": 1}), tmp_path / "without").checkpoints
    assert not (record.path / "generation_config.json").exists()


def test_micro_batches_and_layout_change_nothing(model: Path, pairs: Path, tmp_path: Path) -> None:
    """One row of everything, rows of one pair, side by side, padded: the same step, within rounding."""
    ways = {
        "whole": {"optim": {"micro_tokens": 4096}},
        "single": {"data": {"max_length": 60}, "optim": {"micro_tokens": 60}},
        "packed": {"data": {"packing": "packed"}},
        "padded": {"data": {"packing": "padded"}},
    }
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, changes in ways.items():
        optim = {"steps": 2, "lr": 1e-3, "eps": 1e-4, **changes.get("optim", {})}
        summary = ran(asked(model, pairs, **{**changes, "optim": optim}), tmp_path / name)
        found[name] = weights(summary.checkpoints[-1].path)
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    for name, values in found.items():
        for key, value in values.items():
            torch.testing.assert_close(value, found["whole"][key], rtol=1e-3, atol=2e-5, msg=f"{name} {key}")


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoints": MEASURED},
        {"engine": {"zero_stage": 1, "precision": "bf16"}},
        {"engine": {"zero_stage": 2, "offload": "optimizer", "gradient_checkpointing": True}},
        {"engine": {"zero_stage": 3}, "lora": {"rank": 4}, "reference_policy": {"way": "adapter"}},
    ],
    ids=["plain", "bf16", "offloaded", "adapter"],
)
def test_two_and_two_steps_are_four(
    model: Path, pairs: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Stopped by a word after two steps and taken up again: the same bits."""
    config = asked(model, pairs, **changes)
    whole = ran(config, tmp_path / "whole")

    class StopAtTwo(FolderSink):
        def metrics(self, step: int, values: Mapping[str, float]) -> None:
            super().metrics(step, values)
            if step == 1:
                write_control(self.folder, "stop")

    halves = tmp_path / "halves"
    prepare(config, halves)
    stopped = run_round(halves, StopAtTwo)
    assert (stopped.reason, stopped.steps) == ("control", 2)
    write_control(halves, "ok")
    resumed = run_round(halves)
    assert (resumed.reason, resumed.steps) == ("complete", 4)
    assert [event["first_step"] for event in events(halves, "started")] == [0, 2]
    assert losses(halves) == losses(tmp_path / "whole")
    assert resumed.checkpoints[-1].digest == whole.checkpoints[-1].digest
    assert [record.step for record in resumed.checkpoints] == [2, 4]
    assert resumed.checkpoints[-1].kl_k3 == whole.checkpoints[-1].kl_k3
    assert len(list((halves / "state").iterdir())) == 1


def test_an_adapter_is_its_own_reference_and_is_merged(model: Path, pairs: Path, tmp_path: Path) -> None:
    changes = {
        "reference_policy": {"way": "adapter"},
        "lora": {"rank": 4},
        "optim": {"lr": 1e-2},
        "checkpoints": MEASURED,
    }
    summary = ran(asked(model, pairs, **changes), tmp_path / "adapter")
    first = events(tmp_path / "adapter", "metrics")[0]
    assert (first["kl_k1"], first["kl_k3"], first["validation_reward"]) == (0.0, 0.0, 0.0)
    assert (summary.checkpoints[-1].accuracy or 0) > 0.9
    before, after = weights(model), weights(summary.checkpoints[-1].path)
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.endswith("_proj.weight")}


def test_every_way_to_the_reference_is_the_same(model: Path, pairs: Path, tmp_path: Path) -> None:
    """A second model gives what the cache gives; a second round reads the cache and does not write it."""
    cache = tmp_path / "cache"
    first = ran(asked(model, pairs, cache=str(cache)), tmp_path / "first")
    files = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(files) == 2
    again = ran(asked(model, pairs, cache=str(cache)), tmp_path / "again")
    held = ran(asked(model, pairs, reference_policy={"way": "model"}), tmp_path / "held")
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == files
    assert first.checkpoints[-1].digest == again.checkpoints[-1].digest == held.checkpoints[-1].digest


def test_a_loss_without_a_reference_needs_none(model: Path, pairs: Path, tmp_path: Path) -> None:
    """13 shares of 1/13 add up to more than 1; an accuracy does not."""
    changes = {"loss": {"kind": "simpo", "beta": 2.0, "gamma": 1.0}, "data": {"validation_rows": 13}}
    summary = ran(asked(model, pairs, **changes), tmp_path)
    assert summary.checkpoints[-1].accuracy == 1.0
    assert summary.checkpoints[-1].reward is None
    assert not (tmp_path / "reference").exists()


def test_demonstrations_are_learned(model: Path, tmp_path: Path) -> None:
    snapshot = demonstrations_snapshot(tmp_path / "demonstrations", rows=12, validation=4)
    changes = {"method": "sft", "data": {"packing": "packed"}, "optim": {"steps": 6}}
    summary = ran(asked(model, snapshot, **changes), tmp_path / "round")
    first = events(tmp_path / "round", "metrics")[0]
    last = summary.checkpoints[-1]
    assert last.validation_loss is not None
    assert last.validation_loss < 0.7 * first["validation_loss"]
    assert (last.accuracy, last.reward) == (None, None)


def test_what_the_policy_cannot_say_is_found_and_treated(model: Path, tmp_path: Path) -> None:
    """An untrained policy says none of it; one that learned it says all of it; a resumed round asks once."""
    snapshot = demonstrations_snapshot(tmp_path / "demonstrations", rows=8, validation=2)

    def asks(policy: Path, unknown: str, **optim: Any) -> RoundConfig:
        knowledge = {"samples": 2, "tokens": 24, "unknown": unknown, "abstention": "no"}
        data = {"knowledge": knowledge, "validation_rows": 0}
        return asked(policy, snapshot, method="sft", data=data, optim={"steps": 1, **optim})

    learned = ran(asks(model, "report", steps=40, lr=1e-2), tmp_path / "report")
    assert (learned.data.used, learned.data.unknown) == (8, 8)
    replaced = ran(asks(model, "abstain"), tmp_path / "abstain")
    assert (replaced.data.used, replaced.data.unknown) == (8, 8)
    assert replaced.data.answer_tokens == 8 * 3
    refused(asks(model, "drop"), tmp_path / "drop", NoUsableRows, "unknown_to_policy 8")

    kept = ran(asks(learned.checkpoints[-1].path, "drop"), tmp_path / "kept")
    assert (kept.data.used, kept.data.unknown, kept.data.dropped) == (8, 0, {})
    asked_at = (tmp_path / "kept" / "knowledge.json").stat().st_mtime_ns
    assert run_round(tmp_path / "kept").steps == 1
    assert (tmp_path / "kept" / "knowledge.json").stat().st_mtime_ns == asked_at


@pytest.mark.parametrize(
    ("measured", "steps"),
    [({"measure_every": 1}, 1), ({"measure_every": 0, "every": 2}, 2), ({"measure_every": 0}, 3)],
    ids=["measured", "checkpoint", "last"],
)
def test_the_budget_ends_a_round_with_a_checkpoint_wherever_it_is_found_spent(
    model: Path, pairs: Path, tmp_path: Path, measured: dict[str, int], steps: int
) -> None:
    changes = {"checkpoints": {**MEASURED, "kl_budget": 1e-6, **measured}, "optim": {"steps": 3}}
    summary = ran(asked(model, pairs, **changes), tmp_path)
    assert (summary.reason, summary.steps) == ("kl_budget", steps)
    assert summary.checkpoints[-1].is_last


def test_a_checkpoint_of_the_schedule_is_passed_wherever_it_is_measured(
    model: Path, pairs: Path, tmp_path: Path
) -> None:
    """Found passed at the checkpoint of step 2, it asks for none when step 3 is measured."""
    checkpoints = {**MEASURED, "kl_at": [1e-6], "measure_every": 3, "every": 2}
    summary = ran(asked(model, pairs, checkpoints=checkpoints), tmp_path)
    assert [record.step for record in summary.checkpoints] == [2, 4]


def test_a_loss_that_diverges_ends_a_round(model: Path, pairs: Path, tmp_path: Path) -> None:
    """IPO's loss is 25 at first; at a rate of 1 margins fly off by hundreds of nats."""
    changes = {
        "loss": {"kind": "ipo"},
        "optim": {"lr": 1.0, "steps": 9},
        "alarms": {"divergence_factor": 2.0, "divergence_steps": 2},
    }
    summary = ran(asked(model, pairs, **changes), tmp_path)
    assert summary.reason == "diverged"
    assert summary.steps < 9
    assert [alarm["kind"] for alarm in events(tmp_path, "alarm")] == ["diverged"]


def test_a_gradient_of_nothing_alarms_once(model: Path, pairs: Path, tmp_path: Path) -> None:
    """The hinge of a margin far above one is flat: there is nothing to learn, and someone is told."""
    changes = {
        "loss": {"kind": "hinge", "beta": 0.5},
        "optim": {"lr": 2e-2, "steps": 12},
        "alarms": {"gradient_floor_steps": 3},
    }
    ran(asked(model, pairs, **changes), tmp_path)
    alarms = events(tmp_path, "alarm")
    assert [alarm["kind"] for alarm in alarms] == ["gradient_floor"]
    assert "nothing is learned" in alarms[0]["detail"]


def broken(model: Path, folder: Path) -> Path:
    """A copy of the model whose weights overflow in the last layer: every log-probability is NaN."""
    make_tied_model(folder)
    loaded = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        loaded.model.norm.weight.fill_(3e38)
        loaded.model.embed_tokens.weight.mul_(1e3)
    loaded.save_pretrained(folder)
    return folder


def test_a_loss_that_is_no_number_stops_and_names_the_rows(model: Path, pairs: Path, tmp_path: Path) -> None:
    changes = {
        "reference": str(model),
        "data": {"validation_rows": 0},
    }
    policy = broken(model, tmp_path / "broken")
    with pytest.raises(RoundFailed, match=r"step 1: the loss of training rows \d+.* is no finite number"):
        ran(asked(policy, pairs, **changes), tmp_path / "round")
    assert not (tmp_path / "round" / "checkpoints").exists()


def refused(config: RoundConfig, folder: Path, kind: type[RatchetError], said: str) -> None:
    with pytest.raises(kind, match=said):
        ran(config, folder)


def test_a_reference_that_changed_is_refused(pairs: Path, tmp_path: Path) -> None:
    model, reference = make_tied_model(tmp_path / "model"), make_tied_model(tmp_path / "reference")
    config = asked(model, pairs, reference=str(reference), optim={"steps": 2})

    class Meddler(FolderSink):
        def metrics(self, step: int, values: Mapping[str, float]) -> None:
            super().metrics(step, values)
            if step == 1:
                make_tied_model(reference, seed=9)

    prepare(config, tmp_path / "first")
    with pytest.raises(ReferenceChanged, match="put the folder back"):
        run_round(tmp_path / "first", Meddler)
    assert not (tmp_path / "first" / "checkpoints").exists()

    make_tied_model(reference)
    ran(config, tmp_path / "second")
    make_tied_model(reference, seed=9)
    with pytest.raises(ResumeRefused, match="began with reference"):
        run_round(tmp_path / "second")


def test_a_folder_belongs_to_one_round(model: Path, pairs: Path, tmp_path: Path) -> None:
    prepare(asked(model, pairs), tmp_path)
    with pytest.raises(ConfigError, match="another round"):
        prepare(asked(model, pairs, seed=1), tmp_path)


def test_unfit_snapshots_are_refused(model: Path, pairs: Path, tmp_path: Path) -> None:
    empty = pairs_snapshot(tmp_path / "empty", rows=3, chosen="<|end|>", rejected="<|pad|>")
    refused(
        asked(model, empty),
        tmp_path / "a",
        NoUsableRows,
        "none of 3 rows can be used .*control_mark_in_text 3",
    )
    refused(asked(model, pairs, method="sft"), tmp_path / "b", SnapshotRefused, "holds pairs")
    refused(asked(model, tmp_path), tmp_path / "c", SnapshotRefused, "is no snapshot")
    damaged = pairs_snapshot(tmp_path / "damaged", rows=3)
    (damaged / "train.parquet").write_bytes(b"no")
    refused(asked(model, damaged), tmp_path / "d", SnapshotRefused, "not the file the manifest describes")
    blind = pairs_snapshot(tmp_path / "blind", rows=3, validation=0)
    changes = {"checkpoints": {**MEASURED, "kl_budget": 1.0}}
    refused(asked(model, blind, **changes), tmp_path / "e", SnapshotRefused, "no usable validation rows")


def test_another_template_is_refused(model: Path, pairs: Path, tmp_path: Path) -> None:
    config = asked(model, pairs, data={"template_digest": "f" * 64})
    refused(config, tmp_path / "round", TemplateMismatch, "was made for the chat template ffffffffffff")


def test_a_snapshot_without_validation_rows_says_so(model: Path, tmp_path: Path) -> None:
    blind = pairs_snapshot(tmp_path / "blind", rows=3, validation=0)
    summary = ran(asked(model, blind, optim={"steps": 1}, checkpoints=MEASURED), tmp_path / "round")
    assert [alarm["kind"] for alarm in events(tmp_path / "round", "alarm")] == ["no_validation"]
    assert (summary.checkpoints[0].kl_k3, summary.checkpoints[0].accuracy) == (None, None)
