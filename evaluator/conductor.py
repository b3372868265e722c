"""`python -m evaluator.conductor LOOP`: carries out the selection of one turn, for the evaluator's worker."""

import sys
from uuid import UUID

from evaluator.loop import AGAIN_LATER, carry_out
from evaluator.raters import StillRating
from evaluator.settings import load_settings
from ratchet.db.engine import open_engine
from ratchet.errors import DatabaseUnavailable
from ratchet.home import Home
from ratchet.logs import configure as configure_logs
from ratchet.logs import get_logger
from ratchet.settings import WorkerSettings, load

log = get_logger(__name__)


def main() -> None:
    """Carries out the selection of the turn named on the command line."""
    settings = load(WorkerSettings)
    configure_logs(settings.log_level, settings.log_format)
    loop = UUID(sys.argv[1])
    database = open_engine(settings.database_url.get_secret_value(), application="selection", pool_size=2)
    try:
        row = carry_out(
            database, Home.resolve(), loop, load_settings(), lambda text: log.info(text, loop=str(loop))
        )
    except (StillRating, DatabaseUnavailable) as error:
        log.info("the selection waits", loop=str(loop), reason=str(error))
        sys.exit(AGAIN_LATER)
    finally:
        database.dispose()
    log.info("the selection ended", loop=str(loop), chosen=None if row is None else row.chosen)


if __name__ == "__main__":
    main()
