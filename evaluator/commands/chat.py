"""`ratchet chat`: ask two policies the same, and read their answers side by side."""

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.errors import UsageError
from ratchet.home import Home

if TYPE_CHECKING:
    from evaluator.engines import ServedPolicy
    from ratchet.decode import DecodeConfig
    from ratchet.prompts import Message


def command(
    policy: Annotated[
        str, typer.Argument(metavar="POLICY", help="NAME@VERSION, or NAME for its newest version.")
    ],
    other: Annotated[str, typer.Option("--vs", metavar="POLICY", help="The policy beside it.")],
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Ask this and end; repeat it for a conversation of several turns."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Where the decode config leaves it open.")] = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Chat with two policies at once, each under its own pinned decode config; nothing is recorded.

    Without --prompt, lines are read from the terminal until an empty one or the end of input.
    """
    from contextlib import ExitStack

    from evaluator.engines import served_policy
    from evaluator.settings import load_settings
    from evaluator.wiring import parts_of
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role
    from ratchet.registry import resolve

    if as_json and not prompt:
        raise UsageError("--json needs at least one --prompt")
    home = Home.resolve(data_dir)
    with ExitStack() as stack:
        database = stack.enter_context(role_engine(home, Role.EVALUATOR))
        parts = parts_of(home, database, load_settings(), _say)
        with session_scope(database) as session:
            both = [resolve(session, name) for name in (policy, other)]
        if both[0].ref == both[1].ref:
            raise UsageError(f"both are {both[0].ref}: name two different policies")
        sides = [(stack.enter_context(served_policy(database, one.ref, _say)), one.decode) for one in both]
        turns: list[dict[str, Any]] = []
        histories: list[list[Message]] = [[], []]
        for said in prompt or _typed():
            answers = asyncio.run(_both(sides, histories, said, parts.engine_key, seed))
            turn = {
                "prompt": said,
                "answers": [
                    {"policy": served.policy, "text": text, "finish_reason": reason}
                    for (served, _), (text, reason) in zip(sides, answers, strict=True)
                ],
            }
            turns.append(turn)
            if not as_json:
                _print_turn(turn)
    if as_json:
        emit({"policies": [one.ref for one in both], "turns": turns}, True, lambda _: None)


async def _both(
    sides: "list[tuple[ServedPolicy, DecodeConfig]]",
    histories: "list[list[Message]]",
    said: str,
    key: str,
    seed: int,
) -> list[tuple[str, str | None]]:
    from evaluator.generation import generate
    from evaluator.suites.items import Item

    async def one(served: "ServedPolicy", decode: "DecodeConfig", history: "list[Message]") -> Any:
        messages = (*history, {"role": "user", "content": said})
        item = Item("chat", f"{len(messages)}", messages, {})
        given = generate(served, decode, [(item, [])], api_key=key, seed=seed, concurrency=1)
        answer = (await anext(given)).answer
        await given.aclose()
        history[:] = [*messages, {"role": "assistant", "content": answer.text}]
        return answer.text, answer.finish_reason

    return list(
        await asyncio.gather(*(one(*side, history) for side, history in zip(sides, histories, strict=True)))
    )


def _typed() -> Iterator[str]:
    while True:
        sys.stderr.write("> ")
        sys.stderr.flush()
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def _print_turn(turn: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        show_lines=False, expand=True, title=Text(turn["prompt"], style="bold"), title_justify="left"
    )
    for answer in turn["answers"]:
        table.add_column(answer["policy"], ratio=1, overflow="fold")
    table.add_row(
        *(
            Text(answer["text"] + (" …" if answer["finish_reason"] == "length" else ""))
            for answer in turn["answers"]
        )
    )
    Console().print(table)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
