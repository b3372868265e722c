"""Real processes are killed under load; what clients received is held against what was stored."""

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from ratchet.db.roles import Role
from ratchet.demo.stack import RunningStack
from ratchet.embedded import EmbeddedPostgres
from ratchet.home import Home
from ratchet.secrets_store import role_url
from tests.support.ledger import Comparison, Ledger, compare

pytestmark = [pytest.mark.engine, pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture
def ledger(tiny_stack: RunningStack, tiny_folder: Path) -> Ledger:
    key = tiny_stack.ratchet("keys", "create", "--role", "client", "--name", "ledger")["key"]
    return Ledger(tiny_stack.base_url, key, tiny_folder.name)


def operator_url(stack: RunningStack) -> str:
    return role_url(Home.resolve(stack.data_dir), Role.OPERATOR)


def processes(stack: RunningStack, *words: str) -> list[psutil.Process]:
    """Descendants of the stack whose command line holds all the words."""
    return [
        child
        for child in psutil.Process(stack.process.pid).children(recursive=True)
        if all(word in child.cmdline() for word in words)
    ]


def readyz(stack: RunningStack) -> tuple[int, dict[str, Any], dict[str, str]]:
    try:
        with urllib.request.urlopen(f"{stack.base_url}/readyz", timeout=10) as answer:  # noqa: S310
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused), dict(refused.headers)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0, {}, {}


def wait_until(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.25)


def settled(stack: RunningStack, ledger: Ledger) -> Comparison:
    """The comparison once every known id is stored, or after a minute as it then is."""
    deadline = time.monotonic() + 60
    while True:
        result = compare(ledger, operator_url(stack))
        if not result.missing or time.monotonic() > deadline:
            return result
        time.sleep(0.5)


def show(name: str, result: Comparison) -> None:
    sys.stdout.write(f"\n{name}: {result}\n")


def assert_nothing_lost(result: Comparison) -> None:
    assert result.missing == []
    assert result.different == []
    assert result.duplicates == 0


async def _burst_with(
    ledger: Ledger, fault: Callable[[], None], count: int, max_tokens: int, tag: str
) -> None:
    """Sends a burst and lets the fault strike once some answers are whole and others are under way."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=240)
    ) as session:
        burst = asyncio.ensure_future(ledger.burst(session, count, max_tokens, tag))
        while sum(bool(entry.text) for entry in ledger.entries) < count // 4 and not burst.done():
            await asyncio.sleep(0.02)
        await asyncio.get_running_loop().run_in_executor(None, fault)
        await burst


def test_gateway_killed_during_200_requests_loses_nothing_delivered(
    tiny_stack: RunningStack, ledger: Ledger
) -> None:
    def kill_gateway() -> None:
        victims = processes(tiny_stack, "gateway")
        assert victims, "no gateway process found"
        for victim in victims:
            victim.kill()

    async def story() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
            await ledger.burst(session, 40, 8, "before")
        await _burst_with(ledger, kill_gateway, 200, 48, "during")

    asyncio.run(story())
    wait_until(lambda: readyz(tiny_stack)[0] == 200, 120, "the gateway is back")
    result = settled(tiny_stack, ledger)
    show("gateway -9", result)
    assert_nothing_lost(result)
    assert result.delivered >= 40
    assert any(entry.error for entry in ledger.entries), "the kill struck no request"


def test_postgres_away_does_not_stop_serving(tiny_stack: RunningStack, ledger: Ledger) -> None:
    home = Home.resolve(tiny_stack.data_dir)
    server = EmbeddedPostgres(home.postgres, home.secrets / "owner.password")
    asyncio.run(_burst_with(ledger, lambda: server.stop(immediate=True), 60, 24, "stopped"))
    delivered = [entry.done for entry in ledger.entries]
    server.start()
    result = settled(tiny_stack, ledger)
    show("postgres stopped and started", result)
    assert all(delivered)
    assert_nothing_lost(result)
    assert result.stored == 60


def test_engine_killed_answers_503_with_the_reason_and_comes_back_proved(
    tiny_stack: RunningStack, ledger: Ledger
) -> None:
    def kill_engine() -> None:
        victims = processes(tiny_stack, "vllm.entrypoints.openai.api_server")
        assert victims, "no engine process found"
        for victim in victims:
            victim.kill()

    asyncio.run(_burst_with(ledger, kill_engine, 60, 64, "engine"))
    assert any(entry.error for entry in ledger.entries), "the kill struck no request"

    wait_until(lambda: readyz(tiny_stack)[0] == 503, 30, "/readyz says 503")
    status, body, headers = readyz(tiny_stack)
    assert (status, "Retry-After" in {name.title() for name in headers}) == (503, True)
    assert "engine" in json.dumps(body)

    async def refused() -> None:
        async with aiohttp.ClientSession() as session:
            entry = await ledger.stream(session, "while away", 4)
            assert entry.status == 503

    asyncio.run(refused())
    wait_until(lambda: readyz(tiny_stack)[0] == 200, 240, "the engine is back")

    async def served() -> None:
        async with aiohttp.ClientSession() as session:
            entry = await ledger.stream(session, "back again", 4)
            assert entry.done

    asyncio.run(served())
    result = settled(tiny_stack, ledger)
    show("engine -9", result)
    assert_nothing_lost(result)
