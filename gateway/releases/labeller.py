"""Labels of answers, written beside their rows soon after they were stored: no request waits for them."""

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, text

from ratchet.db.engine import session_scope

Labeller = Callable[[str, str | None], dict[str, Any]]
"""The labels of an answer, by its text and its finish reason."""

BATCH = 200
PASSES = 20
"""Batches worked off at once before others have their turn."""
UNLABELLED: dict[str, Any] = {"refusal": None, "repetition": None, "truncated": None, "language": None}
"""What a row without an answer gets."""

_NEW = text("""
    SELECT id, output, finish_reason FROM serving.response
    WHERE labels = '{}' ORDER BY id DESC LIMIT :most
""")
_LABEL = text("UPDATE serving.response SET labels = CAST(:labels AS jsonb) WHERE id = :id AND labels = '{}'")


def label_new(engine: Engine, label: Labeller) -> int:
    """Labels answers that have no labels yet, the newest first.

    Args:
        engine: As the operator.
        label: See `Labeller`.

    Returns:
        How many were labelled.
    """
    done = 0
    for _ in range(PASSES):
        with session_scope(engine) as session:
            rows = session.execute(_NEW, {"most": BATCH}).all()
            for row in rows:
                labels = label(row.output, row.finish_reason) if row.output else UNLABELLED
                session.execute(_LABEL, {"id": row.id, "labels": json.dumps(labels)})
        done += len(rows)
        if len(rows) < BATCH:
            break
    return done
