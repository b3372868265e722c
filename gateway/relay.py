"""From the engine to the client: renamed, recorded before it leaves, ended once its stamp was checked."""

from dataclasses import dataclass
from typing import Any

from gateway import jsontext, stamp
from gateway.ask import Ask
from gateway.choices import Piece
from gateway.chunks import garbage, read_chunk
from gateway.exchange import Exchange
from gateway.jsontext import as_list
from gateway.sse import DONE
from gateway.trail import Trail
from gateway.upstream import EngineAnswer, EngineFailure, broken_off
from gateway.whole import WholeAnswer

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

    async def whole(self, answer: WholeAnswer) -> None:
        """Checks, records and sends a whole answer.

        Raises:
            ApiError: It is withheld.
        """
        document = self._renamed(answer.document())
        fingerprint = stamp.check(self.policy, self.answer.fingerprint, answer.fingerprint)
        self.trail.end_well(fingerprint)
        await self.exchange.json(200, jsontext.encode(document))

    async def stream(self) -> None:
        """Passes pieces on as they come; holds back the last one of each choice until the stamp was checked.

        An engine names its fingerprint only in the last event before `[DONE]`.

        Raises:
            ApiError: The stream cannot go on; it must not end with `[DONE]`.
        """
        state = _StreamState()
        while not state.done and (events := await self.answer.events()) is not None:
            try:
                for payload in events:
                    self._take(state, payload)
            except EngineFailure:
                await self._pass_on(state)
                raise
            await self._pass_on(state)
        if not state.done:
            raise broken_off()
        fingerprint = stamp.check(self.policy, self.answer.fingerprint, state.fingerprint)

        for chunk, pieces in state.held:
            state.add({**chunk, "system_fingerprint": fingerprint}, pieces)
        if state.usage is not None and self.ask.include_usage:
            state.add(self._renamed(state.usage), [])
        self._record(state)
        self.trail.end_well(fingerprint)
        await self._send([*state.out, LAST_EVENT], last=True)

    def _take(self, state: "_StreamState", payload: bytes) -> None:
        """Takes one event in; the engine's running count of tokens is not for the client."""
        if state.done or payload == DONE:
            state.done = True
            return
        chunk = read_chunk(payload)
        if chunk.get("system_fingerprint") is not None:
            state.fingerprint = chunk["system_fingerprint"]
            stamp.check(self.policy, self.answer.fingerprint, state.fingerprint)
        usage = chunk.pop("usage", None)
        if not chunk.get("choices"):
            self.trail.choices.count(usage)
            state.usage = {**chunk, "usage": usage} if usage else state.usage
            return
        try:
            pieces = [self.trail.choices.take_piece(choice) for choice in as_list(chunk["choices"]) or [None]]
        except ValueError as error:
            raise garbage(error) from error
        for piece in pieces:
            if piece.has_content:
                self.trail.stopwatch.piece(piece.choice)
            if piece.is_last:
                state.finished.add(piece.choice)
        self.trail.choices.count(usage, pieces[0].choice)
        self._renamed(chunk)
        if state.finished.isdisjoint(piece.choice for piece in pieces):
            state.add(chunk, pieces)
        else:
            state.held.append((chunk, pieces))

    async def _pass_on(self, state: "_StreamState") -> None:
        if state.out:
            self._record(state)
            await self._send(state.out)
            state.out = []

    def _record(self, state: "_StreamState") -> None:
        for choice, text in state.texts.items():
            self.trail.delta(choice, text)
        state.texts = {}

    async def _send(self, out: list[bytes], *, last: bool = False) -> None:
        if not self.exchange.started:
            await self.exchange.start_stream()
        await (self.exchange.end if last else self.exchange.piece)(b"".join(out))

    def _renamed(self, document: dict[str, Any]) -> dict[str, Any]:
        document["id"] = self.trail.name
        document["model"] = self.policy
        return document


class _StreamState:
    """A stream as far as it came: what may leave, what is held back, what its end has said."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.texts: dict[int, str] = {}
        self.held: list[tuple[dict[str, Any], list[Piece]]] = []
        self.finished: set[int] = set()
        self.usage: dict[str, Any] | None = None
        self.fingerprint: object = None
        self.done = False

    def add(self, chunk: dict[str, Any], pieces: list[Piece]) -> None:
        """Lets a chunk leave next, its text recorded before."""
        for piece in pieces:
            if piece.text:
                self.texts[piece.choice] = self.texts.get(piece.choice, "") + piece.text
        self.out.append(b"data: " + jsontext.encode(chunk) + b"\n\n")
