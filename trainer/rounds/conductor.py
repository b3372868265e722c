"""`python -m trainer.rounds.conductor ROUND`: carries out one round, for the trainer's worker."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn
from uuid import UUID

from ratchet.db.engine import open_engine
from ratchet.errors import RatchetError
from ratchet.home import Home
from ratchet.logs import configure as configure_logs
from ratchet.logs import get_logger
from ratchet.settings import load
from trainer.rounds.conduct import carry_out
from trainer.rounds.start import launch
from trainer.settings import TrainerSettings

ENDED_BY_SIGNAL = 143

log = get_logger(__name__)


def main() -> None:
    """Carries out the round named on the command line; SIGTERM gives it back."""
    signal.signal(signal.SIGTERM, _end)
    settings = load(TrainerSettings)
    configure_logs(settings.log_level, settings.log_format)
    identity = UUID(sys.argv[1])
    engine = open_engine(settings.database_url.get_secret_value(), application=settings.instance, pool_size=2)
    home = Home.resolve()
    try:
        ended = carry_out(engine, home, identity, worker=instance(), launch=launch)
    except RatchetError as error:
        log.error("the round was not carried out", round=str(identity), error=str(error))
        sys.exit(error.exit_code)
    finally:
        engine.dispose()
    if ended is not None:
        log.info("the round ended", round=str(identity), state=ended.state, error=ended.error)


def instance() -> str:
    """Name of this process among all that carry out rounds."""
    return f"{os.uname().nodename}:{os.getpid()}"


def _end(_: int, __: FrameType | None) -> NoReturn:
    sys.exit(ENDED_BY_SIGNAL)


if __name__ == "__main__":
    main()
