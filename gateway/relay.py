"""From the engine to the client: renamed, recorded before it leaves, ended once its stamp was checked."""

from dataclasses import dataclass
from typing import Any

from gateway import jsontext, stamp
from gateway.ask import Ask
from gateway.choices import Piece
from gateway.exchange import Exchange
from gateway.fields import Kind
from gateway.jsontext import as_list, as_object
from gateway.sse import DONE
from gateway.trail import Trail
from gateway.upstream import EngineAnswer, EngineFailure, error_of

ID_PREFIXES = {Kind.CHAT: "chatcmpl-", Kind.COMPLETION: "cmpl-"}
LAST_EVENT = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Relay:
    """One answer on its way.

    Attributes:
        ask: What was asked.
        policy: Who was chosen to answer.
        exchange: The client.
        trail: What the request leaves behind.
        answer: The engine.
    """

    ask: Ask
    policy: str
    exchange: Exchange
    trail: Trail
    answer: EngineAnswer

    async def body(self) -> None:
        """Checks, records and sends a whole answer.

        Raises:
            ApiError: It is withheld.
        """
        try:
            document = as_object(jsontext.decode(self.answer.body))
            if document is None:
                raise ValueError("no JSON object")
            self.trail.choices.take_body(document)
        except ValueError as error:
            raise _garbage(error) from error
        fingerprint = stamp.check(self.policy, self.answer.fingerprint, document.get("system_fingerprint"))
        self._renamed(document)
        self.trail.stopwatch.piece(0)
        self.trail.end_well(fingerprint)
        await self.exchange.json(200, jsontext.encode(document))

    async def stream(self) -> None:
        """Passes pieces on as they come; holds back the last one of each choice until the stamp was checked.

        An engine names its fingerprint only in the last event before `[DONE]`.

        Raises:
            ApiError: The stream cannot go on; it must not end with `[DONE]`.
        """
        held: list[tuple[dict[str, Any], list[Piece]]] = []
        finished: set[int] = set()
        usage: dict[str, Any] | None = None
        seen: object = None
        done = False
        while not done and (events := await self.answer.events()) is not None:
            texts: dict[int, str] = {}
            out: list[bytes] = []
            for payload in events:
                if payload == DONE:
                    done = True
                    break
                chunk = self._parse(payload)
                if chunk.get("system_fingerprint") is not None:
                    seen = stamp.check(self.policy, self.answer.fingerprint, chunk["system_fingerprint"])
                if not chunk.get("choices"):
                    self.trail.choices.count(chunk.get("usage"))
                    usage = chunk if chunk.get("usage") else usage
                    continue
                pieces = self._take(chunk)
                finished.update(piece.choice for piece in pieces if piece.is_last)
                if not finished.isdisjoint(piece.choice for piece in pieces):
                    held.append((chunk, pieces))
                    continue
                _join(texts, pieces)
                out.append(_event(chunk))
            if out:
                self._record(texts)
                await self._send(out)
        if not done:
            raise EngineFailure(
                502, "engine_failed", "the engine ended the stream before its answer was whole"
            )
        fingerprint = stamp.check(self.policy, self.answer.fingerprint, seen)

        texts = {}
        out = []
        for chunk, pieces in held:
            _join(texts, pieces)
            out.append(_event({**chunk, "system_fingerprint": fingerprint}))
        if usage is not None and self.ask.include_usage:
            out.append(_event(self._renamed(usage)))
        self._record(texts)
        self.trail.end_well(fingerprint)
        await self._send([*out, LAST_EVENT], last=True)

    def _record(self, texts: dict[int, str]) -> None:
        for index, text in texts.items():
            self.trail.delta(index, text)

    async def _send(self, out: list[bytes], *, last: bool = False) -> None:
        if not self.exchange.started:
            await self.exchange.start_stream()
        await (self.exchange.end if last else self.exchange.piece)(b"".join(out))

    def _take(self, chunk: dict[str, Any]) -> list[Piece]:
        """Notes what a chunk says, and renames it; the engine's running token count is ours alone."""
        usage = chunk.pop("usage", None)
        try:
            pieces = [self.trail.choices.take_piece(choice) for choice in as_list(chunk["choices"]) or [None]]
        except ValueError as error:
            raise _garbage(error) from error
        for piece in pieces:
            if piece.has_content:
                self.trail.stopwatch.piece(piece.choice)
        self.trail.choices.count(usage, pieces[0].choice)
        self._renamed(chunk)
        return pieces

    def _parse(self, payload: bytes) -> dict[str, Any]:
        try:
            chunk = as_object(jsontext.decode(payload))
        except ValueError as error:
            raise _garbage(error) from error
        if chunk is None:
            raise _garbage(ValueError("an event without a JSON object"))
        if chunk.get("error"):
            raise error_of(500, payload)
        return chunk

    def _renamed(self, document: dict[str, Any]) -> dict[str, Any]:
        document["id"] = f"{ID_PREFIXES[self.ask.kind]}{self.trail.id}"
        document["model"] = self.policy
        return document


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + jsontext.encode(document) + b"\n\n"


def _join(texts: dict[int, str], pieces: list[Piece]) -> None:
    for piece in pieces:
        if piece.text:
            texts[piece.choice] = texts.get(piece.choice, "") + piece.text


def _garbage(error: Exception) -> EngineFailure:
    return EngineFailure(502, "engine_failed", f"the engine's answer cannot be read: {error}")
