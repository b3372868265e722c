"""How an engine is asked: the path and the body of its request."""

from typing import Any

from gateway.ask import Ask
from gateway.decode_pin import PinnedRequest
from gateway.fields import Kind

PATHS = {Kind.CHAT: "/v1/chat/completions", Kind.COMPLETION: "/v1/completions"}
STREAM_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
"""Token counts come with every chunk, so that an answer that is cut has its count too."""


def engine_request(ask: Ask, policy: str, request: PinnedRequest) -> dict[str, Any]:
    """The body of an engine's request, which always asks for a stream.

    Args:
        ask: What the client asked.
        policy: `name@version`.
        request: The sampling parameters, decided.
    """
    return {
        "model": policy,
        **ask.prompt,
        **request.parameters,
        "stream": True,
        "stream_options": STREAM_OPTIONS,
    }
