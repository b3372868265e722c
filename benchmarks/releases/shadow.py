"""What a shadow costs the users: their latency with the shadow off, on for every request, and hanging,
interleaved.

    python -m benchmarks.releases.shadow --rounds 20 --requests 100

A round measures all three in turn, every second round in the opposite order, so that a drift of the
machine falls on all alike. Reported are the ratios of each round's median and 99 % quantile to those with
the shadow off, with the bootstrap interval of their median over rounds.
"""

import argparse
import asyncio
import json
import time
from dataclasses import asdict

import aiohttp
import numpy as np

from benchmarks.paired import paired_ratio
from benchmarks.releases.ground import CHAT, MODEL, Ground, standing_ground
from ratchet.plan import Arm, PlannedArm

MODES = ("off", "on", "hanging")
SETTLE_S = 0.3


async def one(session: aiohttp.ClientSession, url: str, number: int) -> float:
    """Seconds of one streamed answer."""
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": f"question {number}"}], "stream": True,
        "user": f"u{number}",
    }  # fmt: skip
    began = time.perf_counter()
    async with session.post(url + CHAT, json=body) as answer:
        text = await answer.read()
        if answer.status != 200 or not text.endswith(b"[DONE]\n\n"):
            raise RuntimeError(f"an answer failed: {answer.status} {text[-200:]!r}")
    return time.perf_counter() - began


async def block(ground: Ground, mode: str, requests: int, clients: int) -> np.ndarray:
    """Latencies of so many requests in one mode, in milliseconds; copies of the one before are ended."""
    production = PlannedArm(Arm.PRODUCTION, ground.old, 1.0)
    shadow = () if mode == "off" else (PlannedArm(Arm.SHADOW, ground.new, 1.0),)
    fault = "hang" if mode == "hanging" else None
    await asyncio.to_thread(ground.new_engine.tell, fault=fault, fault_after=1)
    for arms in ((production,), (production, *shadow)):
        await asyncio.to_thread(ground.plan, *arms)
        await asyncio.sleep(SETTLE_S)
    latencies: list[float] = []
    left = iter(range(requests))

    async with ground.session() as session:

        async def client() -> None:
            for number in left:
                latencies.append(await one(session, ground.gateways[0].url, number))

        await asyncio.gather(*(client() for _ in range(clients)))
    return np.array(latencies) * 1000


async def measure(ground: Ground, rounds: int, requests: int, clients: int) -> dict[str, object]:
    """Runs the rounds."""
    await block(ground, "on", requests, clients)
    seen: dict[str, list[np.ndarray]] = {mode: [] for mode in MODES}
    for number in range(rounds):
        for mode in MODES if number % 2 == 0 else reversed(MODES):
            seen[mode].append(await block(ground, mode, requests, clients))
    found: dict[str, object] = {"rounds": rounds, "requests": requests, "clients": clients}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        of_mode = {mode: [float(np.quantile(times, share)) for times in seen[mode]] for mode in MODES}
        found[f"{name}_ms"] = {mode: round(float(np.median(values)), 2) for mode, values in of_mode.items()}
        for mode in MODES[1:]:
            ratio = paired_ratio(of_mode[mode], of_mode["off"])
            found[f"{name}_{mode}_over_off"] = {key: round(value, 4) for key, value in asdict(ratio).items()}
    copies = ground.gateways[0].metric("ratchet_shadow_requests_total", ratchet_status="copied")
    dropped = ground.gateways[0].metric("ratchet_shadow_requests_total", ratchet_status="dropped")
    return {**found, "copied": copies, "dropped": dropped}


def main() -> None:
    """Measures and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    with standing_ground(1, gap_s=0.01, tokens=16) as ground:
        found = asyncio.run(measure(ground, options.rounds, options.requests, options.clients))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
