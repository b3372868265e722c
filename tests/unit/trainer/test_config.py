"""Every shipped configuration parses; every wrong one is refused with its key and cause."""

from pathlib import Path
from typing import get_args

import pytest

from ratchet.errors import ConfigError
from trainer.config import LossConfig, Method, ReferenceWay, load, parse
from trainer.losses.beta import BetaWarning
from trainer.losses.dpo import PairLoss

EXAMPLES = sorted((Path(__file__).parents[3] / "deploy" / "training").glob("*.toml"))
LEAST = {"method": "dpo", "model": "m", "snapshot": "s"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_shipped_configurations_parse(path: Path) -> None:
    config = load(path)
    assert config.method.value == path.stem.partition("-")[0]
    assert config.model.is_absolute()
    assert parse(config.content(), source="row") == config


def test_there_is_an_example_of_each_method() -> None:
    assert {path.stem for path in EXAMPLES} >= set(Method)


def test_overrides_are_toml_values_or_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "round.toml"
    path.write_text('method = "dpo"\nmodel = "models/a"\nsnapshot = "snap"\n[optim]\nlr = 1e-6\n')
    monkeypatch.chdir(tmp_path.parent)
    config = load(
        path,
        ["optim.lr=3e-6", "checkpoints.kl_at=[0.5, 3]", "loss.kind=ipo", "snapshot=elsewhere", "lora.rank=4"],
        seed=7,
    )
    assert config.optim.lr == 3e-6
    assert config.checkpoints.kl_at == (0.5, 3.0)
    assert config.loss_kind == "ipo"
    assert config.model == tmp_path / "models/a"
    assert config.snapshot == tmp_path.parent / "elsewhere"
    assert config.lora is not None
    assert config.lora.rank == 4
    assert config.seed == 7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "ppo"}, "method: Input should be 'sft', 'rm' or 'dpo'"),
        ({"optim": {"lr": 0}}, "optim.lr: Input should be greater than 0"),
        ({"optim": {"rate": 1}}, "optim.rate: Extra inputs are not permitted"),
        ({"optim": {"epochs": 1, "steps": 5}}, "give one"),
        (
            {"loss": {"kind": "nll"}},
            "loss.kind nll is not one of dpo: sigmoid, cdpo, robust",
        ),
        ({"loss": {"label_smoothing": 0.1}}, "cdpo and robust only"),
        ({"loss": {"gamma": 0.1}}, "simpo only"),
        ({"engine": {"offload": "optimizer"}}, "zero_stage 1, 2 or 3"),
        ({"engine": {"offload": "all", "zero_stage": 2}}, "needs zero_stage 3"),
        ({"engine": {"precision": "bf16"}}, "bf16 needs zero_stage 1, 2 or 3"),
        ({"reference_policy": {"way": "adapter"}}, "needs \\[lora\\]"),
        (
            {"reference_policy": {"way": "adapter"}, "lora": {}, "reference": "r"},
            "makes the model its own reference",
        ),
        ({"checkpoints": {"kl_at": [2, 1]}}, "kl_at must ascend"),
        ({"checkpoints": {"kl_budget": 1, "kl_prompts": 0}}, "without them no KL is measured"),
        ({"method": "rm", "checkpoints": {"kl_budget": 1}}, "rm trains none"),
        ({"data": {"knowledge": {}}}, "only sft learns from those"),
        ({"data": {"max_length": 9000}}, "more than optim.micro_tokens 4096 can hold"),
    ],
)
def test_wrong_values_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(LEAST | changes, source="row")


@pytest.mark.parametrize("override", ["optim.lr", "=3", "seed.x=1"])
def test_wrong_overrides_are_refused(override: str, tmp_path: Path) -> None:
    path = tmp_path / "round.toml"
    path.write_text('method = "dpo"\nmodel = "a"\nsnapshot = "s"\nseed = 3\n')
    with pytest.raises(ConfigError, match="--set"):
        load(path, [override])


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "round.toml"
    path.write_text("method = ")
    with pytest.raises(ConfigError, match="cannot read"):
        load(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "absent.toml")


@pytest.mark.parametrize("beta", [0.01, 0.9])
def test_an_unusual_beta_warns(beta: float) -> None:
    with pytest.warns(BetaWarning):
        assert parse(LEAST | {"loss": {"beta": beta}}, source="row").loss.beta == beta


def test_the_kinds_of_pair_losses_are_those_there_are() -> None:
    kinds = get_args(get_args(LossConfig.model_fields["kind"].annotation)[0])
    assert set(kinds) == {"nll", "bradley_terry", "simpo", *PairLoss}


def test_the_digest_is_of_every_value() -> None:
    config = parse(LEAST, source="row")
    assert config.digest == parse(LEAST | {"seed": 0}, source="row").digest
    assert config.digest != parse(LEAST | {"seed": 1}, source="row").digest
    assert config.reference_folder == config.model
    assert config.reference_policy.way is ReferenceWay.CACHE
