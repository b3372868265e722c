"""Requests for the recorder's tests, and real processes that record until they are killed."""

import os
import random
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import SecretStr

from gateway.recorder import Recorder
from gateway.records import Closing, Opening
from ratchet.ids import new_id
from ratchet.settings import GatewaySettings

NOWHERE = "postgresql://ratchet_gateway:x@127.0.0.1:1/ratchet"
"""Nobody listens there: PostgreSQL is away."""


def opening(identity: UUID | None = None, **fields: Any) -> Opening:
    """A plain streaming request, with some fields changed."""
    usual: dict[str, Any] = {
        "id": identity or new_id(),
        "kind": "chat",
        "stream": True,
        "model": "smollm2",
        "policy": "smollm2@0123456789ab",
        "pinned": False,
        "decode": "d" * 64,
        "decode_overridden": ["temperature"],
        "arm": "production",
        "stage": "production",
        "plan_version": 7,
        "key_id": UUID(int=5),
        "user_id": "ann",
        "session_id": "s1",
        "conversation_id": "c" * 32,
        "history_hash": "h" * 64,
        "prompt_hash": "p" * 64,
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "parameters_asked": {"temperature": 1.5},
        "parameters_used": {"temperature": 0.7, "max_tokens": 64},
        "trace_id": "t" * 32,
        "gateway": "gateway-1",
        "queue_ms": 0.25,
    }
    return Opening(**{**usual, **fields})


def closing(**fields: Any) -> Closing:
    """How a plain request ends well, with some fields changed."""
    usual: dict[str, Any] = {
        "status": "ok",
        "http_status": 200,
        "stamp": "verified",
        "fingerprint": "0123456789ab",
        "finish_reason": "stop",
        "prompt_tokens": 6,
        "output_tokens": 3,
        "ttft_ms": 12.5,
        "itl_p50_ms": 7.0,
        "itl_p99_ms": 9.0,
        "duration_ms": 40.0,
    }
    return Closing(**{**usual, **fields})


def settings(url: str, spool_dir: Path, **fields: Any) -> GatewaySettings:
    """The gateway's settings around one database and one spool."""
    return GatewaySettings(database_url=SecretStr(url), spool_dir=spool_dir, **fields)


def record_until_killed(url: str, spool_dir: Path, pipe: Connection, seed: int) -> None:
    """Records requests, several under way at once, and tells of each step after it returned.

    Sends `("begin", id)`, `("delta", id, text)` and `("end", id)`.
    """
    chance = random.Random(seed)
    recorder = Recorder(settings(url, spool_dir, spool_fsync_interval_s=0.05), "writer")
    recorder.start()
    under_way: list[tuple[UUID, Any]] = []
    while True:
        if len(under_way) < 8:
            identity = new_id()
            under_way.append((identity, recorder.begin(opening(identity))))
            pipe.send(("begin", identity))
        place = chance.randrange(len(under_way))
        identity, handle = under_way[place]
        if chance.random() < 0.8:
            text = chance.choice(("word ", "\x00", "\ud800", "é", "x" * 20_000))
            handle.delta(0, text)
            pipe.send(("delta", identity, text))
        else:
            handle.end(closing())
            pipe.send(("end", identity))
            under_way.pop(place)


def adopt_and_stop(url: str, spool_dir: Path, start: Any, pipe: Connection) -> None:
    """A gateway that starts together with others, adopts what it can get, and tells how it went."""
    recorder = Recorder(settings(url, spool_dir), f"adopter-{os.getpid()}")
    start.wait()
    recorder.start()
    recorder.stop(30)
    pipe.send(recorder.status())
