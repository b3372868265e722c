"""Answers under way, so that those of a policy that was taken back can be ended at once."""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.errors import ApiError
from gateway.traffic import Route
from ratchet.plan import Plan

AT_ONCE_S = 0.0


@dataclass(eq=False, slots=True)
class _Answer:
    task: "asyncio.Task[object]"
    model: str
    policy: str
    is_cut: bool = False


class InFlight:
    """The answers of this process. Not thread-safe: it lives on the event loop."""

    def __init__(self) -> None:
        self._answers: set[_Answer] = set()

    @contextmanager
    def answering(self, model: str, route: Route) -> Generator[None]:
        """While an answer is under way, a plan that says so may end it.

        Raises:
            ApiError: 503 when it was ended; a client may ask again at once.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        if route.pinned:
            yield
            return
        answer = _Answer(task, model, route.policy)
        self._answers.add(answer)
        try:
            yield
        except asyncio.CancelledError:
            if not answer.is_cut:
                raise
            task.uncancel()
            raise ApiError(
                503, "policy_withdrawn",
                f"{route.policy} was taken out of traffic while it answered: ask again",
                retry_after_s=AT_ONCE_S,
            ) from None  # fmt: skip
        finally:
            self._answers.discard(answer)

    def follow(self, plans: Mapping[str, Plan]) -> None:
        """Ends answers of policies that a plan has cut."""
        for answer in self._answers:
            plan = plans.get(answer.model)
            if plan is None or not plan.cut or answer.is_cut:
                continue
            if answer.policy not in {arm.policy for arm in plan.arms}:
                answer.is_cut = True
                answer.task.cancel()
