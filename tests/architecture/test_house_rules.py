"""Rules of the house that no linter knows."""

import ast
import re
from pathlib import Path

from tests.architecture.repository import PACKAGES, files, modules, named, public_definitions, tree

LONGEST = 450
TEXTS = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
    ".json",
    ".sql",
    ".sh",
    ".env",
    ".html",
    ".css",
    ".js",
    "",
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/")
THIS_FILE = Path(__file__).resolve()


def test_every_module_says_what_it_is_for() -> None:
    sources = modules(*PACKAGES, "benchmarks", "scripts", "tests")
    assert [
        named(path) for path in sources if path.read_text().strip() and not ast.get_docstring(tree(path))
    ] == []


def test_everything_public_has_a_docstring() -> None:
    silent = [
        f"{named(path)}: {name}"
        for path in modules(*PACKAGES, "benchmarks")
        for name, node in public_definitions(path)
        if not ast.get_docstring(node)
    ]
    assert silent == []


def test_no_module_has_grown_past_one_reason_to_change() -> None:
    lengths = {
        named(path): len(path.read_text().splitlines())
        for path in modules(*PACKAGES)
        if path.parent.name != "versions"
    }
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_nothing_is_left_unfinished_and_nothing_names_one_machine() -> None:
    found = [
        f"{named(path)}:{number}: {line.strip()}"
        for path in files()
        if path.suffix in TEXTS and path != THIS_FILE
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if UNFINISHED.search(line) or OF_ONE_MACHINE.search(line)
    ]
    assert found == []
