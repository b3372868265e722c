"""`python -m benchmarks.judging MODEL`: our judge client beside vLLM's benchmark client, on one vLLM server.

Both send the same pairwise judge prompts, with the same concurrency and the same length of answer; every run
has prompts of its own, so none profits from the prefix cache of another. The figure is requests a second.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from vllm.benchmarks.serve import add_cli_args, main_async
from vllm.utils.argparse_utils import FlexibleArgumentParser

from benchmarks.paired import interleaved, paired_ratio
from evaluator.judge.client import JudgeClient, JudgeEndpoint
from evaluator.judge.templates import TEMPLATES, Prompt
from ratchet.supervisor import cores, vllm
from ratchet.supervisor.settings import SupervisorSettings

KEY, SERVED = "benchmark", "judge"
START_S = 600


@contextlib.contextmanager
def server(model: Path, folder: Path) -> Iterator[str]:
    """vLLM on a model folder, as `ratchet up` starts it; its address."""
    with socket.socket() as probe:
        probe.bind((vllm.HOST, 0))
        port = int(probe.getsockname()[1])
    boot = vllm.Boot(model, SERVED, 2048, port, "rt-benchmark", tuple(cores.usable_cores()), KEY)
    settings = SupervisorSettings()
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            vllm.command(boot, settings), env=vllm.variables(boot, settings), stdout=log, stderr=log
        )
    try:
        url = f"http://{vllm.HOST}:{port}"
        deadline = time.monotonic() + START_S
        while not healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit((folder / "engine.log").read_text()[-2000:])
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def healthy(url: str) -> bool:
    """Whether the server answers."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def prompts_of(run: int, count: int) -> list[Prompt]:
    """Judge prompts that no other run has."""
    template = TEMPLATES["helpfulness"]
    return [
        template.render(
            f"Run {run}, question {place}: what happened in the harbour town?",
            f"{place} boats left at dawn, and {run} came back. " * 6,
            f"Nobody knows; {run} letters and {place} stamps were lost. " * 4,
        )
        for place in range(count)
    ]


async def ours(url: str, options: argparse.Namespace, run: int) -> float:
    """Requests a second of our client."""
    endpoint = JudgeEndpoint(f"{url}/v1", SERVED, KEY, options.concurrency, 600, 0, options.max_tokens, 0.0)
    prompts = prompts_of(run, options.requests)
    async with JudgeClient(endpoint) as client:
        started = time.perf_counter()
        replies = await client.ask_all(prompts)
        seconds = time.perf_counter() - started
    failed = [reply.error for reply in replies if reply.error]
    if failed:
        sys.exit(f"{len(failed)} requests failed: {failed[0]}")
    return options.requests / seconds


async def theirs(url: str, options: argparse.Namespace, folder: Path, run: int) -> float:
    """Requests a second of vLLM's client."""
    data = folder / f"prompts-{run}.jsonl"
    prompts = [f"{one.system}\n\n{one.user}" for one in prompts_of(run, options.requests)]
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    words = {
        "backend": "openai-chat", "base-url": url, "endpoint": "/v1/chat/completions",
        "model": str(options.model), "served-model-name": SERVED, "dataset-name": "custom",
        "dataset-path": str(data), "custom-output-len": options.max_tokens, "temperature": 0,
        "num-prompts": options.requests, "max-concurrency": options.concurrency,
    }  # fmt: skip
    arguments = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    asked = parser.parse_args([*arguments, "--disable-tqdm", "--disable-shuffle", "--skip-chat-template"])
    with contextlib.redirect_stdout(io.StringIO()):
        result = await main_async(asked)
    if result["completed"] != options.requests:
        sys.exit(f"vLLM's client completed {result['completed']} of {options.requests} requests")
    return float(result["request_throughput"])


def main() -> None:
    """Starts the server, measures pairs of runs, and prints their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judging", description=__doc__)
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=32)
    options = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = KEY
    with tempfile.TemporaryDirectory() as name, server(options.model, Path(name)) as url:
        folder = Path(name)

        async def story() -> tuple[list[float], list[float]]:
            await ours(url, options, -1)
            return await interleaved(
                options.pairs,
                lambda run: ours(url, options, run),
                lambda run: theirs(url, options, folder, run),
            )

        mine, peer = asyncio.run(story())
    ratio = paired_ratio(mine, peer)
    sys.stdout.write(
        f"requests a second, {options.concurrency} at once: ours {' '.join(f'{one:.2f}' for one in mine)},"
        f" vLLM's client {' '.join(f'{one:.2f}' for one in peer)}\n"
        f"ratio {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] over {ratio.pairs} pairs,"
        f" interquartile range {ratio.spread:.3f}\n"
    )


if __name__ == "__main__":
    main()
