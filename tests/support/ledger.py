"""A client that keeps the ledger of what it received, to be held against what was stored."""

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psycopg

from ratchet.db.engine import libpq_url


@dataclass
class Received:
    """What one request got.

    Attributes:
        response_id: From the response header; None when no header arrived.
        text: The text so far, as delivered.
        done: `[DONE]` arrived: the answer was delivered whole.
        error: The error event or status, if one came.
        status: HTTP status; 0 when the connection broke before it.
    """

    response_id: str | None = None
    text: str = ""
    done: bool = False
    error: str | None = None
    status: int = 0


@dataclass
class Ledger:
    """Every request one client sent."""

    base_url: str
    key: str
    model: str
    entries: list[Received] = field(default_factory=list[Received])

    async def stream(self, session: aiohttp.ClientSession, prompt: str, max_tokens: int) -> Received:
        """Sends one streaming chat request and notes each piece as it arrives; never raises."""
        entry = Received()
        self.entries.append(entry)
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "stream": True,
        }
        headers = {"Authorization": f"Bearer {self.key}"}
        try:
            async with session.post(
                f"{self.base_url}/v1/chat/completions", json=body, headers=headers
            ) as answer:
                entry.status = answer.status
                entry.response_id = answer.headers.get("x-ratchet-response-id")
                if answer.status != 200:
                    entry.error = await answer.text()
                    return entry
                async for line in answer.content:
                    self._note(entry, line)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            entry.error = entry.error or repr(error)
        return entry

    async def burst(self, session: aiohttp.ClientSession, count: int, max_tokens: int, tag: str) -> None:
        """Sends so many requests at once and waits for the fate of each."""
        await asyncio.gather(*(self.stream(session, f"{tag} {index}", max_tokens) for index in range(count)))

    @staticmethod
    def _note(entry: Received, line: bytes) -> None:
        if not line.startswith(b"data: "):
            return
        if line.strip() == b"data: [DONE]":
            entry.done = True
            return
        chunk: dict[str, Any] = json.loads(line[6:])
        if "error" in chunk:
            entry.error = str(chunk["error"])
            return
        for choice in chunk["choices"]:
            entry.text += choice["delta"].get("content") or ""


@dataclass(frozen=True)
class Comparison:
    """The ledger held against the rows.

    Attributes:
        sent: Requests sent.
        delivered: Answers delivered whole.
        partly: Answers of which the client has a part.
        stored: Rows found for ids the client knows.
        duplicates: Ids stored more than once.
        missing: Ids the client knows that have no row.
        different: Ids whose stored text is not what was delivered (a part must be a beginning of it, with
            U+FFFD for NUL, which PostgreSQL cannot hold).
    """

    sent: int
    delivered: int
    partly: int
    stored: int
    duplicates: int
    missing: list[str]
    different: list[str]


def compare(ledger: Ledger, operator_url: str) -> Comparison:
    """Holds every id the client ever saw against `serving.response`."""
    known = {entry.response_id: entry for entry in ledger.entries if entry.response_id}
    with psycopg.connect(libpq_url(operator_url)) as connection:
        rows = connection.execute(
            "SELECT id::text, output, output_sha256, status FROM serving.response WHERE id = ANY(%s::uuid[])",
            (list(known),),
        ).fetchall()
    stored = {row[0]: row for row in rows}
    different = [
        response_id
        for response_id, entry in known.items()
        if response_id in stored and not _agrees(entry, *stored[response_id][1:3])
    ]
    return Comparison(
        sent=len(ledger.entries),
        delivered=sum(entry.done for entry in ledger.entries),
        partly=sum(bool(entry.text) and not entry.done for entry in ledger.entries),
        stored=len(stored),
        duplicates=len(rows) - len(stored),
        missing=sorted(set(known) - set(stored)),
        different=different,
    )


def _agrees(entry: Received, output: str | None, digest: str | None) -> bool:
    if entry.done:
        return digest == hashlib.sha256(entry.text.encode()).hexdigest()
    return (output or "").startswith(entry.text.replace("\0", "\ufffd"))
