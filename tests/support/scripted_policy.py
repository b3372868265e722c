"""Policies of known answers behind vLLM's chat API, in a thread: what they say follows from the prompt."""

import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FINGERPRINT = "rt-scripted"
Says = Callable[[str], str]


@dataclass
class ScriptedPolicies:
    """What the server was asked, and when it begins to fail."""

    says: Mapping[str, Says]
    """By policy ref."""
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    fail_from: int | None = None
    """Number of the first request that is refused for good."""
    fingerprint: str = FINGERPRINT
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asked_of(self, policy: str) -> list[str]:
        """The prompts a policy answered, in the order they came."""
        return [one["messages"][-1]["content"] for one in self.requests if one["model"] == policy]


@contextmanager
def scripted_policies(says: Mapping[str, Says]) -> Generator[ScriptedPolicies]:
    """A server for as long as the context lasts."""
    state = ScriptedPolicies(says)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with state.lock:
                state.requests.append(body)
                failing = state.fail_from is not None and len(state.requests) > state.fail_from
            if failing:
                self._send(422, {"error": {"message": "told to fail"}})
                return
            text = state.says[body["model"]](body["messages"][-1]["content"])
            limit = body["max_completion_tokens"]
            words = text.split(" ")
            self._send(
                200,
                {
                    "id": "x", "object": "chat.completion", "created": 0, "model": body["model"],
                    "system_fingerprint": state.fingerprint,
                    "usage": {"prompt_tokens": 1, "completion_tokens": min(len(words), limit),
                              "total_tokens": 1 + min(len(words), limit)},
                    "choices": [{"index": 0, "finish_reason": "length" if len(words) > limit else "stop",
                                 "message": {"role": "assistant", "content": " ".join(words[:limit])}}],
                },
            )  # fmt: skip

        def _send(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
