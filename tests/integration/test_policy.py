"""Registering policies in a real database: one version for equal content, and what stands behind it."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from ratchet.artifacts import Kind, store_of
from ratchet.db.engine import session_scope
from ratchet.db.roles import Role
from ratchet.decode import DecodeConfig
from ratchet.errors import DecodeConfigError, NotFound, PolicyRefused, UsageError
from ratchet.home import Home
from ratchet.model_folder import SOURCE, inspect
from ratchet.registry import (
    Added,
    add_policy,
    folder_of,
    get_policy,
    golden_entries,
    list_policies,
    policy_digest,
    resolve,
)
from tests.support.tiny_model import CHAT_TEMPLATE, make_tiny_model

ENTRIES = [{"kind": "text", "text": "ab", "token_ids": [5, 6], "logprobs": [None, -1.5]}]


def computed(_: Path, __: Callable[[str], None]) -> list[dict[str, Any]]:
    """Golden entries of a caller that has the model loaded already."""
    return ENTRIES


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder that no test changes."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "tiny"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty data folder."""
    return Home(tmp_path / "home").ensure()


@pytest.fixture
def operator(engine_of: Callable[[Role], Engine]) -> Engine:
    """The operator's connection."""
    return engine_of(Role.OPERATOR)


@pytest.fixture
def add(operator: Engine, home: Home) -> Callable[..., Added]:
    """Registers a folder as the operator."""

    def act(path: Path, name: str = "tiny", **options: Any) -> Added:
        return add_policy(operator, home, name=name, path=path, **{"golden": computed, **options})

    return act


def stored(home: Home) -> list[str]:
    """Addresses in the store of policies."""
    return [artifact.digest for artifact in store_of(home, Kind.POLICY).list()]


def test_a_registered_policy_reads_back(
    original: Path, home: Home, operator: Engine, add: Callable[..., Added]
):
    stages: list[str] = []
    added = add(original, report=stages.append)
    policy = added.policy
    content = inspect(original)
    assert added.created
    assert policy.digest == policy_digest(content, DecodeConfig())
    assert policy.ref == f"tiny@{policy.digest[:12]}"
    assert (policy.weights_digest, policy.tokenizer_digest, policy.template_digest) == (
        content.weights_digest,
        content.tokenizer_digest,
        content.template_digest,
    )
    assert (policy.decode, policy.decode_digest) == (DecodeConfig(), DecodeConfig().digest)
    assert policy.architecture == content.architecture
    assert policy.provenance == {"path": str(original)}
    assert stages == ["reading the model folder", "storing a copy", "asking the weights about known prompts"]
    with session_scope(operator) as session:
        assert get_policy(session, policy.ref) == resolve(session, "tiny") == policy
        assert golden_entries(session, policy.ref) == ENTRIES
    copy = folder_of(home, policy)
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == {
        file.name: file.read_bytes() for file in original.iterdir()
    }


def test_equal_content_has_one_version(
    original: Path, tmp_path: Path, home: Home, operator: Engine, add: Callable[..., Added]
):
    first = add(original)
    again = add(
        Path(shutil.copytree(original, tmp_path / "elsewhere")), provenance={"claims": "another origin"}
    )
    assert (first.created, again.created) == (True, False)
    assert again.policy == first.policy
    with session_scope(operator) as session:
        assert list_policies(session) == [first.policy]
    assert stored(home) == [first.policy.artifact]


def test_every_change_of_content_makes_a_version_and_the_newest_stands_for_the_name(
    folder: Path, operator: Engine, add: Callable[..., Added]
):
    versions = [add(folder), add(folder, decode=DecodeConfig(temperature=0.3))]
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE.replace("\\n", " "))
    versions.append(add(folder))
    make_tiny_model(folder, seed=1)
    versions.append(add(folder))
    assert all(added.created for added in versions)
    refs = [added.policy.ref for added in versions]
    assert len(set(refs)) == 4
    with session_scope(operator) as session:
        assert [policy.ref for policy in list_policies(session, "tiny")] == refs[::-1]
        assert resolve(session, "tiny").ref == refs[-1]
        assert resolve(session, refs[0]).ref == refs[0]


def test_versions_that_differ_in_decode_alone_share_one_copy(
    original: Path, home: Home, add: Callable[..., Added]
):
    one = add(original).policy
    other = add(original, decode=DecodeConfig(temperature=0.3)).policy
    assert one.weights_digest == other.weights_digest
    assert one.ref != other.ref
    assert stored(home) == [one.artifact] == [other.artifact]


def test_the_same_content_may_stand_under_two_names(original: Path, add: Callable[..., Added]):
    one, other = add(original, "one").policy, add(original, "other").policy
    assert (one.name, other.name) == ("one", "other")
    assert one.version == other.version


def test_many_that_register_the_same_at_once_make_one_version(
    original: Path, home: Home, operator: Engine, add: Callable[..., Added]
):
    with ThreadPoolExecutor(3) as pool:
        added = list(pool.map(lambda _: add(original), range(6)))
    assert [one.created for one in added].count(True) == 1
    assert {one.policy.ref for one in added} == {added[0].policy.ref}
    with session_scope(operator) as session:
        assert len(list_policies(session)) == 1
    assert stored(home) == [added[0].policy.artifact]


def test_a_copy_that_was_lost_is_stored_again(original: Path, home: Home, add: Callable[..., Added]):
    policy = add(original).policy
    store_of(home, Kind.POLICY).remove(policy.artifact)
    with pytest.raises(NotFound):
        folder_of(home, policy)
    assert not add(original).created
    assert folder_of(home, policy).is_dir()


def test_parent_and_provenance_are_kept(original: Path, folder: Path, add: Callable[..., Added]):
    parent = add(original).policy
    make_tiny_model(folder, seed=1)
    child = add(folder, parent="tiny", provenance={"round": 7}).policy
    assert child.parent == parent.ref
    assert child.provenance == {"round": 7}


def test_a_fetched_folder_brings_its_source_along(folder: Path, add: Callable[..., Added]):
    source = {"model": "someone/tiny", "license": "Apache-2.0", "files": {"config.json": 0}}
    source["files"] = {"config.json": (folder / "config.json").stat().st_size}
    (folder / SOURCE).write_text(json.dumps(source))
    assert add(folder).policy.provenance == {
        "path": str(folder),
        "model": "someone/tiny",
        "license": "Apache-2.0",
    }


def test_another_parent_for_known_content_is_refused(original: Path, folder: Path, add: Callable[..., Added]):
    add(original)
    make_tiny_model(folder, seed=1)
    other = add(folder).policy
    with pytest.raises(PolicyRefused, match=f"with no parent, and a version never changes; .* {other.ref}"):
        add(original, parent=other.ref)


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"name": "a b"}, UsageError, "'a b' is no name"),
        ({"name": "tiny@1"}, UsageError, "is no name"),
        ({"parent": "nobody"}, NotFound, "no policy is called 'nobody'"),
        ({"parent": "tiny@000000000000"}, NotFound, "no policy tiny@000000000000 is registered"),
        ({"provenance": {"a": ["\x00"]}}, UsageError, "holds NUL"),
        ({"provenance": {"\ud800": 1}}, UsageError, "half a surrogate pair"),
        ({"provenance": {"loss": float("nan")}}, UsageError, "is no JSON"),
        ({"decode": DecodeConfig(max_tokens=4096)}, DecodeConfigError, "leaves no room for a prompt"),
        ({"decode": DecodeConfig(logit_bias={640: 1.0})}, DecodeConfigError, "logit_bias names token 640"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(
    original: Path,
    home: Home,
    operator: Engine,
    add: Callable[..., Added],
    options: dict[str, Any],
    error: type[Exception],
    reason: str,
):
    with pytest.raises(error, match=reason):
        add(original, **options)
    assert stored(home) == []
    with session_scope(operator) as session:
        assert list_policies(session) == []


def test_weights_that_prove_bad_leave_nothing_behind_unless_the_store_had_them(
    original: Path, home: Home, operator: Engine, add: Callable[..., Added]
):
    def refuse(_: Path, __: Callable[[str], None]) -> list[dict[str, Any]]:
        raise PolicyRefused("the tensor x holds NaN")

    with pytest.raises(PolicyRefused, match="holds NaN"):
        add(original, golden=refuse)
    assert stored(home) == []
    policy = add(original).policy
    with pytest.raises(PolicyRefused, match="holds NaN"):
        add(original, decode=DecodeConfig(temperature=0.3), golden=refuse)
    assert stored(home) == [policy.artifact]
    with session_scope(operator) as session:
        assert list_policies(session) == [policy]


def test_the_trainer_registers_too_and_other_services_only_read(
    original: Path, home: Home, engine_of: Callable[[Role], Engine]
):
    added = add_policy(engine_of(Role.TRAINER), home, name="tiny", path=original, golden=computed)
    for role in (Role.GATEWAY, Role.FEEDBACK, Role.EVALUATOR, Role.REPORT):
        with session_scope(engine_of(role)) as session:
            assert get_policy(session, added.policy.ref) == added.policy
