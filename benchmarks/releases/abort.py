"""How fast an abort reaches every gateway process, from the policy stamps that clients saw.

    python -m benchmarks.releases.abort --switches 200 --processes 4

Every process has clients that ask without a pause, as users of the bad policy. The clock starts before the
transaction that adds the abort's plan, without its other rows, begins; a process has followed once the last
request that it still sent to the bad policy was asked. A request asked after a process had first answered by
the good policy, and answered by the bad one, is a wrong one.
"""

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field

import aiohttp
import numpy as np

from benchmarks.releases.ground import CHAT, MODEL, Ground, standing_ground
from ratchet.plan import Arm, PlannedArm

SETTLE_S = 0.25
FOLLOWED_WITHIN_S = 10.0


@dataclass
class Stamps:
    """What the clients of one process saw: when each request was asked, and which policy answered."""

    asked: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    failed: int = 0


async def client(session: aiohttp.ClientSession, url: str, pause_s: float, stamps: Stamps) -> None:
    """Asks until it is cancelled."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "user": "ada", "max_tokens": 4}
    while True:
        asked_at = time.monotonic()
        async with session.post(url + CHAT, json=body) as answer:
            await answer.read()
            if answer.status == 200:
                stamps.asked.append((asked_at, answer.headers["x-ratchet-policy"]))
            else:
                stamps.failed += 1
        await asyncio.sleep(pause_s)


async def followed(every: list[Stamps], policy: str, since: float) -> None:
    """Waits until every process has answered by a policy since then."""
    async with asyncio.timeout(FOLLOWED_WITHIN_S):
        while not all(any(at >= since and by == policy for at, by in s.asked[-50:]) for s in every):
            await asyncio.sleep(0.005)


def judged(stamps: Stamps, bad: str, since: float) -> tuple[float, int]:
    """Milliseconds until a process had followed, and its wrong answers afterwards."""
    after = [(at, by) for at, by in stamps.asked if at >= since]
    last_bad = max((at for at, by in after if by == bad), default=since)
    first_good = min(at for at, by in after if by != bad)
    return (last_bad - since) * 1000, sum(by == bad and at > first_good for at, by in after)


async def measure(ground: Ground, switches: int, clients: int, pause_s: float) -> dict[str, object]:
    """Runs the switches."""
    every = [Stamps() for _ in ground.gateways]
    latencies: list[float] = []
    slowest: list[float] = []
    wrong = 0
    promoted, good = PlannedArm(Arm.PRODUCTION, ground.new, 1.0), PlannedArm(Arm.PRODUCTION, ground.old, 1.0)
    async with ground.session() as session:
        work = [
            asyncio.create_task(client(session, gateway.url, pause_s, stamps))
            for gateway, stamps in zip(ground.gateways, every, strict=True)
            for _ in range(clients)
        ]
        began = time.monotonic()
        for _ in range(switches):
            await asyncio.to_thread(ground.plan, promoted)
            await followed(every, ground.new, time.monotonic())
            await asyncio.sleep(SETTLE_S)
            since = time.monotonic()
            await asyncio.to_thread(ground.plan, good)
            await followed(every, ground.old, since)
            await asyncio.sleep(SETTLE_S)
            seen = [judged(stamps, ground.new, since) for stamps in every]
            latencies += [latency for latency, _ in seen]
            slowest.append(max(latency for latency, _ in seen))
            wrong += sum(count for _, count in seen)
        seconds = time.monotonic() - began
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    requests = sum(len(stamps.asked) for stamps in every)
    return {
        "switches": switches,
        "processes": len(every),
        "requests": requests,
        "requests_per_s": round(requests / seconds, 1),
        "failed": sum(stamps.failed for stamps in every),
        "process_p50_ms": round(float(np.quantile(latencies, 0.5)), 1),
        "process_p99_ms": round(float(np.quantile(latencies, 0.99)), 1),
        "slowest_process_p50_ms": round(float(np.quantile(slowest, 0.5)), 1),
        "slowest_process_p99_ms": round(float(np.quantile(slowest, 0.99)), 1),
        "wrong": wrong,
    }


def main() -> None:
    """Measures and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--switches", type=int, default=200)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--clients", type=int, default=2, help="of each process")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between a client's requests")
    options = parser.parse_args()
    with standing_ground(options.processes, gap_s=0.001, tokens=4) as ground:
        found = asyncio.run(measure(ground, options.switches, options.clients, options.pause))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
