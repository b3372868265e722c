"""Decode configs: ranges, files, and one digest for equal content."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.canonical import digest_of
from ratchet.decode import DecodeConfig, SeedPolicy
from ratchet.errors import DecodeConfigError

NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "max_tokens": 512,
    "stop": [],
    "seed_policy": "client",
    "seed": None,
    "logit_bias": {},
}

CONFIGS = st.builds(
    DecodeConfig,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 10**6),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0, 2, exclude_min=True),
    max_tokens=st.integers(1, 1_000_000),
    stop=st.lists(
        st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1), max_size=16
    ).map(tuple),
    logit_bias=st.dictionaries(st.integers(0, 10**6), st.floats(-100, 100), max_size=5),
)


def test_the_default_is_neutral_and_its_digest_covers_every_field():
    assert DecodeConfig().content() == NEUTRAL
    assert DecodeConfig().digest == digest_of(NEUTRAL)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1_000_001}, "max_tokens"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["a\x00"]}, "stop.0"),
        ({"stop": ["\ud800"]}, "stop.0"),
        ({"logit_bias": {"-1": 0}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"token": 1}}, "logit_bias"),
        ({"seed_policy": "random"}, "seed_policy"),
        ({"seed_policy": "fixed", "seed": -1}, "seed"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(values: dict[str, Any], field: str):
    with pytest.raises(DecodeConfigError, match=rf"^the file: {field}"):
        DecodeConfig.parse(values, source="the file")


@pytest.mark.parametrize(
    "values", [{"seed": 7}, {"seed_policy": "fixed"}, {"seed_policy": "none", "seed": 7}]
)
def test_a_seed_stands_exactly_where_the_policy_is_fixed(values: dict[str, Any]):
    with pytest.raises(DecodeConfigError, match="exactly when seed_policy is 'fixed'"):
        DecodeConfig.parse(values, source="the file")


def test_a_fixed_seed():
    config = DecodeConfig.parse({"seed_policy": "fixed", "seed": 7}, source="the file")
    assert (config.seed_policy, config.seed) == (SeedPolicy.FIXED, 7)


def test_it_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        DecodeConfig().temperature = 0.5


def test_toml_and_json_of_equal_content_have_one_digest(tmp_path: Path):
    (tmp_path / "decode.toml").write_text(
        'temperature = 0.7\nstop = ["###"]\nmax_tokens = 64\n[logit_bias]\n7 = -1.5\n'
    )
    (tmp_path / "decode.json").write_text(
        json.dumps({"max_tokens": 64, "logit_bias": {"7": -1.5}, "stop": ["###"], "temperature": 0.7})
    )
    toml = DecodeConfig.from_file(tmp_path / "decode.toml")
    assert toml == DecodeConfig(temperature=0.7, stop=("###",), max_tokens=64, logit_bias={7: -1.5})
    assert toml.digest == DecodeConfig.from_file(tmp_path / "decode.json").digest


@pytest.mark.parametrize(("name", "text"), [("a.toml", "temperature ="), ("a.json", "{"), ("a.json", "[1]")])
def test_a_file_that_cannot_be_parsed_is_named(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(DecodeConfigError, match=name):
        DecodeConfig.from_file(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DecodeConfigError, match=r"none\.toml"):
        DecodeConfig.from_file(tmp_path / "none.toml")


def test_whole_and_decimal_numbers_are_the_same():
    assert DecodeConfig.parse({"temperature": 1, "top_p": 1}, source="").digest == DecodeConfig().digest


@given(CONFIGS)
def test_content_and_back_is_the_same_config_with_the_same_digest(config: DecodeConfig):
    again = DecodeConfig.parse(json.loads(json.dumps(config.content())), source="a row")
    assert again == config
    assert again.digest == config.digest


@given(CONFIGS, CONFIGS)
def test_digests_are_equal_exactly_for_equal_configs(one: DecodeConfig, other: DecodeConfig):
    assert (one.digest == other.digest) == (json.dumps(one.content()) == json.dumps(other.content()))
