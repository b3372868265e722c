"""`python -m benchmarks.selection [runs] [seed]`: the table of docs/selection.md."""

import sys

from benchmarks.selection.families import FAMILIES
from benchmarks.selection.regret import measure


def main(runs: int = 200, seed: int = 0) -> None:
    """Prints one line a family."""
    print(
        "| family | rounds | selection | highest estimate | by proxy | last | none | worse than production |"
    )
    print("|-|-|-|-|-|-|-|-|")
    for family in FAMILIES:
        told = measure(family, runs, seed)
        regrets = (
            f"{told.selection:.2f} ± {told.selection_error:.2f} | {told.highest:.2f} | {told.by_proxy:.2f}"
        )
        shares = f"{told.none_proposed:.1%} | {told.worse_proposed:.1%}"
        print(f"| {family} | {told.runs} | {regrets} | {told.last:.2f} | {shares} |", flush=True)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:3]))
