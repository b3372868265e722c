"""Requests with a larger body than a service ever needs are refused before anything of it is kept."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class BodyLimit:
    """ASGI middleware: reads the whole body, at most so many bytes of it, and answers 413 above.

    Args:
        app: Gets the requests that are let through, their body in one piece.
        most: Bytes.
    """

    def __init__(self, app: App, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _told_length(scope) > self._most:
            await self._refuse(send)
            return
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most:
                await self._refuse(send)
                return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replay, send)

    async def _refuse(self, send: Send) -> None:
        told = json.dumps({"error": f"the body is larger than {self._most} bytes"}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(told)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": told})


def _told_length(scope: Message) -> int:
    """What the header promises; 0 where it promises nothing."""
    told = dict(scope["headers"]).get(b"content-length", b"")
    return int(told) if told.isdigit() else 0
