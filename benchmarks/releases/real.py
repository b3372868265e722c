"""Releases on real engines: a good candidate is to reach production, one that rambles to be aborted.

    python -m benchmarks.releases.real --production DIR --good DIR --rambling DIR --rambling-decode FILE

It starts a stack of its own, pulls the drill, and sends traffic of so many users until each release has
ended. A decode file, as of `ratchet policy add --decode`, makes another policy of the same folder: a
`logit_bias` that forbids the token which ends answers makes one that rambles. Either candidate may be left
out. Reported are the times that each release took, from its own audit.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from ratchet.demo.stack import RunningStack, running_stack
from ratchet.supervisor.ports import free_port

PROMPTS = (
    "In one sentence, why is the sky blue?",
    "In one sentence, what are pancakes?",
    "In one sentence, what makes a good name for a cat?",
    "In one sentence, how do I learn to swim?",
    "In one sentence, what is the moon?",
    "In one sentence, what should I cook tonight?",
    "In one sentence, why do leaves fall in autumn?",
    "In one sentence, how does a bicycle stay upright?",
)
"""Answers to these end by themselves long before `--max-tokens`, so that one who rambles is seen."""
LOOK_EVERY_S = 2.0
ENDS = ("promoted", "aborted", "failed")


async def traffic(stack: RunningStack, key: str, model: str, users: int, clients: int, tokens: int) -> None:
    """Asks as so many users, each in turn, until it is cancelled."""
    numbers = count()
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def client() -> None:
            while True:
                number = next(numbers)
                body = {
                    "model": model, "user": f"user-{number % users}", "max_tokens": tokens,
                    "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
                }  # fmt: skip
                async with session.post(f"{stack.base_url}/v1/chat/completions", json=body) as answer:
                    await answer.read()

        await asyncio.gather(*(client() for _ in range(clients)))


async def released(stack: RunningStack, model: str, policy: str, plan: str) -> dict[str, Any]:
    """Runs one release under traffic that somebody else sends; returns what its audit says."""
    await asyncio.to_thread(stack.ratchet, "release", "start", policy, "--plan", plan, "--override")
    while True:
        status = await asyncio.to_thread(stack.ratchet, "release", "status", model)
        if status["ended_at"] or status["state"] == "promoted":
            break
        await asyncio.sleep(LOOK_EVERY_S)
    if status["state"] == "promoted":
        await asyncio.to_thread(stack.ratchet, "release", "close", model)
    [told, *_] = await asyncio.to_thread(stack.ratchet, "release", "history", model)
    moments = [
        (event["kind"], event["after"], datetime.fromisoformat(event["at"])) for event in told["events"]
    ]
    began = moments[0][2]
    return {
        "policy": policy,
        "ended": status["state"],
        "reason": next(event["reason"] for event in told["events"] if event["kind"] in ENDS),
        "seconds": {f"{kind} {after.get('stage', '')}": round((at - began).total_seconds(), 1)
                    for kind, after, at in moments},
        "look": status["look"],
    }  # fmt: skip


async def measure(
    stack: RunningStack, model: str, policies: Sequence[str], options: argparse.Namespace
) -> list[Any]:
    """Releases the candidates one after the other, all under the same traffic."""
    key = stack.ratchet("keys", "create", "--role", "client", "--name", "benchmark")["key"]
    asking = asyncio.create_task(
        traffic(stack, key, model, options.users, options.clients, options.max_tokens)
    )
    try:
        return [await released(stack, model, policy, options.plan) for policy in policies]
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def main() -> None:
    """Measures and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("production", "good", "rambling"):
        parser.add_argument(f"--{name}", type=Path, required=name == "production", help="model folder")
    for name in ("good", "rambling"):
        parser.add_argument(f"--{name}-decode", type=Path, help="decode config")
    parser.add_argument("--plan", default="small")
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=96)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ratchet-releases-") as folder,
        running_stack(Path(folder), free_port("127.0.0.1"), str(options.production)) as stack,
    ):
        [production] = stack.ratchet("policy", "list")
        model = production["name"]
        policies: list[str] = []
        for name in ("good", "rambling"):
            candidate, decode = getattr(options, name), getattr(options, f"{name}_decode")
            if candidate is None:
                continue
            words = ["policy", "add", model, "--path", str(candidate)]
            policies.append(stack.ratchet(*words, *(["--decode", str(decode)] if decode else []))["ref"])
        drill = stack.ratchet("release", "drill", model)
        found = asyncio.run(measure(stack, model, policies, options))
    print(json.dumps({"drill": drill, "releases": found}, indent=2))


if __name__ == "__main__":
    main()
