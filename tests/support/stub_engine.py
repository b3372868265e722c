"""A stand-in for vLLM's server, as a process of its own: for faults that no real engine commits on demand.

It speaks as vLLM 0.32 does: the role first, a chunk a token, the fingerprint in the last data chunk only. How
it behaves is told over HTTP (`POST /stub`), what it was asked is to be read there (`GET /stub`).
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import orjson
import uvicorn

ROOT = Path(__file__).resolve().parents[2]
KEY = "stub-engine-key"
CONTEXT = 4096
TEMPLATE = "<{role}>{content}\n"
CHAT = [{"role": "user", "content": "Are you the stub?"}]
TEXT = "The stub says"

Json = dict[str, Any]


def token_ids(text: str) -> list[int]:
    """A byte is a token."""
    return [1, *text.encode()]


def chat_ids(messages: list[Json], template: str) -> list[int]:
    """Another template gives others."""
    return token_ids("".join(template.format_map(message) for message in messages))


def logprobs(ids: list[int], weights: int) -> list[float | None]:
    """What weights of this number say: another number, another model."""
    return [
        None,
        *(-((token * 7 + place * 3 + weights * 11) % 97) / 10 for place, token in enumerate(ids[1:])),
    ]


def golden(weights: int = 0) -> list[Json]:
    """Golden entries of the policy whose weights have this number."""
    return [
        {"kind": kind, name: value, "token_ids": ids, "logprobs": logprobs(ids, weights)}
        for kind, name, value, ids in (
            ("text", "text", TEXT, token_ids(TEXT)),
            ("chat", "messages", CHAT, chat_ids(CHAT, TEMPLATE)),
        )
    ]


@dataclass(frozen=True)
class Behaviour:
    """What the stub does.

    Attributes:
        model: Name it serves.
        fingerprint: What answers carry; None: nothing.
        weights: Number of the weights it holds.
        tokens: Tokens of an answer, if the request allows so many.
        first_s: Seconds before the first token.
        gap_s: Seconds between tokens.
        status: Status of generation requests that are not proofs.
        fault: `die`, `cut`, `hang`, `garbage`, `error` or `no_done` after `fault_after` tokens.
        fault_after: Tokens before the fault.
        health: Status of `/health`.
        tool_call: Answers chats with a call of the first tool.
        text: What each token says; `{}` is its number.
        template: How a chat becomes a prompt.
    """

    model: str
    fingerprint: str | None = "stub-1"
    weights: int = 0
    tokens: int = 8
    first_s: float = 0.0
    gap_s: float = 0.0
    status: int = 200
    fault: str | None = None
    fault_after: int = 3
    health: int = 200
    tool_call: bool = False
    text: str = "w{} "
    template: str = TEMPLATE


@dataclass
class Server:
    """The stub's state and its ASGI application."""

    behaviour: Behaviour
    requests: list[Json] = field(default_factory=list[Json])
    cancelled: int = 0
    proofs: int = 0
    in_flight: int = 0
    written: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"]
        sender = Sender(send)
        if (
            path.startswith("/v1/")
            and dict(scope["headers"]).get(b"authorization") != f"Bearer {KEY}".encode()
        ):
            await sender.json({"error": "Unauthorized"}, 401)
            return
        document: Json = orjson.loads(body) if body else {}
        if path == "/stub":
            await self.told(document, sender)
        elif path == "/health":
            await sender.json({}, self.behaviour.health)
        elif path == "/v1/models":
            await sender.json({"data": [{"id": self.behaviour.model, "max_model_len": CONTEXT}]})
        elif path == "/tokenize":
            messages = document.get("messages")
            ids = chat_ids(messages, self.behaviour.template) if messages else token_ids(document["prompt"])
            await sender.json({"tokens": ids, "count": len(ids), "max_model_len": CONTEXT})
        elif document.get("prompt_logprobs") is not None:
            self.proofs += 1
            await sender.json(self.proof(document))
        else:
            await self.generate(path, document, receive, sender)

    async def told(self, document: Json, sender: "Sender") -> None:
        """Changes the behaviour, or tells what happened."""
        if document:
            self.behaviour = replace(self.behaviour, **document)
        await sender.json(
            {
                "requests": self.requests,
                "cancelled": self.cancelled,
                "proofs": self.proofs,
                "in_flight": self.in_flight,
                "written": self.written,
                "behaviour": asdict(self.behaviour),
            }
        )

    def proof(self, document: Json) -> Json:
        """Scores a prompt of token ids."""
        ids: list[int] = document["prompt"]
        scored = [
            None if value is None else {str(token): {"logprob": value, "rank": 1, "decoded_token": "?"}}
            for token, value in zip(ids, logprobs(ids, self.behaviour.weights), strict=True)
        ]
        return {
            "id": "cmpl-proof",
            "object": "text_completion",
            "model": self.behaviour.model,
            "choices": [{"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": scored}],
            "usage": {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1},
            "system_fingerprint": self.behaviour.fingerprint,
        }

    async def generate(self, path: str, document: Json, receive: Any, sender: "Sender") -> None:
        """One answer; a client that leaves is counted."""
        self.requests.append(document)
        told = self.behaviour
        if told.status != 200:
            error = {
                "message": "the stub was told to fail",
                "type": "stub",
                "param": None,
                "code": told.status,
            }
            await sender.json({"error": error}, told.status)
            return
        self.in_flight += 1
        work = asyncio.ensure_future(self.write(path, document, told, sender))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            self.cancelled += 1
            work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
        self.in_flight -= 1
        if work.done() and not work.cancelled() and work.exception() is not None:
            raise work.exception()  # type: ignore[misc]

    async def write(self, path: str, document: Json, told: Behaviour, sender: "Sender") -> None:
        """The answer itself."""
        chat = path.endswith("/chat/completions")
        wanted = document.get("max_completion_tokens") or document.get("max_tokens") or told.tokens
        count = min(told.tokens, wanted)
        reason = "length" if count == wanted else "stop"
        choices = range(document.get("n", 1))
        await asyncio.sleep(told.first_s)
        if not document.get("stream"):
            await sender.json(self.whole(chat, told, count, reason, choices))
            return
        await self.stream(chat, document, told, count, reason, choices, sender)

    def whole(self, chat: bool, told: Behaviour, count: int, reason: str, choices: range) -> Json:
        """The body of an answer that was not asked for as a stream; the gateway never asks so."""
        text = "".join(told.text.format(number) for number in range(count))
        said: Json = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {
            **self.head(chat),
            "choices": [{"index": index, **said, "finish_reason": reason} for index in choices],
            "usage": usage(count * len(choices)),
            "system_fingerprint": told.fingerprint,
        }

    async def stream(
        self,
        chat: bool,
        document: Json,
        told: Behaviour,
        count: int,
        reason: str,
        choices: range,
        sender: "Sender",
    ) -> None:
        """A chunk for each token of each choice."""
        options = document.get("stream_options") or {}
        head = self.head(chat)
        if chat:
            head["object"] = "chat.completion.chunk"
        await sender.start_events()
        if chat:
            for index in choices:
                delta = {"role": "assistant", "content": ""}
                await sender.event(
                    {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
                )
        for number in range(count):
            if number == told.fault_after:
                await self.strike(told, sender)
            if number and told.gap_s:
                await asyncio.sleep(told.gap_s)
            for index in choices:
                last = number == count - 1
                chunk = {
                    **head,
                    "choices": [self.piece(chat, document, told, index, number, reason if last else None)],
                }
                if options.get("continuous_usage_stats"):
                    chunk["usage"] = usage(number + 1)
                await sender.event(chunk)
                self.written += 1
        if told.fault == "no_done":
            await sender.end()
            return
        if options.get("include_usage"):
            tail = {
                "choices": [],
                "usage": usage(count * len(choices)),
                "system_fingerprint": told.fingerprint,
            }
            await sender.event({name: value for name, value in {**head, **tail}.items() if value is not None})
        await sender.raw(b"data: [DONE]\n\n")
        await sender.end()

    def piece(
        self, chat: bool, document: Json, told: Behaviour, index: int, number: int, reason: str | None
    ) -> Json:
        """One token of one choice."""
        text = told.text.format(number)
        said: Json = {"delta": {"content": text}} if chat else {"text": text}
        if chat and told.tool_call:
            function = self.called(document) if number == 0 else {"arguments": " "}
            said = {
                "delta": {
                    "tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": function}]
                }
            }
        return {"index": index, **said, "logprobs": None, "finish_reason": reason}

    @staticmethod
    def called(document: Json) -> Json:
        """A call of the first tool."""
        return {"name": document["tools"][0]["function"]["name"], "arguments": '{"a": 1}'}

    def head(self, chat: bool) -> Json:
        """What every chunk and body begins with."""
        kind = "chat.completion" if chat else "text_completion"
        return {"id": "engine-id", "object": kind, "created": 1_700_000_000, "model": self.behaviour.model}

    async def strike(self, told: Behaviour, sender: "Sender") -> None:
        """Commits the fault, if one was ordered."""
        match told.fault:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "cut":
                raise RuntimeError("the stub was told to cut the connection")
            case "hang":
                await asyncio.Event().wait()
            case "garbage":
                await sender.raw(b"data: {this is not JSON\n\n")
            case "error":
                await sender.event({"error": {"message": "the engine core died", "type": "x", "code": 500}})
            case _:
                pass


class Sender:
    """Answers at ASGI's level."""

    def __init__(self, send: Any) -> None:
        self._send = send

    async def json(self, document: Json, status: int = 200) -> None:
        """A whole answer."""
        headers = [(b"content-type", b"application/json")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": orjson.dumps(document)})

    async def start_events(self) -> None:
        """The head of a stream."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, document: Json) -> None:
        """One chunk."""
        await self.raw(b"data: " + orjson.dumps(document) + b"\n\n")

    async def raw(self, data: bytes) -> None:
        """Any bytes of a stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """The stream's end."""
        await self._send({"type": "http.response.body", "body": b""})


def usage(tokens: int) -> Json:
    """Token counts."""
    return {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}


@dataclass
class StubEngine:
    """The stub as its tests hold it: started, told, asked, killed, started again on the same port."""

    behaviour: Behaviour
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Starts the process; it listens when this returns."""
        command = [sys.executable, "-m", "tests.support.stub_engine", "--port", str(self.port),
                   "--behaviour", json.dumps(asdict(self.behaviour))]  # fmt: skip
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the stub did not start"
        self.port = int(line)
        return self

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def tell(self, **changes: Any) -> None:
        """Changes its behaviour from the next request on."""
        self.behaviour = replace(self.behaviour, **changes)
        self._call(changes)

    def restart(self, **changes: Any) -> None:
        """Another process on the same port."""
        self.kill()
        self.behaviour = replace(self.behaviour, **changes)
        self.start()

    def state(self) -> Json:
        """`requests`, `cancelled`, `proofs`, `in_flight`, `written` (tokens)."""
        return self._call(None)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def _call(self, document: Json | None) -> Json:
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(f"{self.url}/stub", data=data)  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.load(answer)


def main() -> None:
    """Serves until killed; the port is the one line on stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--behaviour", required=True)
    options = parser.parse_args()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", options.port))
    listener.listen(1024)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server = Server(Behaviour(**json.loads(options.behaviour)))
    config = uvicorn.Config(
        server,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="critical",
    )
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
