"""`ratchet demo`: the product's main job on real parts, in one command."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.errors import EnvironmentFault
from ratchet.home import Home

CURL = """curl {base}/v1/chat/completions -H "Authorization: Bearer $RATCHET_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""

CLIENT = """from openai import OpenAI
client = OpenAI(base_url="{base}/v1", api_key=os.environ["RATCHET_KEY"])
client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}])"""


def command(
    data_dir: DataDir = None,
    port: Annotated[int, typer.Option(help="Port of the gateway.")] = 8000,
    model: Annotated[str, typer.Option(help="As in `ratchet up`: a name, or a model folder.")] = "smollm2",
    loop: Annotated[
        bool, typer.Option("--loop", help="Then close the loop once: votes, round, selection, release.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start the stack, ask it a few questions through the openai client, show what was kept, stop it.

    With --loop scripted users ask, a scripted rater compares, a round learns from the votes, selection
    chooses on held-out prompts, and the release earns its traffic; then a planted bad candidate is to be
    refused, and, when released all the same, taken back. That takes about 25 minutes on two cores.

    Everything is real: PostgreSQL, vLLM, the gateway, the workers. The data folder stays, and `ratchet up`
    goes on from where the demonstration ended.
    """
    from openai import OpenAI

    from ratchet.demo.loop import BUDGET_MINUTES, VARIABLES, address, close_the_loop
    from ratchet.demo.serving import QUESTIONS, ask, report, wait_for_rows
    from ratchet.demo.stack import running_stack

    console = Console(stderr=as_json)
    home = Home.resolve(data_dir)
    name = Path(model).name if os.sep in model else model
    if loop:
        whole = sum(BUDGET_MINUTES.values()) + 2
        console.print(f"Time budget: {whole} minutes on two cores.", highlight=False)
    looped: dict[str, Any] | None = None
    with running_stack(home.root, port, model, variables=VARIABLES if loop else {}) as stack:
        key = stack.ratchet("keys", "create", "--role", "client", "--name", "demo")["key"]
        client = OpenAI(base_url=f"{stack.base_url}/v1", api_key=key)
        exchanges = [ask(client, name, question, console) for question in QUESTIONS]
        rows = wait_for_rows(stack, {exchange.response_id for exchange in exchanges})
        report(console, exchanges, rows)
        if loop:
            looped = close_the_loop(stack, name, console)
            pages = address(stack, "releases")
            console.print(f"\nThe turn, the releases, their figures: {pages}/loops, with an operator's key")
        console.print("\n[bold]How to go on[/bold]")
        console.print(
            f"ratchet up --data-dir {home.root} --port {port} --model {model}", markup=False, soft_wrap=True
        )
        console.print(
            "export RATCHET_KEY=$(ratchet keys create --role client --json | jq -r .key)", markup=False
        )
        console.print(CURL.format(base=stack.base_url, model=name), markup=False, soft_wrap=True)
        console.print(CLIENT.format(base=stack.base_url, model=name), markup=False, soft_wrap=True)
    stored = {str(row["id"]): row for row in rows}
    lost = [
        item.response_id
        for item in exchanges
        if stored.get(item.response_id, {}).get("output") != item.answer
    ]
    document: dict[str, Any] = {
        "exchanges": [vars(exchange) for exchange in exchanges],
        "rows": rows,
        "tokens_per_second": sum(item.tokens for item in exchanges) / sum(item.seconds for item in exchanges),
        "missing_or_different": lost,
        "loop": looped,
    }
    emit(document, as_json, lambda done: console.print(f"\n{done['tokens_per_second']:.1f} tokens/s in all"))
    if lost:
        raise EnvironmentFault(
            f"{len(lost)} answers were not stored as they were delivered: {', '.join(lost)}"
        )
