"""What a confined process can still reach by what it held before it was confined."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.supervisor import confinement
from ratchet.supervisor.confinement import Confinement

OBSTACLE = confinement.obstacle()

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=f"this machine confines no process: {OBSTACLE}")

LOOK = """
import os, sys
from pathlib import Path

print(Path.cwd())
print(Path("code.py").read_text())
for way in (".ratchet", f"/proc/self/fd/{sys.argv[1]}/.ratchet", "/proc/self/cwd/.ratchet", sys.argv[2]):
    try:
        print((Path(way) / "secrets" / "x").read_text())
    except FileNotFoundError:
        print("nothing")
print([str(link) for link in Path("/proc/self/fd").iterdir() if link.is_dir()])
"""


def confined(cwd: Path, order: Confinement, program: list[str], descriptors: tuple[int, ...] = ()) -> str:
    done = subprocess.run(
        [*order.words(), sys.executable, "-I", "-S", "-c", *program],
        cwd=cwd, pass_fds=descriptors, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Code with a data folder inside it, as `ratchet up` makes one where no other is named."""
    folder = tmp_path / "checkout"
    (folder / ".ratchet" / "secrets").mkdir(parents=True)
    (folder / ".ratchet" / "secrets" / "x").write_text("a secret")
    (folder / "code.py").write_text("code")
    return folder


def test_a_data_folder_inside_the_working_folder_is_covered_by_every_way(checkout: Path) -> None:
    home = checkout / ".ratchet"
    descriptor = os.open(checkout, os.O_RDONLY | os.O_DIRECTORY)
    try:
        said = confined(
            checkout, Confinement((home,), (checkout,), ()), [LOOK, str(descriptor), str(home)], (descriptor,)
        )
    finally:
        os.close(descriptor)
    assert said.splitlines() == [str(checkout), "code", *["nothing"] * 4, "[]"]


def test_a_working_folder_that_is_covered_is_left(checkout: Path) -> None:
    order = Confinement((checkout,), (), ())
    assert confined(checkout / ".ratchet", order, ["import os; print(os.getcwd())"]) == "/\n"
