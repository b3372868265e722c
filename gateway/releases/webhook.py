"""Tells a webhook what a release did by itself: a few attempts, in the background, then an alarm.

The address comes from the settings or a plan on this machine, never from a request.
"""

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx

from ratchet.logs import get_logger

TIMEOUT_S = 5.0
ATTEMPTS = 4
FIRST_WAIT_S = 0.5

log = get_logger(__name__)


class Webhook:
    """Sends documents as JSON.

    Args:
        gave_up: Told the address's scheme and host, and the reason, when every attempt failed.
        first_wait_s: Seconds before the second attempt; doubled before each further one.
    """

    def __init__(self, gave_up: Callable[[str, str], None], first_wait_s: float = FIRST_WAIT_S) -> None:
        self._gave_up = gave_up
        self._first_wait_s = first_wait_s
        self._stopping = threading.Event()
        self._threads: set[threading.Thread] = set()

    def tell(self, url: str, document: dict[str, Any]) -> None:
        """Sends a document, without waiting for it."""
        thread = threading.Thread(
            target=self._send, args=(url, document), name="release-webhook", daemon=True
        )
        self._threads = {each for each in self._threads if each.is_alive()} | {thread}
        thread.start()

    def stop(self) -> None:
        """Gives attempts under way the time of one."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _send(self, url: str, document: dict[str, Any]) -> None:
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt and self._stopping.wait(self._first_wait_s * 2 ** (attempt - 1)):
                break
            try:
                answer = httpx.post(url, json=document, timeout=TIMEOUT_S, follow_redirects=False)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                continue
            if answer.is_success:
                return
            reason = f"it answers {answer.status_code}"
        where = _host_of(url)
        log.error("the webhook could not be told", host=where, reason=reason)
        self._gave_up(where, reason)


def _host_of(url: str) -> str:
    """Scheme and host: what follows may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"
