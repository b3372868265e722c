"""What operators add: custom metrics that clients may report, and gold items that test raters."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import psycopg
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from feedback.errors import FormatError
from feedback.evidence import Pool
from feedback.formats.lines import reason_of
from ratchet.canonical import digest_of
from ratchet.db.models.feedback import ComparisonRow, Metric
from ratchet.errors import UsageError
from ratchet.ids import new_id, time_of
from ratchet.prompts import history_hash, prompt_hash, split

GOLD_POLICIES = ("gold:a", "gold:b")
"""Stand in place of policies: nobody in particular spoke a gold item's answers."""


class GoldItem(BaseModel):
    """A line of a gold file: two answers, and the choice every careful rater makes."""

    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[str, Field(min_length=1)]
    a: Annotated[str, Field(min_length=1)]
    b: Annotated[str, Field(min_length=1)]
    expected: Literal["a", "b", "tie", "both_bad"]


def add_metric(
    session: Session,
    name: str,
    type: Literal["number", "boolean", "category"],
    description: str,
    *,
    low: float | None = None,
    high: float | None = None,
    categories: list[str] | None = None,
) -> None:
    """Registers a metric that clients may report.

    Args:
        session: As the role `ratchet_operator`.
        name: Its name.
        type: What its values are.
        description: What it says, for people.
        low: Of a number, the least.
        high: Of a number, the most.
        categories: Of a category, its values.

    Raises:
        UsageError: The name is taken, or the bounds or categories do not fit the type.
    """
    if (type == "category") != bool(categories):
        raise UsageError("a category needs its values, and only a category has them: --category")
    if type != "number" and (low is not None or high is not None):
        raise UsageError("only a number has bounds: --low, --high")
    if low is not None and high is not None and low > high:
        raise UsageError(f"--low {low} is above --high {high}")
    session.add(
        Metric(
            name=name, type=type, low=low, high=high, categories=categories or None, description=description
        )
    )
    try:
        session.flush()
    except IntegrityError as error:
        if not isinstance(error.orig, psycopg.errors.UniqueViolation):
            raise
        raise UsageError(
            f"a metric {name!r} is registered already: `ratchet feedback metrics` lists them"
        ) from error


def list_metrics(session: Session) -> list[dict[str, Any]]:
    """Every registered metric."""
    return [
        {
            "name": row.name,
            "type": row.type,
            "low": row.low,
            "high": row.high,
            "categories": row.categories,
            "description": row.description,
        }
        for row in session.scalars(select(Metric).order_by(Metric.name))
    ]


def read_gold(path: Path) -> list[GoldItem]:
    """The items of a JSON-lines file.

    Raises:
        FormatError: The file cannot be read, or a line is wrong.
    """
    items: list[GoldItem] = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise FormatError(path, None, f"cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            items.append(GoldItem.model_validate(json.loads(line)))
        except json.JSONDecodeError as error:
            raise FormatError(path, number, f"no JSON: {error.msg}") from error
        except ValidationError as error:
            raise FormatError(path, number, reason_of(error)) from error
    return items


def add_gold(session: Session, items: list[GoldItem], pool: Pool) -> int:
    """Adds gold items to a pool; one that is there already is left as it is.

    Args:
        session: As the role `ratchet_feedback`.
        items: The items.
        pool: Whose raters they test.

    Returns:
        How many are new.
    """
    made = 0
    for item in items:
        messages = [{"role": "user", "content": item.prompt}]
        identity, digest = new_id(), digest_of(item.model_dump())
        values = {
            "id": identity, "pool": pool, "source": "gold", "prompt": messages,
            "prompt_hash": prompt_hash(messages), "history_hash": history_hash(messages),
            "split": split(prompt_hash(messages)).value, "answered_at": time_of(identity),
            "a_answer": f"gold:{digest}:a", "a_text": item.a, "a_policy": GOLD_POLICIES[0],
            "b_answer": f"gold:{digest}:b", "b_text": item.b, "b_policy": GOLD_POLICIES[1],
            "gold_choice": item.expected,
        }  # fmt: skip
        new = session.execute(
            insert(ComparisonRow).values(values).on_conflict_do_nothing().returning(ComparisonRow.id)
        )
        made += len(new.all())
    return made
