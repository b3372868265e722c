"""CI runs what the README tells people to run, and ends with it."""

import os
import re
import subprocess

from tests.architecture.repository import ROOT
from tests.architecture.test_docs import commands

RUN = ROOT / ".ci" / "run"


def test_the_script_parses_and_may_be_run() -> None:
    assert subprocess.run(["bash", "-n", str(RUN)], check=False).returncode == 0
    assert os.access(RUN, os.X_OK)


def test_it_ends_with_the_test_command_of_the_readme() -> None:
    steps = re.findall(r"^make (\w+)$", RUN.read_text(), re.MULTILINE)
    assert steps[0] == "setup"
    assert {"lint", "types"} <= set(steps)
    assert [steps[-1]] == commands("make")[1]


def test_each_need_is_a_program_and_the_package_that_brings_it() -> None:
    listed = re.search(r"^NEEDS=\((.*?)^\)", RUN.read_text(), re.MULTILINE | re.DOTALL)
    assert listed
    needs = [line.strip() for line in listed[1].splitlines() if line.strip()]
    assert needs
    assert [need for need in needs if not re.fullmatch(r'"\S+ \S+"', need)] == []
