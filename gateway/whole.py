"""A whole answer, put together from an engine's stream: so that what is cut short has its tokens so far."""

from typing import Any

from gateway.choices import Choices
from gateway.chunks import garbage, read_chunk
from gateway.engines import PooledEngine
from gateway.fields import Kind
from gateway.jsontext import as_list, as_object
from gateway.sse import DONE
from gateway.trail import Trail

OBJECTS = {Kind.CHAT: "chat.completion", Kind.COMPLETION: "text_completion"}


class WholeAnswer:
    """Takes an engine's stream in, and is the body that the engine would have sent at once.

    Attributes:
        done: The stream came to its end.
        fingerprint: What the engine says of itself; None before it did.
    """

    def __init__(self, kind: Kind, trail: Trail) -> None:
        self._kind = kind
        self._trail = trail
        self._forget()

    def begins(self, engine: PooledEngine) -> None:
        """An engine begins to answer; what another one said before it failed is forgotten."""
        self._forget()
        self._trail.answered_by(engine)
        self._trail.choices = Choices(self._kind)
        self._trail.stopwatch.anew()

    def take(self, events: list[bytes]) -> None:
        """The next events.

        Raises:
            ApiError: One is an error, or no chunk of an answer.
        """
        for payload in events:
            if self.done or payload == DONE:
                self.done = True
                return
            self._take(read_chunk(payload))

    def document(self) -> dict[str, Any]:
        """The answer, once it is done.

        Raises:
            ApiError: There is none.
        """
        outputs = self._trail.choices.outputs()
        if not outputs:
            raise garbage(ValueError("no choices"))
        return {
            **self._head,
            "object": OBJECTS[self._kind],
            "choices": [self._choice(output) for output in outputs],
            "usage": self._usage,
            "system_fingerprint": self.fingerprint,
        }

    def _forget(self) -> None:
        self.done = False
        self.fingerprint: object = None
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._stop_reasons: dict[int, Any] = {}
        self._logprobs: dict[int, dict[str, list[Any]]] = {}

    def _take(self, chunk: dict[str, Any]) -> None:
        choices = self._trail.choices
        self.fingerprint = chunk.get("system_fingerprint") or self.fingerprint
        usage = as_object(chunk.get("usage"))
        if not chunk.get("choices"):
            choices.count(usage)
            self._usage = usage or self._usage
            return
        self._head = self._head or {"id": chunk.get("id"), "created": chunk.get("created")}
        for said in as_list(chunk["choices"]) or [None]:
            try:
                piece = choices.take_piece(said)
            except ValueError as error:
                raise garbage(error) from error
            choices.keep(piece)
            choices.count(usage, piece.choice)
            if piece.has_content:
                self._trail.stopwatch.piece(piece.choice)
            self._take_rest(piece.choice, said)

    def _take_rest(self, index: int, choice: dict[str, Any]) -> None:
        if choice.get("stop_reason") is not None:
            self._stop_reasons[index] = choice["stop_reason"]
        for name, values in (as_object(choice.get("logprobs")) or {}).items():
            self._logprobs.setdefault(index, {}).setdefault(name, []).extend(as_list(values) or [])

    def _choice(self, output: dict[str, Any]) -> dict[str, Any]:
        index, text, calls = output["index"], output["text"], output["tool_calls"]
        said: dict[str, Any] = {"text": text}
        if self._kind is Kind.CHAT:
            message = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
            said = {"message": {**message, "tool_calls": calls} if calls else message}
        return {
            "index": index,
            **said,
            "logprobs": self._logprobs.get(index),
            "finish_reason": output["finish_reason"],
            "stop_reason": self._stop_reasons.get(index),
        }
