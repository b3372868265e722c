"""What runs in every process of a round: `python -m trainer.run FOLDER`, started by `trainer.launch`."""

import argparse
import ctypes
import json
import os
import signal
import sys
import warnings
from pathlib import Path

from ratchet.errors import RatchetError
from ratchet.supervisor.leash import PR_SET_PDEATHSIG
from trainer.durable import write_text

ERROR = "error.json"


def main() -> int:
    """Runs the round of a folder; an error made on purpose is told in `error.json` and on stderr."""
    parser = argparse.ArgumentParser(prog="python -m trainer.run", description="One process of a round.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the round's folder")
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)
    folder: Path = parser.parse_args().folder
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
    warnings.filterwarnings("ignore", message=".*torch.distributed.*is deprecated", category=FutureWarning)

    from transformers.utils import logging

    from trainer.round import run_round

    logging.disable_progress_bar()
    _end_with_the_launcher()
    (folder / ERROR).unlink(missing_ok=True)
    try:
        run_round(folder)
    except RatchetError as error:
        sys.stderr.write(f"{error}\n")
        write_text(folder / ERROR, json.dumps({"kind": type(error).__name__, "message": str(error)}))
        return error.exit_code
    return 0


def _end_with_the_launcher() -> None:
    """One of several processes ends when the launcher does, even of SIGKILL: it would wait for the others."""
    if sys.platform == "linux" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
