"""`python -m benchmarks.serving`: the gateway beside the same vLLM server asked directly.

Each run opens so many streams at once and reads them to the end. Figures are the mean time to first token and
the output tokens a second over all streams. Every run has prompts of its own, so that no run profits from the
prefix cache of another.
"""

import argparse
import asyncio
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
import psycopg
from rich.console import Console
from rich.progress import Progress

from benchmarks.paired import PairedRatio, interleaved, paired_ratio
from ratchet.db.engine import libpq_url
from ratchet.db.roles import Role
from ratchet.demo.stack import RunningStack, running_stack
from ratchet.home import Home
from ratchet.secrets_store import role_url, shared_key

LEVELS = (1, 8, 32)
MAX_TOKENS = 32
PINNED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


@dataclass(frozen=True)
class Target:
    """A server under measurement, and how long its answers may be.

    Attributes:
        url: Its address, without a path.
        key: Its bearer key.
        model: The name it answers to.
        decode: Sampling parameters to send; the gateway pins them itself.
        max_tokens: Longest answer in tokens.
    """

    url: str
    key: str
    model: str
    decode: dict[str, Any]
    max_tokens: int


@dataclass(frozen=True)
class Run:
    """One run of all its streams.

    Attributes:
        ttft_s: Mean seconds to the first text over the streams.
        tokens_per_s: Output tokens of all streams over the wall time of the run.
    """

    ttft_s: float
    tokens_per_s: float


async def one_stream(session: aiohttp.ClientSession, target: Target, prompt: str) -> tuple[float, int]:
    """Reads one answer; returns seconds to the first text, and output tokens."""
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": target.max_tokens,
        **target.decode,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first = 0.0
    tokens = 0
    headers = {"Authorization": f"Bearer {target.key}"}
    async with session.post(f"{target.url}/v1/chat/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = orjson.loads(line[6:])
            if chunk.get("error"):
                raise RuntimeError(str(chunk["error"]))
            if not first and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - started
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    return first or time.perf_counter() - started, tokens


async def one_run(session: aiohttp.ClientSession, target: Target, streams: int, run: int) -> Run:
    """Opens all streams at once."""
    prompts = [f"Story {streams}-{run}-{index}: tell me at length what happened in the harbour town that day."
               for index in range(streams)]  # fmt: skip
    started = time.perf_counter()
    done = await asyncio.gather(*(one_stream(session, target, prompt) for prompt in prompts))
    seconds = time.perf_counter() - started
    return Run(sum(ttft for ttft, _ in done) / streams, sum(tokens for _, tokens in done) / seconds)


async def measure(
    gateway: Target, direct: Target, pairs: int, levels: tuple[int, ...]
) -> dict[str, dict[str, PairedRatio]]:
    """Ratios gateway over direct for each number of streams: time to first token, time per output token."""
    results: dict[str, dict[str, PairedRatio]] = {}
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    with Progress(console=Console(stderr=True)) as progress:
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            for streams in levels:
                task = progress.add_task(f"{streams} streams", total=2 * pairs)

                async def run(target: Target, number: int, streams: int = streams, task: int = task) -> Run:
                    done = await one_run(session, target, streams, number)
                    progress.advance(task)  # type: ignore[arg-type]
                    return done

                for target in (gateway, direct):
                    await one_run(session, target, streams, -1)
                ours, theirs = await interleaved(
                    pairs, lambda number: run(gateway, number), lambda number: run(direct, number)
                )
                results[str(streams)] = {
                    "ttft": paired_ratio([r.ttft_s for r in ours], [r.ttft_s for r in theirs]),
                    "time_per_token": paired_ratio(
                        [1 / r.tokens_per_s for r in ours], [1 / r.tokens_per_s for r in theirs]
                    ),
                }
                progress.console.print(table({str(streams): results[str(streams)]}), soft_wrap=True)
    return results


def targets(stack: RunningStack, model: str, max_tokens: int) -> tuple[Target, Target]:
    """The gateway, and the engine behind it."""
    home = Home.resolve(stack.data_dir)
    key = stack.ratchet("keys", "create", "--role", "client", "--name", "benchmark")["key"]
    with psycopg.connect(libpq_url(role_url(home, Role.OPERATOR))) as connection:
        row = connection.execute(
            "SELECT url, ref, config FROM registry.engine JOIN registry.policy ON engine.policy = ref"
            " JOIN registry.decode_config ON decode_config.digest = decode_digest WHERE state = 'up'"
        ).fetchone()
    if row is None:
        sys.exit("no engine is up")
    url, policy, config = row
    decode = {name: config[name] for name in PINNED}
    direct = Target(url, shared_key(home, "engine"), policy, decode, max_tokens)
    return Target(stack.base_url, key, model, {}, max_tokens), direct


def table(results: dict[str, dict[str, PairedRatio]]) -> str:
    """The results as Markdown."""
    lines = [
        "| streams | figure | pairs | median ratio | 95% interval of the median | IQR of the ratios |",
        "|-|-|-|-|-|-|",
    ]
    for streams, figures in results.items():
        for name, ratio in figures.items():
            low, high = f"{ratio.low:.3f}", f"{ratio.high:.3f}"
            row = (
                streams,
                name,
                ratio.pairs,
                f"{ratio.median:.3f}",
                f"{low} to {high}",
                f"{ratio.spread:.3f}",
            )
            lines.append("| " + " | ".join(str(cell) for cell in row) + " |")
    return "\n".join(lines)


def main() -> None:
    """Starts a stack, measures, prints the table and writes the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--streams", type=int, nargs="+", default=list(LEVELS))
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--data-dir", type=Path, default=Home.resolve().root)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/serving.json"))
    options = parser.parse_args()
    with running_stack(options.data_dir, options.port, options.model) as stack:
        gateway, direct = targets(stack, options.model, options.max_tokens)
        results = asyncio.run(measure(gateway, direct, options.pairs, tuple(options.streams)))
    machine = {
        "processor": platform.processor(),
        "cores": psutil.cpu_count(),
        "max_tokens": options.max_tokens,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": machine,
        "ratios": {
            level: {name: asdict(ratio) for name, ratio in figures.items()}
            for level, figures in results.items()
        },
    }
    options.out.write_text(json.dumps(document, indent=2))
    sys.stdout.write(table(results) + "\n")


if __name__ == "__main__":
    main()
