"""A child process: its stages, its one document, its errors, and its death."""

from pathlib import Path

import pytest

from ratchet import subprogram
from ratchet.errors import EnvironmentFault, PolicyRefused, RatchetError

CHILD = """
import os, sys
from ratchet.errors import PolicyRefused
from trainer.child import answer, say

def work():
    say("first")
    print("a library talks on stdout")
    say("second")
    if sys.argv[1] == "refuse":
        raise PolicyRefused("not this one")
    if sys.argv[1] == "crash":
        raise ZeroDivisionError("oh")
    if sys.argv[1] == "die":
        os.kill(os.getpid(), 9)
    return {"secret": os.environ.get("RATCHET_GATEWAY_DATABASE_URL"), "home": os.environ["HOME"]}

answer(work)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program beside the packages."""
    (tmp_path / "some_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HOME", "/somewhere/safe")
    monkeypatch.setenv("RATCHET_GATEWAY_DATABASE_URL", "postgresql://secret")
    return "some_child"


def test_stages_are_reported_and_the_document_is_what_it_returned_without_our_secrets(program: str):
    stages: list[str] = []
    document = subprogram.run(program, ["work"], stages.append)
    assert stages == ["first", "second"]
    assert document == {"secret": None, "home": "/somewhere/safe"}


def test_an_error_made_on_purpose_arrives_as_itself(program: str):
    with pytest.raises(PolicyRefused, match=r"^not this one$"):
        subprogram.run(program, ["refuse"], lambda _: None)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("crash", r"python -m some_child ended with code 1: ZeroDivisionError: oh"),
        ("die", r"python -m some_child was killed by signal 9 \(out of memory\?\)"),
    ],
)
def test_a_death_is_told_with_the_last_words(program: str, how: str, reason: str):
    with pytest.raises(EnvironmentFault, match=reason):
        subprogram.run(program, [how], lambda _: None)


def test_a_program_that_is_not_there_is_told(program: str):
    with pytest.raises(RatchetError, match="No module named other_child"):
        subprogram.run(program.replace("some", "other"), [], lambda _: None)
