"""Writes constraints/<extra>.txt: every package that pyproject.toml leads to, at one version each.

Versions installed in the running environment are kept; pip resolves the rest. Run it by `make lock`.
"""

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Made by `make lock` with Python {python}: one version of each package, which go together.\n"
OURS = "ratchet"
REFUSED = re.compile(r"The user requested \(constraint\) ([\w.-]+)==")


def main() -> None:
    """Resolves one extra and writes its constraints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--fresh", action="store_true", help="newest versions, whatever is installed")
    options = parser.parse_args()
    target = ROOT / "constraints" / f"{options.extra}.txt"
    pins = resolve(f"{options.extra},dev", {} if options.fresh else installed())
    lines = sorted(f"{name}=={version}\n" for name, version in pins.items())
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    target.write_text(HEADER.format(python=python) + "".join(lines))
    sys.stdout.write(f"{target.relative_to(ROOT)}: {len(pins)} packages\n")


def installed() -> dict[str, str]:
    """Name to version of what this environment holds."""
    return {
        dist.name: public(dist.version)
        for dist in importlib.metadata.distributions()
        if dist.name not in (OURS, "pip")
    }


def resolve(extras: str, kept: dict[str, str]) -> dict[str, str]:
    """Name to public version of every package that these extras need.

    Args:
        extras: Extras of pyproject.toml.
        kept: Versions to keep; those that the extras cannot live with are given up.
    """
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "kept.txt"
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", "--dry-run",
                   "--ignore-installed", "--report", str(report), "-c", str(constraints),
                   "-e", f"{ROOT}[{extras}]"]  # fmt: skip
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in kept.items()))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = json.loads(report.read_text())["install"] if done.returncode == 0 else []
    if found:
        packages = {item["metadata"]["name"]: public(item["metadata"]["version"]) for item in found}
        return {name.lower().replace("_", "-"): version for name, version in packages.items() if name != OURS}
    refused = {name.lower() for name in REFUSED.findall(done.stdout + done.stderr)}
    if not refused:
        sys.exit(done.stderr)
    return resolve(extras, {name: version for name, version in kept.items() if name.lower() not in refused})


def public(version: str) -> str:
    """A version without its local label, such as torch's `+cpu`: as a constraint it holds for every build."""
    return version.split("+")[0]


if __name__ == "__main__":
    main()
