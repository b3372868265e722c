"""The worker's side of rounds: one conductor at a time, as its own process, so that tasks go on meanwhile."""

import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from ratchet.alarms import raise_alarm
from ratchet.logs import get_logger
from ratchet.supervisor import leash
from trainer.rounds import repository

PROGRAM = "trainer.rounds.conductor"

log = get_logger(__name__)


@dataclass
class Dispatcher:
    """Starts a conductor for the round that was asked for first, unless one is at work.

    Attributes:
        conductor: The process at work, if any; it ends when this one does.
    """

    conductor: "subprocess.Popen[Any] | None" = None

    def begin(self, session: Session) -> UUID | None:
        """Starts the next round, if it is time; must be called from the main thread.

        Returns:
            The round that begins.
        """
        if self.conductor is not None and self.conductor.poll() is None:
            return None
        self.conductor = None
        waiting = repository.due(session)
        if waiting is not None:
            self.conductor = subprocess.Popen(
                [
                    sys.executable, "-I", "-S", leash.__file__, str(os.getpid()),
                    sys.executable, "-m", PROGRAM, str(waiting),
                ],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            log.info("a conductor begins", round=str(waiting), pid=self.conductor.pid)
        return waiting


def reconcile(session: Session, *, silent_for: timedelta) -> None:
    """Finds rounds whose worker fell silent; one whose workers died too often raises an alarm."""
    again, failed = repository.find_lost(session, silent_for=silent_for)
    for identity in again:
        log.warning("the round is asked for again: its worker fell silent", round=str(identity))
    for identity in failed:
        raise_alarm(session, "round-worker-died", f"round {identity}", {"attempts": repository.ATTEMPTS})
