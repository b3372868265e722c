"""First act: questions of our own go through the gateway; every answer is stamped and kept."""

import time
from dataclasses import dataclass
from typing import Any

from openai import OpenAI
from rich.console import Console
from rich.table import Table

from ratchet.demo.stack import RunningStack

QUESTIONS = (
    "Our office plant drops its leaves every November. Name two likely reasons.",
    "Write one sentence that a friendly museum guide could open a tour with.",
    "A train leaves at 09:40 and arrives at 11:05. How long is the ride?",
    "Explain to a new colleague why we keep a change log.",
)


@dataclass(frozen=True)
class Exchange:
    """One question, and what the client saw of its answer.

    Attributes:
        question: What was asked.
        answer: The text as it was streamed.
        response_id: From the header `x-ratchet-response-id`.
        headers: Every `x-ratchet-*` header.
        ttft_s: Seconds until the first text.
        tokens: Output tokens, as the engine counted them.
        seconds: From the request to the last byte.
    """

    question: str
    answer: str
    response_id: str
    headers: dict[str, str]
    ttft_s: float
    tokens: int
    seconds: float


def ask(client: OpenAI, model: str, question: str, console: Console) -> Exchange:
    """Streams one answer to the console, as a user would see it."""
    console.print(f"\n[bold]{question}[/bold]")
    started = time.monotonic()
    first: float | None = None
    pieces: list[str] = []
    tokens = 0
    with client.chat.completions.with_streaming_response.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=80,
        stream=True,
        stream_options={"include_usage": True},
        user="demo-user",
    ) as raw:
        headers = {name: value for name, value in raw.headers.items() if name.startswith("x-ratchet-")}
        for chunk in raw.parse():
            if chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
            for choice in chunk.choices:
                if choice.delta.content:
                    first = first or time.monotonic()
                    pieces.append(choice.delta.content)
                    console.print(choice.delta.content, end="", markup=False, highlight=False)
    ended = time.monotonic()
    console.print()
    return Exchange(
        question=question,
        answer="".join(pieces),
        response_id=headers["x-ratchet-response-id"],
        headers=headers,
        ttft_s=(first or ended) - started,
        tokens=tokens,
        seconds=ended - started,
    )


def wait_for_rows(stack: RunningStack, ids: set[str], timeout_s: float = 30) -> list[dict[str, Any]]:
    """The stored rows of these responses, oldest first, as soon as the recorder has flushed them all."""
    deadline = time.monotonic() + timeout_s
    while True:
        rows = [row for row in stack.ratchet("responses", "list", "--limit", "200") if row["id"] in ids]
        if len(rows) == len(ids) or time.monotonic() > deadline:
            return sorted(rows, key=lambda row: str(row["id"]))
        time.sleep(0.5)


def report(console: Console, exchanges: list[Exchange], rows: list[dict[str, Any]]) -> None:
    """Prints what was seen by the client beside what was stored."""
    table = Table(title="What the client saw, and the row that was kept")
    for heading in ("response", "finish", "tokens", "ttft ms", "tokens/s", "same text"):
        table.add_column(heading, no_wrap=True)
    stored = {str(row["id"]): row for row in rows}
    for exchange in exchanges:
        row = stored.get(exchange.response_id, {})
        table.add_row(
            exchange.response_id,
            str(row.get("finish_reason")),
            str(row.get("output_tokens")),
            f"{exchange.ttft_s * 1000:.0f}",
            f"{exchange.tokens / exchange.seconds:.1f}",
            "[green]yes[/green]" if row.get("output") == exchange.answer else "[red]NO[/red]",
        )
    console.print(table)
    stamps = {(str(row["policy"]), str(row["decode"]), str(row["arm"]), str(row["stage"])) for row in rows}
    for policy, decode, arm, stage in sorted(stamps):
        console.print(f"stamped [bold]{policy}[/bold], decode {decode[:12]}, arm {arm}, stage {stage}")
