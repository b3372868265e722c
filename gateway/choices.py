"""What an engine's JSON says, put together: text, tool calls, finish reason and tokens of each choice."""

from typing import Any, NamedTuple

from gateway.fields import Kind
from gateway.jsontext import as_list, as_object


class Piece(NamedTuple):
    """What a chunk says of one choice.

    Attributes:
        choice: Which one, from 0.
        text: Its next text, may be empty.
        has_content: There is text, or a part of a tool call.
        is_last: The choice is finished.
    """

    choice: int
    text: str
    has_content: bool
    is_last: bool


class Choices:
    """The choices of one answer as far as they arrived.

    Attributes:
        prompt_tokens: Tokens of the prompt; None before they are known.
    """

    def __init__(self, kind: Kind) -> None:
        self._chat = kind is Kind.CHAT
        self._texts: dict[int, str] = {}
        self._finish: dict[int, str | None] = {}
        self._tool_calls: dict[int, dict[int, dict[str, Any]]] = {}
        self._counts: dict[int, int] = {}
        self._total: int | None = None
        self.prompt_tokens: int | None = None

    @property
    def output_tokens(self) -> int | None:
        """Tokens of all choices; None before any is known."""
        if self._total is not None:
            return self._total
        return sum(self._counts.values()) if self._counts else None

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        return self._finish.get(0)

    def outputs(self) -> list[dict[str, Any]]:
        """Each choice as its row keeps it; texts of a stream were recorded piece by piece."""
        return [
            {
                "index": index,
                "text": self._texts.get(index, ""),
                "finish_reason": self._finish[index],
                "tool_calls": self._calls(index),
            }
            for index in sorted(self._finish)
        ]

    def keep(self, piece: Piece) -> None:
        """Keeps a piece's text, of an answer that is sent as a whole."""
        self._texts[piece.choice] = self._texts.get(piece.choice, "") + piece.text

    def take_piece(self, choice: Any) -> Piece:
        """One choice of a chunk.

        Raises:
            ValueError: It is no choice.
        """
        said = as_object(choice)
        if said is None or not isinstance(said.get("index"), int):
            raise ValueError("a choice without an index")
        index: int = said["index"]
        holder = as_object(said.get("delta")) if self._chat else said
        if holder is None:
            raise ValueError("a choice without a delta")
        text = holder.get("content" if self._chat else "text") or ""
        if not isinstance(text, str):
            raise ValueError("a choice whose text is none")
        calls = as_list(holder.get("tool_calls"))
        if calls:
            self._take_calls(index, calls)
        reason = said.get("finish_reason")
        if reason is not None or index not in self._finish:
            self._finish[index] = reason
        return Piece(index, text, bool(text or calls), reason is not None)

    def count(self, usage: Any, index: int | None = None) -> None:
        """Token counts: of one choice so far, or of the whole answer."""
        counts = as_object(usage)
        if counts is None:
            return
        output = counts.get("completion_tokens")
        if isinstance(output, int):
            if index is None:
                self._total = output
            else:
                self._counts[index] = output
        prompt = counts.get("prompt_tokens")
        if isinstance(prompt, int):
            self.prompt_tokens = prompt

    def _take_calls(self, index: int, calls: list[Any]) -> None:
        known = self._tool_calls.setdefault(index, {})
        for position, item in enumerate(calls):
            call = as_object(item) or {}
            place = call.get("index")
            entry = known.setdefault(
                place if isinstance(place, int) else position,
                {"id": None, "type": "function", "function": {"name": None, "arguments": ""}},
            )
            function = as_object(call.get("function")) or {}
            entry["id"] = call.get("id") or entry["id"]
            entry["function"]["name"] = function.get("name") or entry["function"]["name"]
            entry["function"]["arguments"] += str(function.get("arguments") or "")

    def _calls(self, index: int) -> list[dict[str, Any]] | None:
        calls = self._tool_calls.get(index)
        return [calls[position] for position in sorted(calls)] if calls else None
