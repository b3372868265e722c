"""Documents: links lead somewhere, references are what the code says, commands are commands."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import pytest
import typer.main

from gateway.routes import ROUTES
from ratchet.cli import COMMANDS, build
from ratchet.home import Home
from ratchet.secrets_store import save_role_urls
from scripts.reference import MARKED, references, rendered
from tests.architecture.repository import ROOT, documents, named
from tests.conftest import Database

FENCED = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)
NEED_NO_ENGINE = {
    ("keys", "create"), ("keys", "list"), ("policy", "list"), ("model", "list"), ("responses", "list"),
    ("db", "url"), ("rater", "add"), ("pairs", "list"), ("round", "list"),
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A fenced block and where it stands."""

    path: Path
    language: str
    body: str

    def commands(self) -> list[str]:
        """The commands of a console block, continued lines joined."""
        joined = re.sub(r"\\\n\s*", "", self.body)
        return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]


def blocks() -> list[Block]:
    return [
        Block(path, found["language"], found["body"])
        for path in documents()
        for found in FENCED.finditer(path.read_text("utf-8"))
    ]


def commands(program: str) -> list[list[str]]:
    """Every call of a program in a console block, as words; also those within `$(...)` and pipes."""
    calls: list[list[str]] = []
    for block in blocks():
        for line in block.commands() if block.language == "console" else ():
            for part in re.split(r"\$\(|\||\)|&&", line):
                words = shlex.split(part) if part.count('"') % 2 == 0 and part.count("'") % 2 == 0 else []
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                if words and words[0] == program:
                    calls.append(words[1:])
    return calls


def anchor(heading: str) -> str:
    """A heading's anchor, as it is made on Git hosts."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links() -> Iterator[tuple[Path, str]]:
    for path in documents():
        for found in LINK.finditer(FENCED.sub("", path.read_text("utf-8"))):
            yield path, found["target"]


def test_every_link_within_the_repository_leads_somewhere() -> None:
    broken = []
    for path, target in links():
        if urlparse(target).scheme:
            continue
        name, _, fragment = target.partition("#")
        reached = (path.parent / name).resolve() if name else path
        anchors = [anchor(text) for text in HEADING.findall(reached.read_text())] if reached.is_file() else []
        if not reached.exists() or (fragment and fragment not in anchors):
            broken.append(f"{named(path)}: {target}")
    assert broken == []


def test_every_decision_record_is_listed_and_names_its_check() -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    for record in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        text = record.read_text()
        number = int(record.name[:4])
        title = re.match(r"# (\d+)\. (.+)\n", text)
        assert title
        assert int(title[1]) == number
        assert f"{number}. [{title[2]}](decisions/{record.name})" in architecture
        check = text.partition("## The check\n")[2]
        assert re.search(r"`(tests/[\w./]+|make \w+)`", check), record.name


def test_every_path_a_document_names_is_there() -> None:
    missing = [
        f"{named(path)}: {found}"
        for path in documents()
        for found in re.findall(
            r"`((?:tests|scripts|deploy|constraints|docs|benchmarks|migrations)/[\w./-]+)`", path.read_text()
        )
        if not (ROOT / found).exists()
    ]
    assert missing == []


def test_reference_tables_are_what_the_code_says(database: Database) -> None:
    known = references(database.owner_url)
    used: set[str] = set()
    stale = []
    for path in documents():
        text = path.read_text("utf-8")
        used |= {found["name"] for found in MARKED.finditer(text)}
        if rendered(text, known) != text:
            stale.append(named(path))
    assert stale == [], "run `make docs`"
    assert used == set(known)


@pytest.mark.parametrize("words", commands("ratchet"), ids=" ".join)
def test_a_ratchet_command_in_a_document_is_one(words: list[str]) -> None:
    group = typer.main.get_command(build(words[0]))
    context = group.make_context("ratchet", list(words))
    command = group
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        try:
            context = command.make_context(name, rest, parent=context)
        except typer.BadParameter as error:
            if "does not exist" not in str(error):
                raise
    assert words[0] in COMMANDS


@pytest.mark.parametrize(
    "words", [words for words in commands("ratchet") if tuple(words[:2]) in NEED_NO_ENGINE], ids=" ".join
)
def test_a_command_that_needs_no_engine_works_as_documented(
    words: list[str], database: Database, tmp_path: Path
) -> None:
    home = Home(tmp_path).ensure()
    save_role_urls(home, database.urls)
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.cli", *words, *([] if "--json" in words else ["--json"])],
        env={**os.environ, "RATCHET_HOME": str(home.root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


@pytest.mark.parametrize("words", commands("make"), ids=" ".join)
def test_a_make_target_in_a_document_is_one(words: list[str]) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", commands("curl"), ids=" ".join)
def test_a_curl_line_in_a_document_asks_for_a_path_that_is_served(words: list[str]) -> None:
    (url,) = [word for word in words if word.startswith("http")]
    assert urlparse(url).path in {route.path for route in ROUTES}
    if "-d" in words:
        body = json.loads(words[words.index("-d") + 1])
        assert body["messages"]


@pytest.mark.parametrize(
    "block", [block for block in blocks() if block.language == "python"], ids=lambda b: named(b.path)
)
def test_python_in_a_document_parses(block: Block) -> None:
    compile(block.body, named(block.path), "exec", flags=ast.PyCF_ONLY_AST)


def test_the_documents_tell_every_command_of_the_command_line() -> None:
    told = {words[0] for words in commands("ratchet")}
    assert set(COMMANDS) - told - {"demo"} == set()
    assert commands("make")[:2] == [["demo"], ["test"]]
