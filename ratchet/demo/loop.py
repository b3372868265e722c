"""Second and third act: the loop is closed once, and a planted bad candidate is refused and taken back.

Users and the rater are scripted, and called so; everything else is the product as it runs. The scripted rater
sees texts only and prefers by a stated rule; the suite that selects shares no code with that rule.
"""

import json
import time
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ratchet.demo.crowd import QUESTIONS, RULE, Crowd, prefers, rate
from ratchet.demo.stack import RunningStack
from ratchet.errors import EnvironmentFault
from ratchet.home import Home
from ratchet.prompts import Split, hash_of_text, split
from ratchet.supervisor.state import load

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "demo"
RATER = "scripted-rater"
LOOK_EVERY_S = 2.0
SETTLED = ("promoted", "closed", "aborted", "failed")
BUDGET_MINUTES = {
    "traffic and votes": 5, "snapshot, round, selection, release": 13, "the planted candidate": 9,
}  # fmt: skip
"""What each part of the demonstration is given on two cores, in minutes."""
SCHEDULE = '{"compare": 5, "builds": 5}'
"""Comparisons and snapshots as soon as they can be made, where a live stack makes them every few minutes."""
VARIABLES = {
    "RATCHET_FEEDBACK_SCHEDULE": SCHEDULE,
    "RATCHET_FEEDBACK_COMPARISONS_PER_DAY": "1000",
    "RATCHET_FEEDBACK_GOLD_SHARE": "0",
    "RATCHET_RELEASE_PROBE_S": "20",
}
"""Settings of the demonstration's stack that differ from a live one's."""

Document = dict[str, Any]


@dataclass
class Clock:
    """What each part took.

    Attributes:
        console: Where it is said.
        seconds: By part.
    """

    console: Console
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        """One part of the demonstration."""
        given = BUDGET_MINUTES[name]
        self.console.rule(f"[bold]{name}[/bold], at most {given} minutes")
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began
        self.console.print(f"took {self.seconds[name] / 60:.1f} of {given} minutes")


def close_the_loop(stack: RunningStack, model: str, console: Console) -> Document:
    """Traffic, votes, and one turn from a snapshot to production.

    Args:
        stack: It runs with `VARIABLES`.
        model: Whose loop.
        console: Where the story is told.

    Returns:
        The turn as it ended, and what the parts took.

    Raises:
        EnvironmentFault: A step failed.
    """
    clock = Clock(console)
    key = stack.ratchet("keys", "create", "--role", "client", "--name", "scripted users")["key"]
    crowd = Crowd(stack.base_url, key, model)
    with clock.part("traffic and votes"):
        answers = collect(stack, crowd, console)
    with clock.part("snapshot, round, selection, release"):
        told = stack.ratchet("release", "drill", model)
        console.print(f"drill: {told['state']}, back within {told['back_p99_ms']:.0f} ms (99 %)")
        turn = take_a_turn(stack, crowd, console)
    better = report(console, turn)
    document: Document = {"turn": turn, "better": better, "minutes": clock.seconds, "planted": None}
    if better:
        with clock.part("the planted candidate"):
            document["planted"] = plant(stack, crowd, model, answers, console)
    return document


def collect(stack: RunningStack, crowd: Crowd, console: Console) -> list[list[str]]:
    """Scripted users ask, and the scripted rater compares what they were answered."""
    with console.status(f"{len(QUESTIONS)} scripted users ask, two answers each"):
        answers = crowd.ask_all(QUESTIONS, answers=2)
    told = disagreement(answers, most_words())
    console.print(
        f"the scripted rater prefers {RULE}; the suite that selects holds answers to a number of words."
        f" Of {told['pairs']} pairs they say the same of {told['same']:.0%}; of {told['blind']:.0%} the suite"
        f" sees no difference, of {told['opposite']:.0%} it says the opposite"
    )
    url = address(stack, "feedback")
    stack.ratchet("rater", "add", RATER, "--daily-quota", "10000")
    link = stack.ratchet("rater", "link", RATER, "--url", url)["token"]
    with console.status("the scripted rater votes"):
        votes = rate(url, link, wanted=len(QUESTIONS), patience_s=30)
    console.print(f"{votes} votes of the scripted rater, blind, on the rating desk at {url}")
    return answers


def address(stack: RunningStack, service: str) -> str:
    """Where a service of the stack is.

    Raises:
        EnvironmentFault: The stack does not say so.
    """
    state = load(Home(stack.data_dir))
    if state is None or service not in state.addresses:
        raise EnvironmentFault(f"the stack does not say where its {service} is")
    return state.addresses[service]


def take_a_turn(stack: RunningStack, crowd: Crowd, console: Console) -> Document:
    """One turn of the loop, with scripted users asking as soon as the release begins."""
    asked = stack.ratchet(
        "round", "start", "--method", "dpo", "--config", str(FOLDER / "dpo.toml"),
        "--suite", str(FOLDER / "brief.toml"), "--suite", str(FOLDER / "brief-harder.toml"),
        "--release", "--plan", str(FOLDER / "plan.toml"), "--reason", "the demonstration",
    )  # fmt: skip
    identity = asked["loop"]

    def until(over: Callable[[Document], bool]) -> Document:
        said: set[str] = set()
        while True:
            turn = stack.ratchet("loop", "show", identity)
            for step in turn["steps"]:
                line = f"{step['step']}: {step['state']}"
                if step["state"] != "waiting" and line not in said:
                    said.add(line)
                    console.print(f"  {line}", highlight=False)
            if over(turn):
                return turn
            time.sleep(LOOK_EVERY_S)

    def ended(turn: Document) -> bool:
        return turn["state"] in ("done", "failed", "stopped")

    with console.status("a turn of the loop: each step is its own service's"):
        turn = until(lambda turn: ended(turn) or turn["steps"][3]["state"] == "running")
        if not ended(turn):
            with crowd.asking():
                turn = until(ended)
    if turn["state"] != "done":
        raise EnvironmentFault(f"the turn is {turn['state']}: {turn['words']}")
    return turn


def report(console: Console, turn: Document) -> bool:
    """Says what the turn was worth; False where it proposed nothing, or showed no gain."""
    gain = turn["gain"]
    if gain is None:
        console.print(f"[bold]{turn['words']}[/bold]: the demonstration stops here, as an operator would")
        return False
    console.print(
        f"[bold]{turn['chosen']}[/bold] is in production: {gain['name']} {gain['estimate']:+.1%}"
        f" [{gain['low']:+.1%}, {gain['high']:+.1%}] on prompts that nothing trained on"
    )
    ledger = turn["ledger"]
    table = Table(title="What became of every datum", show_header=False)
    for name in ("data", "in_the_snapshot", "held_out", "rows_trained_on"):
        table.add_row(name.replace("_", " "), str(ledger[name]))
    console.print(table)
    return bool(gain["low"] > 0)


def plant(
    stack: RunningStack, crowd: Crowd, model: str, answers: list[list[str]], console: Console
) -> Document:
    """A candidate trained to please a proxy that length hacks: refused, then released all the same.

    Raises:
        EnvironmentFault: Selection chose it, or the canary did not take it back.
    """
    path = stack.data_dir / "planted.jsonl"
    write_longest_first(path, answers)
    imported = stack.ratchet("pairs", "import", str(path), "--format", "trl", "--name", "planted")
    console.print(f"planted: {imported['imported']} pairs in which the longer answer wins", highlight=False)
    built = stack.ratchet("pairs", "build", "--source", "import")
    started = stack.ratchet(
        "round", "start", "--method", "dpo", "--config", str(FOLDER / "dpo.toml"), "--set", "optim.lr=3e-5",
        "--set", "optim.steps=12", "--snapshot", built["digest"], "--reason", "a planted bad candidate",
    )  # fmt: skip
    with console.status("it is trained"):
        done = wait(lambda: stack.ratchet("round", "show", str(started["id"])), "state", ("done", "failed"))
    if done["state"] != "done" or not done["checkpoints"]:
        raise EnvironmentFault(f"the planted round is {done['state']}: {done['error']}")
    bad = str(done["checkpoints"][-1]["policy"])
    with console.status("selection looks at it"):
        record = stack.ratchet(
            "select", "--round", str(started["id"]), "--suite", str(FOLDER / "brief.toml"),
            "--suite", str(FOLDER / "brief-harder.toml"),
        )  # fmt: skip
    if record["chosen"] is not None:
        raise EnvironmentFault(f"selection chose the planted {record['chosen']}")
    console.print(f"selection refuses it: {record['reason']}", highlight=False)
    stack.ratchet("release", "close", model)
    with crowd.asking(), console.status("an operator overrides that, and releases it"):
        stack.ratchet(
            "release", "start", bad, "--plan", str(FOLDER / "plan.toml"), "--override", "--reason",
            "to see the canary catch it",
        )  # fmt: skip
        wait(lambda: stack.ratchet("release", "status", model), "state", SETTLED)
    told = stack.ratchet("release", "history", model)[0]
    if told["state"] != "aborted":
        raise EnvironmentFault(f"the planted candidate was {told['state']}, not aborted")
    last = told["events"][-1]
    console.print(f"[bold]aborted by the {last['actor']}[/bold]: {last['reason']}", highlight=False)
    return {"policy": bad, "selection": record["reason"], "release": told}


def wait(read: Callable[[], Document], name: str, values: tuple[str, ...]) -> Document:
    """Reads a document until one of its fields has one of some values."""
    while (document := read())[name] not in values:
        time.sleep(LOOK_EVERY_S)
    return document


def write_longest_first(path: Path, answers: list[list[str]]) -> None:
    """Pairs in TRL's format in which the longer of two answers is chosen; held-out questions are left out."""
    lines: list[str] = []
    for question, (one, other) in zip(QUESTIONS, answers, strict=True):
        if split(hash_of_text(question)) is Split.HELDOUT:
            continue
        chosen, rejected = sorted((one, other), key=len, reverse=True)
        if chosen.strip() and rejected.strip() and chosen != rejected:
            row = {
                "prompt": [{"role": "user", "content": question}],
                "chosen": [{"role": "assistant", "content": chosen}],
                "rejected": [{"role": "assistant", "content": rejected}],
            }
            lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")


def most_words() -> int:
    """The most words that the suite of the demonstration allows."""
    suite = tomllib.loads((FOLDER / "brief.toml").read_text())
    return int(suite["items"][0]["constraints"][0]["at_most"])


def disagreement(answers: list[list[str]], most: int) -> Document:
    """How often the rater's rule and the suite's measure say the same of two answers to one question."""
    same = blind = opposite = 0
    for given in answers:
        for one, other in pairwise(given):
            vote = prefers(one, other)
            held = [len(text.split()) <= most for text in (one, other)]
            if held[0] == held[1]:
                blind += vote != "tie"
                same += vote == "tie"
            else:
                same += vote == ("left" if held[0] else "right")
                opposite += vote == ("right" if held[0] else "left")
    pairs = sum(len(given) - 1 for given in answers)
    return {"pairs": pairs, "same": same / pairs, "blind": blind / pairs, "opposite": opposite / pairs}
