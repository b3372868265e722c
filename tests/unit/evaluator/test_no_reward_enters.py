"""What selects can reach no reward: neither by what it imports nor by what it asks the database."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, tree

LOADED = """
import json, sys
import evaluator.records, evaluator.repository, evaluator.wiring, evaluator.commands.select
print(json.dumps({name: module.__file__ for name, module in sys.modules.items()
                  if name.partition(".")[0] == "evaluator" and getattr(module, "__file__", None)}))
"""
ABOUT_JUDGES = {"evaluator.judges", "evaluator.provenance"}
"""They ask which of a judge's own names a reward model shares."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, Path]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name: Path(path) for name, path in json.loads(done.stdout).items()}


def test_selecting_loads_nothing_that_reads_rewards(loaded: dict[str, Path]) -> None:
    assert "evaluator.selection" in loaded
    assert "evaluator.overoptimisation" not in loaded
    assert not [name for name in loaded if name.startswith("evaluator.report")]


def said(path: Path) -> list[str]:
    """Every name and text of a module that is no docstring."""
    whole = tree(path)
    silent = {
        id(node.value)
        for node in ast.walk(whole)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    texts = [
        str(node.value)
        for node in ast.walk(whole)
        if isinstance(node, ast.Constant) and id(node) not in silent
    ]
    names = [node.id for node in ast.walk(whole) if isinstance(node, ast.Name)]
    attributes = [node.attr for node in ast.walk(whole) if isinstance(node, ast.Attribute)]
    return [*texts, *names, *attributes]


def test_no_code_that_selects_speaks_of_a_reward(loaded: dict[str, Path]) -> None:
    found = {
        name: [text for text in said(path) if "reward" in text.casefold()]
        for name, path in loaded.items()
        if name not in ABOUT_JUDGES
    }
    assert {name: texts for name, texts in found.items() if texts} == {}
