"""One process of several rounds, one after another: `python -m tests.support.round_ranks FOLDER...`."""

import argparse
import os
import warnings
from pathlib import Path

from trainer.round import run_round

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--local_rank", type=int)
    warnings.simplefilter("ignore", FutureWarning)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for folder in parser.parse_args().folders:
        run_round(folder)
    os._exit(0)
