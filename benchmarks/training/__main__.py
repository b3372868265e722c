"""`python -m benchmarks.training`: a round beside TRL, in pairs of runs, ours and theirs in turn.

`measure` makes pairs of runs and adds each to a file of JSON lines; it may be called again and again, each
call a slice of minutes. `report` reads the file: the ratio pair by pair, its median with its interval.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.paired import paired_ratio
from benchmarks.training.material import hh_snapshot
from feedback.rows import Kind

EFFECTIVE = 8
ROWS = 16
SIDES = {"dpo": ("trl-dpo",), "sft": ("trl-packed", "trl-padded")}


def configuration(method: str, model: Path, snapshot: Path, folder: Path, micro_tokens: int) -> Path:
    """The round both sides carry out."""
    path = folder / "round.toml"
    path.write_text(
        f'method = "{method}"\nmodel = "{model}"\nsnapshot = "{snapshot}"\n'
        f"[data]\nmax_length = 512\nvalidation_rows = 0\n"
        f'[optim]\nlr = 1e-5\nschedule = "constant"\nwarmup = 0.0\nbatch = {EFFECTIVE}\n'
        f"micro_tokens = {micro_tokens}\nepochs = 1\n"
        "[checkpoints]\nkl_at = []\nkl_prompts = 0\nmeasure_every = 0\nsave_every = 1000000\n"
    )
    return path


def run(side: str, config: Path, folder: Path, batch: int, threads: int) -> dict[str, Any]:
    """One run in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.training.one", side, str(config), str(folder), str(batch)],
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "DS_ACCELERATOR": "cpu"},
        stdout=subprocess.PIPE,
        check=True,
    )
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return document


def measure(arguments: argparse.Namespace) -> None:
    """Adds pairs of runs to the file; rows move on with what the file holds already."""
    before = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    kind = Kind.PAIRS if arguments.method == "dpo" else Kind.DEMONSTRATIONS
    for number in range(len(before), len(before) + arguments.runs):
        batch = arguments.batches[number % len(arguments.batches)]
        peer = arguments.peer or SIDES[arguments.method][number % len(SIDES[arguments.method])]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            snapshot = hh_snapshot(
                arguments.data, folder / "snapshots", kind, arguments.rows, number * arguments.rows % 128
            )
            config = configuration(
                arguments.method, arguments.model.absolute(), snapshot, folder, arguments.micro_tokens
            )
            found: dict[str, Any] = {"method": arguments.method, "peer": peer, "batch": batch}
            for side in ("ours", peer) if number % 2 == 0 else (peer, "ours"):
                found["ours" if side == "ours" else "theirs"] = run(
                    side, config, folder / side, batch, arguments.threads
                )
        with arguments.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        sys.stderr.write(json.dumps(found) + "\n")


def report(arguments: argparse.Namespace) -> None:
    """Prints one JSON document: for each peer and batch the ratio of rates and of memory."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in arguments.out.read_text().splitlines():
        found = json.loads(line)
        groups[found["peer"], found["batch"]].append(found)
    document = [
        {
            "peer": peer,
            "batch": batch,
            "rate": asdict(_ratio(runs, "examples_per_second")),
            "memory": asdict(_ratio(runs, "peak_memory_bytes")),
            "ours_per_second": [each["ours"]["examples_per_second"] for each in runs],
            "theirs_per_second": [each["theirs"]["examples_per_second"] for each in runs],
            "ours_peak_gb": max(each["ours"]["peak_memory_bytes"] for each in runs) / 1e9,
            "theirs_peak_gb": max(each["theirs"]["peak_memory_bytes"] for each in runs) / 1e9,
            "largest_loss_difference": None if peer == "trl-packed" else _loss_difference(runs),
        }
        for (peer, batch), runs in sorted(groups.items())
    ]
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def _loss_difference(runs: list[dict[str, Any]]) -> float:
    return max(
        abs(one - other)
        for each in runs
        for one, other in zip(each["ours"]["losses"], each["theirs"]["losses"], strict=True)
    )


def _ratio(runs: list[dict[str, Any]], figure: str) -> Any:
    return paired_ratio([each["ours"][figure] for each in runs], [each["theirs"][figure] for each in runs])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure", help="make pairs of runs")
    measuring.add_argument("method", choices=sorted(SIDES))
    measuring.add_argument("--model", type=Path, required=True, help="model folder")
    measuring.add_argument("--data", type=Path, required=True, help="HH as gzipped JSON lines")
    measuring.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8], help="the peer's batch")
    measuring.add_argument("--rows", type=int, default=ROWS, help="rows a run learns from")
    measuring.add_argument("--runs", type=int, default=1, help="pairs of runs to add")
    measuring.add_argument("--micro-tokens", type=int, default=1024, help="our micro-batch")
    measuring.add_argument("--peer", choices=[peer for peers in SIDES.values() for peer in peers])
    measuring.add_argument("--threads", type=int, default=2)
    measuring.add_argument("--out", type=Path, required=True, help="file of JSON lines")
    measuring.set_defaults(act=measure)
    reporting = commands.add_parser("report", help="sum up a file")
    reporting.add_argument("--out", type=Path, required=True, help="file of JSON lines")
    reporting.set_defaults(act=report)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
