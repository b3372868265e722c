"""Writes constraints/<extra>.txt: every package that pyproject.toml leads to, at one version each.

Versions installed in the running environment are kept; pip resolves the rest. Run it by `make lock`.
"""

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Made by `make lock` with Python {python}: the versions that are tested together.\n"
OURS = "ratchet"


def main() -> None:
    """Resolves one extra and writes its constraints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--fresh", action="store_true", help="newest versions, whatever is installed")
    options = parser.parse_args()
    target = ROOT / "constraints" / f"{options.extra}.txt"
    pins = resolve(f"{options.extra},dev", {} if options.fresh else installed())
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    target.write_text(HEADER.format(python=python) + "".join(lines))
    sys.stdout.write(f"{target.relative_to(ROOT)}: {len(pins)} packages\n")


def installed() -> dict[str, str]:
    """Name to version of what this environment holds."""
    return {
        dist.name: dist.version
        for dist in importlib.metadata.distributions()
        if dist.name not in (OURS, "pip")
    }


def resolve(extras: str, kept: dict[str, str]) -> dict[str, str]:
    """Name to public version of every package that these extras need.

    A local version label, such as the `+cpu` of one build of torch, is left out: a constraint without it
    holds for every build of that version.
    """
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "kept.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in kept.items()))
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
                   "--report", str(report), "-c", str(constraints), "-e", f"{ROOT}[{extras}]"]  # fmt: skip
        subprocess.run(command, check=True)
        found = json.loads(report.read_text())["install"]
    packages = {item["metadata"]["name"]: item["metadata"]["version"].split("+")[0] for item in found}
    return {name.lower().replace("_", "-"): version for name, version in packages.items() if name != OURS}


if __name__ == "__main__":
    main()
