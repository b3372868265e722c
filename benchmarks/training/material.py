"""The rows both sides learn from: HH harmless-base as a snapshot, and the same rows in tokens."""

import gzip
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feedback.rows import DemonstrationRow, Kind, PreferenceRow, Row, Turn, hash_of_prompt
from feedback.rule import Kept
from feedback.snapshot import write_snapshot
from ratchet.prompts import Split, split
from trainer.algorithms import algorithm_of
from trainer.config import RoundConfig
from trainer.data.examples import Example
from trainer.data.order import examples_of_step
from trainer.material import read_material

_ROLES = {"Human": "user", "Assistant": "assistant"}
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def hh_snapshot(source: Path, root: Path, kind: Kind, rows: int, first: int = 0) -> Path:
    """A snapshot of HH rows whose prompts are for training, as they come.

    Args:
        source: The gzipped JSON lines of HH.
        root: Folder of snapshots.
        kind: Pairs, or the preferred answers as demonstrations.
        rows: How many.
        first: How many to leave out before.
    """
    made = [Kept(row) for row in _rows(source, kind, first, rows)]
    return write_snapshot(root, kind, made, wanted={"source": "import"}, dropped={}, created=WHEN).path


def in_order(config: RoundConfig) -> list[Example]:
    """The examples of a round's first epoch in the order in which it learns them."""
    train = read_material(config, algorithm_of(config)).train
    return [train[place] for place in examples_of_step(config.seed, 0, examples=len(train), batch=len(train))]


def _rows(source: Path, kind: Kind, first: int, number: int) -> Iterator[Row]:
    found = 0
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        for line in lines:
            chosen, rejected = (_turns(text) for text in json.loads(line).values())
            prompt, answers = chosen[:-1], (chosen[-1].content, rejected[-1].content)
            if prompt != rejected[:-1] or answers[0] == answers[1] or not all(answers):
                continue
            where = hash_of_prompt(prompt)
            if split(where) is not Split.TRAIN:
                continue
            found += 1
            if found > first + number:
                return
            if found > first:
                yield _row(kind, prompt, answers, where)


def _row(kind: Kind, prompt: tuple[Turn, ...], answers: tuple[str, str], where: str) -> Row:
    common: dict[str, Any] = {
        "votes": 1,
        "prompt": prompt,
        "source": "import",
        "weight": 1.0,
        "created_at": WHEN,
        "prompt_hash": where,
    }
    if kind is Kind.DEMONSTRATIONS:
        return DemonstrationRow(
            completion=answers[0], response_id=None, policy="import:hh", decode=None, **common
        )
    return PreferenceRow(
        chosen=answers[0],
        rejected=answers[1],
        chosen_response_id=None,
        rejected_response_id=None,
        chosen_policy="import:hh",
        rejected_policy="import:hh",
        chosen_decode=None,
        rejected_decode=None,
        **common,
    )


def _turns(transcript: str) -> tuple[Turn, ...]:
    _, *parts = re.split(r"\n\n(Human|Assistant): ?", transcript)
    return tuple(Turn(_ROLES[name], text.strip()) for name, text in zip(parts[::2], parts[1::2], strict=True))
