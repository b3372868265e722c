"""Places and queues: first come, first served; nobody keeps a place he does not use."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import Admission, RateLimit
from gateway.errors import ApiError
from gateway.keys_cache import KnownKey
from gateway.metrics import Metrics
from ratchet.keys import KeyRole
from ratchet.telemetry import configure

KEY = KnownKey(UUID(int=1), KeyRole.CLIENT, None, None)


@pytest.fixture(scope="module")
def metrics() -> Iterator[Metrics]:
    telemetry = configure("gateway", "test", None)
    yield Metrics(telemetry, dict)
    telemetry.shutdown()


async def settle() -> None:
    """Lets every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


class Crowd:
    """Requests that hold their place until told to leave, in the order in which they got it."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.inside: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, key: KnownKey = KEY) -> None:
        self.leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._stay(name, key))
        await settle()

    async def go(self, name: str) -> None:
        self.leave[name].set()
        await self.tasks[name]
        await settle()

    async def _stay(self, name: str, key: KnownKey) -> None:
        async with self.admission.place(key):
            self.inside.append(name)
            await self.leave[name].wait()
            self.inside.remove(name)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


def test_places_are_given_in_the_order_of_arrival(metrics: Metrics) -> None:
    async def story() -> None:
        crowd = Crowd(Admission(2, 10, 60, metrics))
        for name in "abcd":
            await crowd.come(name)
        assert crowd.inside == ["a", "b"]
        await crowd.go("a")
        assert crowd.inside == ["b", "c"]
        await crowd.go("b")
        assert crowd.inside == ["c", "d"]
        await crowd.go("c")
        await crowd.go("d")
        await crowd.admission.drained()

    run(story())


def test_one_too_many_in_the_queue_is_refused(metrics: Metrics) -> None:
    async def story() -> None:
        crowd = Crowd(Admission(1, 1, 60, metrics))
        await crowd.come("a")
        await crowd.come("b")
        await crowd.come("c")
        with pytest.raises(ApiError) as refused:
            await crowd.tasks["c"]
        assert (refused.value.status, refused.value.code, refused.value.refused) == (503, "queue_full", True)
        assert refused.value.retry_after_s
        await crowd.go("a")
        await crowd.go("b")

    run(story())


def test_who_waits_too_long_is_refused_and_its_turn_goes_to_the_next(metrics: Metrics) -> None:
    async def story() -> None:
        crowd = Crowd(Admission(1, 5, 0.01, metrics))
        await crowd.come("a")
        await crowd.come("b")
        with pytest.raises(ApiError, match="no place became free"):
            await crowd.tasks["b"]
        await crowd.go("a")
        await crowd.come("c")
        assert crowd.inside == ["c"]
        await crowd.go("c")

    run(story())


def test_who_leaves_the_queue_takes_no_place_with_it(metrics: Metrics) -> None:
    async def story() -> None:
        crowd = Crowd(Admission(1, 5, 60, metrics))
        for name in "abc":
            await crowd.come(name)
        crowd.tasks["b"].cancel()
        await settle()
        await crowd.go("a")
        assert crowd.inside == ["c"]
        await crowd.go("c")
        await crowd.admission.drained()

    run(story())


def test_who_is_cancelled_in_the_moment_of_its_turn_gives_the_place_on(metrics: Metrics) -> None:
    async def story() -> None:
        crowd = Crowd(Admission(1, 5, 60, metrics))
        for name in "abc":
            await crowd.come(name)
        crowd.leave["a"].set()
        await asyncio.sleep(0)
        crowd.tasks["b"].cancel()
        await settle()
        assert crowd.inside == ["c"]
        await crowd.go("c")
        await crowd.admission.drained()

    run(story())


def test_a_key_has_its_own_bound_that_counts_those_who_wait(metrics: Metrics) -> None:
    async def story() -> None:
        bounded = KnownKey(UUID(int=2), KeyRole.CLIENT, None, 2)
        crowd = Crowd(Admission(1, 5, 60, metrics))
        await crowd.come("a", bounded)
        await crowd.come("b", bounded)
        await crowd.come("c", bounded)
        with pytest.raises(ApiError) as refused:
            await crowd.tasks["c"]
        assert (refused.value.status, refused.value.code) == (429, "concurrency_limit_exceeded")
        await crowd.go("a")
        await crowd.go("b")
        await crowd.come("d", bounded)
        assert crowd.inside == ["d"]
        await crowd.go("d")

    run(story())


def test_a_key_has_its_own_pace(metrics: Metrics) -> None:
    async def story() -> None:
        admission = Admission(10, 5, 60, metrics)
        slow = KnownKey(UUID(int=3), KeyRole.CLIENT, 2, None)
        for _ in range(2):
            async with admission.place(slow):
                pass
        with pytest.raises(ApiError) as refused:
            async with admission.place(slow):
                pass
        assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
        assert 29 < (refused.value.retry_after_s or 0) <= 30
        async with admission.place(KEY):
            pass

    run(story())


def test_a_bucket_of_60_a_minute_refills_one_a_second() -> None:
    limit = RateLimit(60, now=0.0)
    assert [limit.take(0.0) for _ in range(60)] == [0.0] * 60
    assert limit.take(0.0) == 1.0
    assert limit.take(0.5) == 0.5
    assert limit.take(1.0) == 0.0
    assert limit.take(1.0) == 1.0


@given(st.integers(1, 1000), st.lists(st.floats(0, 10), max_size=200))
def test_no_minute_sees_more_than_twice_the_pace(per_minute: int, gaps: list[float]) -> None:
    limit = RateLimit(per_minute, now=0.0)
    now, taken = 0.0, 0
    for gap in gaps:
        now += gap
        taken += limit.take(now) == 0.0
    assert taken <= per_minute * (1 + now / 60) + 1e-6
