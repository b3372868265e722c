"""Predicted beside observed: a gap is named only where the two intervals do not meet."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.releases.replication import effects_of, gap, read_predicted
from ratchet.errors import ConfigError


def effect(estimate: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"estimate": estimate, "low": low, "high": high}


@pytest.mark.parametrize(
    ("predicted", "observed", "words"),
    [
        (effect(-0.1, -0.2, 0.0), effect(0.0, -0.05, 0.05), None),
        (effect(-0.1, -0.2, -0.05), effect(0.02, 0.01, 0.03), "the offline gain did not replicate"),
        (effect(-0.1, -0.2, -0.05), effect(-0.4, -0.5, -0.3), "traffic and selection disagree"),
        (effect(-0.1, -0.2, -0.05), effect(0.02, None, None), None),
        (effect(-0.1, -0.2, -0.05), None, "traffic never measured it"),
    ],
)
def test_a_gap_beyond_both_intervals_is_named(
    predicted: dict[str, Any], observed: dict[str, Any] | None, words: str | None
) -> None:
    told = gap("wins", predicted, observed)
    assert told is None if words is None else words in (told or "")


def test_a_selection_predicts_worsenings_and_of_its_win_rate_only_the_direction() -> None:
    candidate = {
        "primary": {"name": "chat", "estimate": 0.6, "low": 0.55, "high": 0.7, "nothing_gained": 0.5},
        "changes": [
            {"name": "gsm8k", "gain": effect(0.04, 0.01, 0.07)},
            {"name": "code", "gain": effect(0.1, None, None)},
        ],
    }
    predicted = effects_of(candidate, "selection 1")
    assert predicted["task:gsm8k"] == {**effect(-0.04, -0.07, -0.01), "source": "selection 1"}
    assert [round(predicted["thumbs"][end], 9) for end in ("estimate", "low", "high")] == [-0.1, -0.2, -0.05]
    assert set(predicted) == {"task:gsm8k", "thumbs"}
    assert gap("thumbs", predicted["thumbs"], effect(-0.01, -0.02, -0.005)) is None
    assert gap("thumbs", predicted["thumbs"], effect(0.01, -0.01, 0.03)) is None
    assert "did not replicate" in (gap("thumbs", predicted["thumbs"], effect(0.02, 0.01, 0.03)) or "")
    assert effects_of({"primary": None, "changes": []}, "selection 2") == {}


def test_predicted_effects_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "predicted.json"
    file.write_text(json.dumps({"wins": {"estimate": -0.1, "low": -0.2, "high": 0}}))
    assert read_predicted(file) == {"wins": effect(-0.1, -0.2, 0.0)}
    whole = '{"wins": {"estimate": %s, "low": 0, "high": 0%s}}'
    for wrong in (
        "[]", "{", '{"wins": {"estimate": 1}}', '{"wins": 3}',
        whole % ("NaN", ""), whole % ("1e999", ""), whole % ("0", ', "more": 1'),
    ):  # fmt: skip
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="not a JSON object"):
            read_predicted(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_predicted(tmp_path / "none.json")
