"""The worker's side of drift: one process at a time measures what is due, so that tasks go on meanwhile."""

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from ratchet.supervisor import leash
from trainer.reward.remeasure import due

PROGRAM = "trainer.reward.remeasure"


@dataclass
class Watch:
    """Starts the program that measures reward models again, unless it is at work or nothing is due.

    Attributes:
        process: The process at work, if any; it ends when this one does.
    """

    process: "subprocess.Popen[Any] | None" = None

    def begin(self, session: Session) -> bool:
        """Starts it, if it is time; must be called from the main thread.

        Returns:
            Whether it was started.
        """
        if self.process is not None and self.process.poll() is None:
            return False
        self.process = None
        if not due(session):
            return False
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), sys.executable, "-m", PROGRAM],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        return True
