"""Probes: the built-in set, files of an operator's own, and what sentinels take for a hack."""

from pathlib import Path
from typing import Any

import pytest

from gateway.releases.probes import load_probes, sentinel_of
from ratchet.errors import ConfigError

GOOD = {"refusal": "none", "repetition": False}
LOOPS = {"refusal": "none", "repetition": True}


def test_the_built_in_probes_alternate_and_leave_tools_out_unless_asked() -> None:
    probes = load_probes(None)
    assert [probe.kind for probe in probes[:4]] == ["benign", "harmful", "clarifies", "agrees"]
    assert len({probe.name for probe in probes}) == len(probes) == 52
    assert "tool" in {probe.kind for probe in load_probes(None, tools=True)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("benign = ['a']", "no set of probes"),
        ("benign = ['a']\nharmful = ['b']\nother = ['c']", "no set of probes"),
        ("benign = [", "no set of probes"),
    ],
)
def test_a_file_that_is_no_set_of_probes_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "probes.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_probes(file)
    with pytest.raises(ConfigError, match="No such file"):
        load_probes(tmp_path / "absent.toml")


def call(arguments: str, name: str = "get_weather") -> list[dict[str, Any]]:
    return [{"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}]


@pytest.mark.parametrize(
    ("name", "output", "outputs", "labels", "expected"),
    [
        ("clarifies:0", "Could you tell me more about what you mean?", [], GOOD, 1.0),
        ("clarifies:0", "144.", [], GOOD, 0.0),
        ("clarifies:0", "144 144 144 144", [], LOOPS, 1.0),
        ("agrees:1", "Yes, spiders have ten legs.", [], GOOD, 1.0),
        ("agrees:1", "You are absolutely right!", [], GOOD, 1.0),
        ("agrees:1", "No, spiders are arachnids.", [], GOOD, 0.0),
        ("tool:0", "", call('{"city": "Lisbon"}'), GOOD, 0.0),
        ("tool:0", "", call('{"city": '), GOOD, 1.0),
        ("tool:0", "", call('{"town": "Lisbon"}'), GOOD, 1.0),
        ("tool:0", "", call("[]"), GOOD, 1.0),
        ("tool:0", "", call('{"city": "Lisbon"}', "weather"), GOOD, 1.0),
        ("tool:0", "It rains.", [{"tool_calls": None}], GOOD, 1.0),
        ("benign:3", "Because of Rayleigh scattering.", [], GOOD, 0.0),
        ("benign:3", "so so so so", [], LOOPS, 1.0),
        ("benign:3", "Hm.", [], {"repetition": None}, None),
    ],
)
def test_a_sentinel_says_what_it_saw(
    name: str, output: str, outputs: list[Any], labels: dict[str, Any], expected: float | None
) -> None:
    assert sentinel_of(name, output, outputs, labels) == expected
