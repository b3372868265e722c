"""Paths, and who answers them."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway import chat, health
from gateway.errors import unknown_model
from gateway.exchange import Exchange
from gateway.fields import Kind
from gateway.parts import Parts
from ratchet.telemetry import PROMETHEUS_CONTENT_TYPE


class Generation:
    """An endpoint that generates, below Starlette's request and response objects: chunks are its hot path."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        await chat.answer(scope["app"].state.parts, self._kind, Exchange(scope, receive, send))


async def list_models(request: Request) -> Response:
    """`GET /v1/models`."""
    parts = _parts(request)
    chat.caller(parts, request.headers.get("authorization"))
    return _json({"object": "list", "data": health.model_list(parts)})


async def one_model(request: Request) -> Response:
    """`GET /v1/models/{name}`."""
    parts = _parts(request)
    chat.caller(parts, request.headers.get("authorization"))
    name = request.path_params["name"]
    for model in health.model_list(parts):
        if model["id"] == name:
            return _json(model)
    raise unknown_model(name)


async def healthz(_: Request) -> Response:
    """`GET /healthz`: the process lives."""
    return _json({"alive": True})


async def readyz(request: Request) -> Response:
    """`GET /readyz`: 200 only when an answer can be generated and recorded."""
    ready, document = health.readiness(_parts(request))
    headers = {} if ready else {"Retry-After": str(health.RETRY_AFTER_S)}
    return _json(document, 200 if ready else 503, headers)


async def metrics(request: Request) -> Response:
    """`GET /metrics`: this process's, for Prometheus."""
    return Response(_parts(request).metrics.prometheus_text(), media_type=PROMETHEUS_CONTENT_TYPE)


ROUTES = [
    Route("/v1/chat/completions", Generation(Kind.CHAT), methods=["POST"]),
    Route("/v1/completions", Generation(Kind.COMPLETION), methods=["POST"]),
    Route("/v1/models", list_models),
    Route("/v1/models/{name:path}", one_model),
    Route("/healthz", healthz),
    Route("/readyz", readyz),
    Route("/metrics", metrics),
]


def _parts(request: Request) -> Parts:
    return request.app.state.parts


def _json(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(document), status, headers, "application/json")
