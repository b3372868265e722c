"""Metric and attribute names stand in one module, and each of them is used."""

import ast
from collections.abc import Iterator

import pytest

from ratchet.telemetry import Attr, MetricName
from tests.architecture.repository import PACKAGES, ROOT, modules, named, tree

TELEMETRY = ROOT / "ratchet" / "telemetry.py"
SOURCES = [path for path in modules(*PACKAGES) if path != TELEMETRY]


def used(kind: str) -> set[str]:
    """Members of an enumeration that some module names."""
    return {
        node.attr
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == kind
    }


def strings() -> Iterator[tuple[str, str]]:
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield named(path), node.value


@pytest.mark.parametrize("kind", [MetricName, Attr])
def test_every_name_is_used(kind: type[MetricName] | type[Attr]) -> None:
    assert {member.name for member in kind} - used(kind.__name__) == set()


def test_no_other_module_spells_a_name_out() -> None:
    known = {*MetricName, *Attr}
    spelled = [(where, text) for where, text in strings() if text in known or text.startswith("gen_ai.")]
    assert spelled == []
