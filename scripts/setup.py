"""Builds the virtual environment: an interpreter, the packages of pyproject.toml, and the engine's build.

Needs only the standard library and any Python 3; it looks for a fitting interpreter itself. A stamp in the
environment makes the next run a matter of milliseconds, until pyproject.toml or the constraints change.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INTERPRETERS = ("python3.11", "python3.12")
SUPPORTED = ((3, 11), (3, 12))
COMPILERS = ("cc", "gcc", "clang")
FREE_GIB = 8
CPU_TORCH = "torch==2.13.0+cpu"
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
MISMATCHING = ("torchvision", "torchaudio", "torchcodec")


def main():
    """Brings the environment to what pyproject.toml and the constraints ask for."""
    options = parse()
    venv = options.venv.resolve()
    stamp = venv / "setup.json"
    wanted = description(options, venv)
    if stamp.exists() and stamp.read_text() == wanted:
        print(f"{venv} is up to date")
        return
    stamp.unlink(missing_ok=True)
    check_machine(venv)
    python = venv / "bin" / "python"
    interpreter = find_interpreter()
    if not python.exists() or version_of(str(python)) not in SUPPORTED:
        make_venv(interpreter, venv)
    install(python, options)
    stamp.write_text(wanted)
    print(f"{venv} is ready")


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", choices=("cpu", "gpu"), default="cpu", help="which build of vLLM")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where the environment goes")
    parser.add_argument("--no-dev", action="store_true", help="leave the tools for tests and checks out")
    return parser.parse_args()


def description(options, venv):
    """What an environment is made from, as text: equal text, equal environment."""
    sources = [Path(__file__), ROOT / "pyproject.toml", constraints(options.extra)]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sources}
    return json.dumps(
        {"root": str(ROOT), "venv": str(venv), "extra": options.extra, "dev": not options.no_dev, **digests},
        indent=2,
    )


def constraints(extra):
    """The file that holds the versions seen to work together."""
    return ROOT / "constraints" / f"{extra}.txt"


def check_machine(venv):
    """Stops with one clear line where something is missing that pip could not bring."""
    if not any(shutil.which(name) for name in (os.environ.get("CC", ""), *COMPILERS) if name):
        fail(
            "no C compiler found (looked for $CC, "
            + ", ".join(COMPILERS)
            + "); the engine compiles kernels.\n"
            "Install one: `apt install gcc g++` on Debian and Ubuntu, `dnf install gcc gcc-c++` on Fedora"
        )
    existing = next(folder for folder in (venv, *venv.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 2**30
    if free < FREE_GIB:
        fail(f"{existing} has {free:.1f} GiB free; the environment and pip's downloads need {FREE_GIB} GiB")


def find_interpreter():
    """A Python of a supported version: this one, else one on the path."""
    if sys.version_info[:2] in SUPPORTED:
        return sys.executable
    for name in INTERPRETERS:
        if shutil.which(name) and version_of(name) in SUPPORTED:
            return name
    return fail(
        f"no Python 3.11 or 3.12 found (this is {sys.version.split()[0]}).\n"
        "Install one (`apt install python3.11 python3.11-venv`, `dnf install python3.11`, or pyenv), "
        "then `make setup PYTHON=/path/to/python3.11`"
    )


def version_of(program):
    """Major and minor version of an interpreter; None where it does not start."""
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([program, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return tuple(int(part) for part in done.stdout.split()) if done.returncode == 0 else None


def make_venv(interpreter, venv):
    """A fresh environment, in place of any older one."""
    print(f"making {venv} with {interpreter}", flush=True)
    if subprocess.run([interpreter, "-m", "venv", "--clear", str(venv)]).returncode:
        fail(f"{interpreter} cannot make a virtual environment; on Debian and Ubuntu install python3-venv")


def install(python, options):
    """Installs the packages; what pip is configured with on this machine stays in force."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    indexes = []
    if options.extra == "cpu" and not offered(pip, CPU_TORCH):
        indexes = ["--extra-index-url", CPU_TORCH_INDEX]
        print(f"pip is not offered {CPU_TORCH}: adding PyTorch's CPU wheel index", flush=True)
    extras = options.extra if options.no_dev else options.extra + ",dev"
    print("installing packages: about 4 GB, some minutes", flush=True)
    show = [] if sys.stdout.isatty() else ["--quiet", "--progress-bar", "off"]
    run([*pip, "install", *show, *indexes, "-c", str(constraints(options.extra)), "-e", f"{ROOT}[{extras}]"])
    if options.extra == "cpu":
        run([*pip, "uninstall", "--quiet", "--yes", *MISMATCHING])


def offered(pip, requirement):
    """Whether the indexes and folders pip is configured with have this very release."""
    probe = [*pip, "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", requirement]
    return subprocess.run(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def run(command):
    """Runs a command; its failure is ours."""
    code = subprocess.run(command).returncode
    if code:
        fail(f"`{' '.join(command)}` failed with code {code}; its messages are above")


def fail(message):
    """Ends with a message for people."""
    sys.stderr.write(f"setup: {message}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
