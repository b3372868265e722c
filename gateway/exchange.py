"""One HTTP request and its answer at ASGI's level: a bounded body, a client that may leave."""

import asyncio
import math
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from gateway.errors import ApiError

BODY_TIMEOUT_S = 60
JSON_TYPE = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"


class Exchange:
    """What a request's story needs of HTTP.

    Attributes:
        started: Whether the status line was sent.
        client_gone: Whether the client left before the end.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._extra: list[tuple[bytes, bytes]] = []
        self._watch: asyncio.Task[None] | None = None
        self.started = False
        self.client_gone = False
        self._ended = False

    def header(self, name: str) -> str | None:
        """A request header, by its lower-case name."""
        value = self._headers.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    def add_header(self, name: str, value: str) -> None:
        """A header of the answer, whatever the answer will be."""
        self._extra.append((name.encode("latin-1"), value.encode("latin-1", "replace")))

    async def body(self, limit: int) -> bytes:
        """The request's body.

        Raises:
            ApiError: 413 when it is larger, 408 when it does not arrive.
            asyncio.CancelledError: The client left.
        """
        declared = self.header("content-length")
        if declared is not None and declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        self.client_gone = True
                        raise asyncio.CancelledError
                    piece: bytes = message.get("body", b"")
                    size += len(piece)
                    if size > limit:
                        raise _too_large(limit)
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError:
            raise ApiError(
                408, "body_timeout", f"the body did not arrive within {BODY_TIMEOUT_S} s"
            ) from None

    def watch_client(self) -> None:
        """From now on the current task is cancelled when the client leaves; needs the body to be read."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._watch = asyncio.create_task(self._cancel_when_gone(task))

    def unwatch_client(self) -> None:
        """The client may leave."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def start_stream(self) -> None:
        """Sends the head of a stream of events."""
        await self._start(200, EVENT_STREAM, [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")])

    async def piece(self, data: bytes) -> None:
        """Sends bytes of a stream; waits while the client does not take them."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Sends the last bytes."""
        self._ended = True
        self.unwatch_client()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def json(
        self, status: int, document: bytes, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        """Sends a whole answer."""
        length = str(len(document)).encode("ascii")
        await self._start(status, JSON_TYPE, [(b"content-length", length), *(headers or [])])
        await self.end(document)

    async def fail(self, error: ApiError) -> None:
        """Tells the client, unless it has everything: as an answer, or as the last event of a stream."""
        if self._ended:
            return
        if self.started:
            await self.end(b"data: " + error.body() + b"\n\n")
            return
        headers: list[tuple[bytes, bytes]] = []
        if error.retry_after_s is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode("ascii")))
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self.json(error.status, error.body(), headers)

    async def _start(self, status: int, content_type: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        start: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", content_type), *headers, *self._extra],
        }
        await self._send(start)

    async def _cancel_when_gone(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_gone = True
        task.cancel()


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body is larger than {limit} bytes")
