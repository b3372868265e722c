"""Ctrl-C, SIGTERM and a closed terminal: the first asks for an orderly stop, the second for one at once."""

import signal
import time
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Catches the signals while it is entered.

    Until `settle` is called, the first signal interrupts whatever is being done, as KeyboardInterrupt: the
    start has slow steps that ask nobody. From then on a signal is only noted.
    """

    def __init__(self) -> None:
        self._times = 0
        self._interrupts = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def settle(self) -> None:
        """From now on signals are noted, and interrupt nothing."""
        self._interrupts = False

    def wait(self, seconds: float) -> bool:
        """Sleeps, unless a stop is asked for already; returns whether it is."""
        if not self.asked:
            time.sleep(seconds)
        return self.asked

    @property
    def asked(self) -> bool:
        """Whether to stop."""
        return self._times > 0

    def hurry(self) -> bool:
        """Whether to stop at once."""
        return self._times > 1

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self._times += 1
        if self._interrupts:
            self._interrupts = False
            raise KeyboardInterrupt
