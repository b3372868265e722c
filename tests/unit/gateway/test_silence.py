"""A silent engine is given up after its time, a slow reader is not."""

import asyncio

from gateway.silence import Silence


def test_only_a_wait_that_takes_too_long_is_ended() -> None:
    async def story() -> tuple[list[str], bool]:
        ended: list[str] = []
        waiting = asyncio.Event()

        def end() -> None:
            ended.append("ended")
            waiting.set()

        silence = Silence(0.05, end)
        await asyncio.sleep(0.2)
        assert not ended
        for _ in range(4):
            silence.begins()
            await asyncio.sleep(0.02)
            silence.ends()
        assert not ended
        silence.begins()
        await waiting.wait()
        return ended, silence.broken

    assert asyncio.run(story()) == (["ended"], True)


def test_once_stopped_it_ends_nothing() -> None:
    async def story() -> bool:
        silence = Silence(0.02, lambda: None)
        silence.begins()
        silence.stop()
        await asyncio.sleep(0.1)
        return silence.broken

    assert asyncio.run(story()) is False
