"""The set-up script says what is missing, and does nothing twice. It is run as people run it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT

SETUP = ROOT / "scripts" / "setup.py"


def setup(*arguments: str, path: Path, program: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Runs the script with nothing but the given folder on the path."""
    return subprocess.run(
        [program, str(SETUP), *arguments],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_a_machine_without_a_compiler_is_told_which_package_brings_one(tmp_path: Path) -> None:
    done = setup("--venv", str(tmp_path / "venv"), path=tmp_path)
    assert done.returncode == 2
    assert "no C compiler found" in done.stderr
    assert "apt install gcc g++" in done.stderr
    assert not (tmp_path / "venv").exists()


OLDER = """
import runpy, sys
sys.version_info = (3, 9, 2, "final", 0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_machine_without_a_fitting_python_is_told_how_to_get_one(tmp_path: Path) -> None:
    put(tmp_path, "cc", "#!/bin/sh\n")
    put(tmp_path, "python3.11", "#!/bin/sh\nexit 127\n")
    done = subprocess.run(
        [sys.executable, "-c", OLDER, str(SETUP), "--venv", str(tmp_path / "venv")],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no Python 3.11 or 3.12 found" in done.stderr
    assert "make setup PYTHON=" in done.stderr


@pytest.fixture
def recorded_pip(tmp_path: Path) -> Path:
    """An environment whose interpreter writes its arguments down instead of installing."""
    put(tmp_path, "cc", "#!/bin/sh\n")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    put(
        tmp_path / "venv" / "bin",
        "python",
        '#!/bin/sh\nif [ "$1" = -c ]; then echo 3 11; exit; fi\n'
        f'echo "$@" >> {tmp_path}/calls\ncase "$*" in *--dry-run*) exit ${{OFFERED:-0}};; esac\n',
    )
    return tmp_path


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_the_second_run_installs_nothing_until_the_choice_changes(recorded_pip: Path) -> None:
    venv = str(recorded_pip / "venv")
    first = setup("--venv", venv, path=recorded_pip)
    assert (first.returncode, first.stdout.splitlines()[-1]) == (0, f"{venv} is ready")
    probe, install, removal = calls(recorded_pip)
    assert probe.endswith("--dry-run --no-deps --ignore-installed torch==2.13.0+cpu")
    assert install.endswith(f"-c {ROOT}/constraints/cpu.txt -e {ROOT}[cpu,dev]")
    assert "--extra-index-url" not in install
    assert removal.endswith("--yes torchvision torchaudio torchcodec")

    second = setup("--venv", venv, path=recorded_pip)
    assert second.stdout == f"{venv} is up to date\n"
    assert len(calls(recorded_pip)) == 3

    setup("--venv", venv, "--no-dev", path=recorded_pip)
    assert calls(recorded_pip)[-2].endswith(f"{ROOT}[cpu]")


def test_the_public_wheel_index_is_added_only_where_pip_is_offered_no_cpu_torch(recorded_pip: Path) -> None:
    python = recorded_pip / "venv" / "bin" / "python"
    python.write_text(python.read_text().replace("${OFFERED:-0}", "1"))
    done = setup("--venv", str(recorded_pip / "venv"), path=recorded_pip)
    assert done.returncode == 0
    assert "--extra-index-url https://download.pytorch.org/whl/cpu -c" in calls(recorded_pip)[1]
