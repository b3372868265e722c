"""When a stack is ready: when its gateway says that a token can be generated."""

import time
from dataclasses import dataclass

import httpx

from ratchet.supervisor.show import Show

LOOK_EVERY_S = 0.5
TELL_EVERY_S = 15.0
TIMEOUT_S = 2.0
READY = 200


@dataclass
class Readiness:
    """Asks `/readyz` until it says 200, and tells now and then what it waits for."""

    url: str
    show: Show
    reached: bool = False
    _look_at: float = 0.0
    _tell_at: float = 0.0

    def tick(self) -> bool:
        """Asks, when it is time.

        Returns:
            True once: when the stack has just become ready.
        """
        if self.reached or time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_EVERY_S
        ready, reason = _ask(f"{self.url}/readyz")
        if ready:
            self.reached = True
            return True
        if not self._tell_at:
            self._tell_at = time.monotonic() + TELL_EVERY_S
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + TELL_EVERY_S
            self.show.wait("ready?", reason)
        return False


def _ask(url: str) -> tuple[bool, str]:
    try:
        answer = httpx.get(url, timeout=TIMEOUT_S, trust_env=False)
    except httpx.TransportError:
        return False, "the gateway does not answer yet"
    if answer.status_code == READY:
        return True, ""
    return False, _reasons(answer)


def _reasons(answer: httpx.Response) -> str:
    try:
        return "; ".join(answer.json()["reasons"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway says {answer.status_code}"
