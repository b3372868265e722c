"""A sweep: what it runs, and which value it picks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ratchet.errors import UsageError
from ratchet.ids import new_id
from trainer.config import RoundConfig, load
from trainer.rounds.asking import Data, Prepared
from trainer.rounds.conduct import Ended
from trainer.rounds.sweep import choose, values_of


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("beta=0.05,0.1", "loss.beta", ["0.05", "0.1"]),
        ("lr = 1e-6, 2e-6,1e-6", "optim.lr", ["1e-6", "2e-6"]),
        ("loss.kind=ipo,hinge", "loss.kind", ["ipo", "hinge"]),
    ],
)
def test_a_sweep_is_read(text: str, key: str, values: list[str]) -> None:
    assert values_of(text) == (key, values)


@pytest.mark.parametrize("text", ["beta", "beta=", "beta=0.1", "=0.1,0.2", "beta=0.1,0.1"])
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="two values or more"):
        values_of(text)


@dataclass
class Rounds:
    """Short rounds whose outcome is known."""

    outcome: dict[float, tuple[float | None, float | None]]
    ran: list[tuple[RoundConfig, UUID]]

    def run(self, prepared: Prepared, sweep: UUID) -> Ended:
        self.ran.append((prepared.config, sweep))
        accuracy, kl = self.outcome[prepared.config.loss.beta]
        kept: dict[str, Any] = {"accuracy": accuracy, "kl": kl, "reward": 0.0}
        return Ended(new_id(), "done", {"checkpoints": [kept]}, None)


@pytest.fixture
def prepare(tmp_path: Path) -> Any:
    path = tmp_path / "round.toml"
    path.write_text('method = "dpo"\nmodel = "m"\nsnapshot = "s"\n[optim]\nepochs = 3\n')

    def prepared(overrides: list[str]) -> Prepared:
        return Prepared(load(path, overrides), None, Data("d", tmp_path, ()))

    return prepared


@pytest.mark.parametrize(
    ("outcome", "chosen"),
    [
        ({0.05: (0.6, 2.0), 0.1: (0.7, 1.0), 0.2: (0.65, 0.5)}, "loss.beta=0.1"),
        ({0.05: (0.7, 2.0), 0.1: (0.7, 1.0), 0.2: (0.7, 0.5)}, "loss.beta=0.2"),
        ({0.05: (0.7, None), 0.1: (0.7, None), 0.2: (None, None)}, "loss.beta=0.05"),
    ],
)
def test_the_most_accurate_value_wins_and_of_equals_the_nearest_to_the_reference(
    prepare: Any, outcome: dict[float, tuple[float | None, float | None]], chosen: str
) -> None:
    rounds = Rounds(outcome, [])
    found = choose("beta=0.05,0.1,0.2", 7, prepare, rounds.run)
    assert found["chosen"] == chosen
    assert [each["value"] for each in found["rounds"]] == ["0.05", "0.1", "0.2"]
    assert {(config.optim.steps, config.epochs, config.checkpoints.kl_at) for config, _ in rounds.ran} == {
        (7, None, ())
    }
    assert {str(sweep) for _, sweep in rounds.ran} == {found["sweep"]}


def test_a_wrong_value_is_refused_before_any_round(prepare: Any) -> None:
    rounds = Rounds({0.1: (0.5, 1.0)}, [])
    with pytest.raises(UsageError, match=r"loss\.beta"):
        choose("beta=0.1,-1", 7, prepare, rounds.run)
    assert rounds.ran == []


def test_a_sweep_that_measured_nothing_says_so(prepare: Any) -> None:
    rounds = Rounds({0.1: (None, None), 0.2: (None, None)}, [])
    with pytest.raises(UsageError, match="validation_rows"):
        choose("beta=0.1,0.2", 7, prepare, rounds.run)
