"""A judge with known biases, as a server process of its own: calibration must find what is put in.

It reads the two answers out of the prompt as a model would; the better one holds the word GOOD. Its chances
are drawn from a generator seeded by the prompt and by how often it was asked that prompt.
"""

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = re.compile(r"<answer-([AB]) \w+>\n(.*?)\n</answer-\1 \w+>", re.DOTALL)


@dataclass(frozen=True)
class Script:
    """How the judge decides, in this order, and how it fails."""

    first: float = 0.0
    """Chance to say A whatever the answers."""
    longer: float = 0.0
    """Then: chance to choose the longer one."""
    right: float = 1.0
    """Then: chance to choose the better one."""
    garbled: float = 0.0
    """Chance to give no verdict at all."""
    fail_first: int = 0
    """So many requests are answered with 503 before it works."""
    status: int = 200
    """Of every answer after those."""

    def chance_of_first(self, good_first: bool, longer_first: bool) -> float:
        """The probability to say A."""
        judged = self.longer * longer_first + (1 - self.longer) * (
            self.right if good_first else 1 - self.right
        )
        return self.first + (1 - self.first) * judged


def serve(script: Script) -> None:
    """Serves until the process is ended; prints its port first."""
    lock = threading.Lock()
    asked: Counter[str] = Counter()
    state = {"requests": 0, "now": 0, "most_at_once": 0}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            self._send(200, {"requests": state["requests"], "most_at_once": state["most_at_once"]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                state["requests"] += 1
                state["now"] += 1
                state["most_at_once"] = max(state["most_at_once"], state["now"])
                failing = state["requests"] <= script.fail_first
                user = body["messages"][-1]["content"]
                asked[user] += 1
                seed = hashlib.sha256(f"{asked[user]}{user}".encode()).digest()
            try:
                if failing or script.status != 200:
                    self._send(503 if failing else script.status, {"error": {"message": "scripted"}})
                else:
                    self._send(200, completion(reply(script, user, random.Random(seed))))
            finally:
                with lock:
                    state["now"] -= 1

        def _send(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            if status == 503:
                self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


def reply(script: Script, user: str, chance: random.Random) -> str:
    """What the judge says."""
    answers = dict(ANSWERS.findall(user))
    if chance.random() < script.garbled:
        return "I would rather not say."
    first = script.chance_of_first("GOOD" in answers["A"], len(answers["A"]) > len(answers["B"]))
    return f"One might think [[{chance.choice('AB')}]].\n[[{'A' if chance.random() < first else 'B'}]]"


def completion(text: str) -> dict[str, Any]:
    """A chat completion in OpenAI's form."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


@contextmanager
def scripted_judge(script: Script) -> Generator[str]:
    """The base URL of a judge that follows the script, for as long as the context lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.scripted_judge", json.dumps(asdict(script))],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("script")
    serve(Script(**json.loads(parser.parse_args().script)))
