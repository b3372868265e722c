"""The repository as its own tests see it."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ratchet", "gateway", "feedback", "trainer", "evaluator", "migrations")


@cache
def files() -> tuple[Path, ...]:
    """Every file of the project: what git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    paths = (ROOT / name for name in sorted(set(listed.split("\0"))) if name)
    return tuple(path for path in paths if path.is_file())


def modules(*packages: str) -> list[Path]:
    """The Python files below these top-level folders."""
    return [path for path in files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in packages]


def documents() -> list[Path]:
    """The Markdown files."""
    return [path for path in files() if path.suffix == ".md"]


@cache
def tree(path: Path) -> ast.Module:
    """A Python file, parsed."""
    return ast.parse(path.read_text("utf-8"), str(path))


def public_definitions(
    path: Path,
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Classes and functions a reader may use: at module level, and the methods of public classes."""
    for node in tree(path).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name[0] == "_":
            continue
        yield node.name, node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name[0] != "_":
                    yield f"{node.name}.{inner.name}", inner


def named(path: Path) -> str:
    """A path as people say it: relative to the repository."""
    return path.relative_to(ROOT).as_posix()
