"""Who may import whom, by contract and by what a process really loads."""

import json
import subprocess
import sys

import pytest

from ratchet.cli import COMMANDS
from tests.architecture.repository import ROOT

NUMERICS = {"torch", "transformers", "deepspeed", "vllm"}
SUBSYSTEMS = {"gateway", "feedback", "trainer", "evaluator"}

LOADED_BY_A_COMMAND = """
import json, sys
from ratchet import cli
sys.argv = ["ratchet", *json.loads(sys.argv[1])]
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""

LOADED_BY_A_PACKAGE = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
sys.stderr.write(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded(program: str, argument: str) -> set[str]:
    """Top-level modules of a fresh process at its end."""
    done = subprocess.run(
        [sys.executable, "-c", program, argument], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_every_import_contract_is_kept() -> None:
    lint = "from importlinter.cli import lint_imports_command as run; run()"
    command = [sys.executable, "-c", lint, "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_help_loads_nothing_heavy() -> None:
    heavy = NUMERICS | SUBSYSTEMS | {"fastapi", "celery", "sqlalchemy", "openai", "opentelemetry", "pyarrow"}
    assert loaded(LOADED_BY_A_COMMAND, json.dumps(["--help"])) & heavy == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_loads_no_numerics(command: str) -> None:
    assert loaded(LOADED_BY_A_COMMAND, json.dumps([command, "--help"])) & NUMERICS == set()


@pytest.mark.parametrize("package", ["gateway", "feedback", "evaluator"])
def test_a_whole_subsystem_loads_no_numerics_and_no_other_subsystem(package: str) -> None:
    assert loaded(LOADED_BY_A_PACKAGE, package) & (NUMERICS | SUBSYSTEMS) == {package}
