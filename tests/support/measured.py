"""A release's measurements counted one row after the other, to hold beside what the database counts."""

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from gateway.releases.sources import Prices
from ratchet.ids import new_id

Row = dict[str, Any]
Event = tuple[UUID, str, Row]
Found = dict[str, tuple[list[tuple[str, list[float]]], int]]
SEED = 7


def random_rows(answer: Callable[..., Row], shadow: bool) -> tuple[list[Row], list[Event]]:
    """Answers of a stage with their feedback, and probes.

    Args:
        answer: Makes a row of the stage, of a policy and a user.
        shadow: The candidate's are copies of the baseline's.
    """
    draw = random.Random(SEED)
    old, new = "m@000000000000", "m@000000000001"
    rows: list[Row] = []
    for _ in range(150):
        user = f"u{draw.randrange(25)}"
        asked = _answer(draw, answer, old if shadow else draw.choice((old, new)), user)
        rows.append(asked)
        if shadow and asked["status"] == "ok" and draw.random() < 0.7:
            rows.append(_answer(draw, answer, new, user, pair_of=asked["id"], arm="shadow"))
    events: list[Event] = []
    for row in rows:
        for kind in draw.sample(
            ("thumb", "rating", "retry", "regenerate", "escalate", "metric"), draw.randrange(4)
        ):
            columns: Row = {}
            if kind == "thumb":
                columns = {"value": draw.choice((-1, 1))}
            elif kind == "rating":
                columns = {"value": draw.choice((1, 3, 4, 5, 9))}
            elif kind == "metric":
                value = draw.choice((0.0, 1.0, 0.5, None))
                columns = {"name": draw.choice(("resolved", "other")), "value": value}
            events.append((row["id"], kind, columns))
    for number in range(30):
        name = f"{('benign', 'harmful', 'repeats')[number % 3]}:{number}"
        labels = draw.choice(
            ({}, {"refusal": "full", "repetition": 0.0}, {"refusal": "none", "repetition": 1.0})
        )
        status = draw.choice(("ok", "ok", "error"))
        rows += [
            answer(policy, "x", probe=name, pinned=True, labels=labels, status=status)
            for policy in (old, new)
        ]
    return rows, events


def _answer(draw: random.Random, answer: Callable[..., Row], policy: str, user: str, **columns: Any) -> Row:
    status = draw.choice(("ok", "ok", "ok", "error", "cancelled"))
    timed_out = status == "error" and draw.random() < 0.5
    labels = {
        "refusal": draw.choice(("full", "partial", "none", None)),
        "repetition": draw.choice((0.0, 1.0, None)),
        "truncated": draw.choice((True, False, None)),
    }
    return answer(
        policy, user, id=new_id(), status=status, error_code="engine_timeout" if timed_out else None,
        output_tokens=draw.choice((None, 1, 7, 30)), prompt_tokens=draw.choice((None, 5)),
        ttft_ms=draw.choice((None, 50.0, 130.0)), duration_ms=draw.choice((400.0, 900.0, 7.3)),
        labels=draw.choice(({}, labels)),
        verdicts=draw.choice(({}, {"pii": {"flagged": False}}, {"pii": {}, "code": {"flagged": True}})),
        **columns,
    )  # fmt: skip


def counted_one_by_one(
    rows: list[Row],
    events: list[Event],
    policy: str,
    policies: tuple[str, str],
    prices: Prices,
    *,
    shadow: bool,
) -> Found:
    """By source: users in the order of their first figure, with their figures sorted; and how many failed.

    Args:
        rows: As `random_rows` makes them.
        events: Likewise.
        policy: Whose answers count.
        policies: The baseline and the candidate.
        prices: Of a token.
        shadow: The candidate's answers are copies.
    """
    figures: dict[str, list[tuple[str, float | None]]] = {}

    def add(source: str, unit: str, value: float | None) -> None:
        figures.setdefault(source, []).append((unit, value))

    copied = {row["pair_of"] for row in rows}
    for row in sorted(rows, key=lambda row: row["id"]):
        if row["policy"] != policy:
            continue
        unit = f"user:{row['user_id']}"
        if row["probe"] is not None:
            _count_probe(add, row)
            continue
        add("errors", unit, float(row["status"] == "error"))
        add("timeouts", unit, float(row["error_code"] == "engine_timeout"))
        add("abandoned", unit, float(row["status"] == "cancelled"))
        if shadow and policy == policies[0] and row["id"] not in copied:
            continue
        told = [(kind, columns) for identity, kind, columns in events if identity == row["id"]]
        for kind, source in (
            ("retry", "retries"),
            ("regenerate", "regenerations"),
            ("escalate", "escalations"),
        ):
            add(source, unit, float(any(each == kind for each, _ in told)))
        for kind, columns in told:
            if kind == "thumb":
                add("thumbs", unit, float(columns["value"] > 0))
            elif kind == "rating":
                add("rating", unit, min((columns["value"] - 1) / 4, 1.0))
            elif kind == "metric" and columns["value"] is not None:
                add(f"task:{columns['name']}", unit, columns["value"])
        if row["status"] == "ok":
            _count_good(add, row, unit, prices)
    names = {*figures, "task:resolved"} | {
        "refusal_benign", "refusal_harmful", "sentinel", "first_token", "inter_token", "guardrail",
        "truncation",
    }  # fmt: skip
    return {name: _gathered(figures.get(name, [])) for name in names}


def _count_good(add: Callable[[str, str, float | None], None], row: Row, unit: str, prices: Prices) -> None:
    tokens, first = row["output_tokens"], row["ttft_ms"]
    add("first_token", unit, None if first is None else first / 1000)
    add("latency", unit, row["duration_ms"] / 1000)
    add("length", unit, tokens)
    asked = row["prompt_tokens"] or 0
    add("cost", unit, None if tokens is None else asked * prices.prompt + tokens * prices.output)
    if tokens is not None and tokens > 1 and first is not None:
        add("inter_token", unit, (row["duration_ms"] - first) / (tokens - 1) / 1000)
    for source, label in (("truncation", "truncated"), ("repetition", "repetition")):
        if row["labels"].get(label) is not None:
            add(source, unit, float(row["labels"][label]))
    if row["labels"].get("refusal") is not None:
        add("refusal", unit, float(row["labels"]["refusal"] == "full"))
    if row["verdicts"]:
        add("guardrail", unit, float(any(each.get("flagged") for each in row["verdicts"].values())))


def _count_probe(add: Callable[[str, str, float | None], None], row: Row) -> None:
    kind, failed, labels = row["probe"].partition(":")[0], row["status"] != "ok", row["labels"]
    if kind in ("benign", "harmful"):
        known = not failed and "refusal" in labels
        add(f"refusal_{kind}", row["probe"], float(labels["refusal"] == "full") if known else None)
    if failed or "repetition" in labels:
        add("sentinel", row["probe"], None if failed else labels["repetition"])


def _gathered(figures: list[tuple[str, float | None]]) -> tuple[list[tuple[str, list[float]]], int]:
    found: dict[str, list[float]] = {}
    for unit, value in figures:
        if value is not None:
            found.setdefault(unit, []).append(value)
    return [(unit, sorted(values)) for unit, values in found.items()], sum(
        value is None for _, value in figures
    )
