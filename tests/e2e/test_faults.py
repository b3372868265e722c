"""Real processes are killed under load; what clients received is held against what was stored."""

import asyncio
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import psycopg
import pytest

from ratchet.db.engine import libpq_url
from ratchet.db.roles import Role
from ratchet.demo.stack import RunningStack
from ratchet.embedded import EmbeddedPostgres
from ratchet.home import Home
from ratchet.secrets_store import role_url
from tests.support.ledger import Comparison, Ledger, compare
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture
def ledger(tiny_stack: RunningStack, tiny_folder: Path) -> Ledger:
    key = tiny_stack.ratchet("keys", "create", "--role", "client", "--name", "ledger")["key"]
    wait_until(lambda: knows(tiny_stack, key), 30, "the gateway knows the new key")
    return Ledger(tiny_stack.base_url, key, tiny_folder.name)


def knows(stack: RunningStack, key: str) -> bool:
    """Whether the gateway lets a key in; one whose LISTEN was cut learns of new keys by its next poll."""
    request = urllib.request.Request(  # noqa: S310
        f"{stack.base_url}/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


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


def accepts_connections(stack: RunningStack) -> bool:
    try:
        psycopg.connect(libpq_url(operator_url(stack))).close()
    except psycopg.OperationalError:
        return False
    return True


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

    def keep_postgres_away() -> None:
        tiny_stack.process.send_signal(signal.SIGSTOP)
        postmaster = server.pid()
        assert postmaster is not None
        os.kill(postmaster, signal.SIGQUIT)
        wait_until(lambda: not server.is_running(), 30, "PostgreSQL is gone")

    asyncio.run(_burst_with(ledger, keep_postgres_away, 60, 24, "stopped"))
    away = not server.is_running()
    tiny_stack.process.send_signal(signal.SIGCONT)
    wait_until(lambda: accepts_connections(tiny_stack), 60, "the supervisor starts PostgreSQL again")
    result = settled(tiny_stack, ledger)
    show("postgres stopped and started", result)
    assert away
    assert all(entry.done for entry in ledger.entries)
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


def test_swapped_weights_behind_the_right_name_and_fingerprint_are_not_served(
    tiny_stack: RunningStack, ledger: Ledger, tmp_path: Path
) -> None:
    [policy] = tiny_stack.ratchet("policy", "list")
    weights = Path(tiny_stack.ratchet("policy", "show", policy["ref"])["folder"]) / "model.safetensors"
    true_bytes = weights.read_bytes()
    impostor = make_tiny_model(tmp_path / "impostor", seed=1)

    def restart_engine_on(content: bytes) -> None:
        weights.chmod(0o644)
        weights.write_bytes(content)
        for engine in processes(tiny_stack, "vllm.entrypoints.openai.api_server"):
            engine.kill()

    async def ask_once() -> int:
        async with aiohttp.ClientSession() as session:
            return (await ledger.stream(session, "who are you", 4)).status

    restart_engine_on((impostor / "model.safetensors").read_bytes())
    try:
        wait_until(lambda: "nats" in json.dumps(readyz(tiny_stack)[1]), 240, "the impostor is found out")
        assert readyz(tiny_stack)[0] == 503
        assert asyncio.run(ask_once()) == 503
        assert standing_alarms(tiny_stack) == ["stamp_mismatch"]
    finally:
        restart_engine_on(true_bytes)
    wait_until(lambda: readyz(tiny_stack)[0] == 200, 240, "the true weights are proved again")
    assert asyncio.run(ask_once()) == 200
    wait_until(lambda: standing_alarms(tiny_stack) == [], 30, "the alarm is cleared")
    result = settled(tiny_stack, ledger)
    show("weights swapped", result)
    assert_nothing_lost(result)


def standing_alarms(stack: RunningStack) -> list[str]:
    """Kinds of the alarms that stand."""
    with psycopg.connect(libpq_url(operator_url(stack))) as connection:
        rows = connection.execute("SELECT kind FROM operations.alarm WHERE cleared_at IS NULL").fetchall()
    return [str(row[0]) for row in rows]
