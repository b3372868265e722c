"""What the plan is made of, read: labels from rows, lengths from a snapshot's file."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from tokenizers import Tokenizer

from ratchet.db.models.feedback import DatasetSnapshot, DemonstrationEntry, PreferencePair
from ratchet.db.models.registry import Policy
from ratchet.errors import UsageError
from trainer.errors import SnapshotRefused
from trainer.plan.labels import Labels, Verifier
from trainer.plan.setup import Examples

_BATCH = 1_000


def labels_of(session: Session, policy: str, verifiers: Sequence[Verifier], sampling_ms: float) -> Labels:
    """What there is to train a policy on: the newest snapshot of each kind, and checks.

    Args:
        session: As the trainer.
        policy: `name@version`.
        verifiers: Checks that need no person.
        sampling_ms: Time the policy takes for one answer.
    """
    distance = {ref: steps for steps, ref in enumerate(ancestry(session, policy))}
    ages: Counter[int | None] = Counter()
    sides = select(PreferencePair.chosen_policy, PreferencePair.rejected_policy)
    for chosen, rejected in session.execute(sides.where(PreferencePair.snapshot == _newest("pairs"))):
        steps = (distance.get(chosen), distance.get(rejected))
        known = [each for each in steps if each is not None]
        ages[max(known) if len(known) == len(steps) else None] += 1
    demonstrations = session.scalar(
        select(func.count())
        .select_from(DemonstrationEntry)
        .where(DemonstrationEntry.snapshot == _newest("demonstrations"))
    )
    return Labels(demonstrations or 0, dict(ages), tuple(verifiers), sampling_ms)


def ancestry(session: Session, policy: str) -> list[str]:
    """A policy and those it grew from, the nearest first."""
    found: list[str] = []
    ref: str | None = policy
    while ref is not None:
        found.append(ref)
        ref = session.scalar(select(Policy.parent).where(Policy.ref == ref))
    return found


def examples_of(snapshot: Path, kind: str, model: Path, max_length: int) -> Examples:
    """The examples of a snapshot that take most memory: its longest answer behind its middle prompt.

    Args:
        snapshot: The snapshot's folder.
        kind: pairs or demonstrations.
        model: A folder with the `tokenizer.json` that counts.
        max_length: Tokens that prompt and answer have together at most.

    Raises:
        SnapshotRefused: The training file cannot be read, or holds no rows.
        UsageError: The model's folder has no `tokenizer.json`.
    """
    path = model / "tokenizer.json"
    if not path.is_file():
        raise UsageError(
            f"{model} has no tokenizer.json: give the lengths, --prompt-tokens and --answer-tokens"
        )
    tokenizer = Tokenizer.from_file(str(path))
    columns = ("completion",) if kind == "demonstrations" else ("chosen", "rejected")
    prompts: list[int] = []
    longest = 0
    for rows in _rows(snapshot / "train.parquet", ("prompt", *columns)):
        prompts += _lengths(
            tokenizer,
            ["\n".join(message["content"] or "" for message in row["prompt"] or ()) for row in rows],
        )
        for column in columns:
            longest = max(longest, *_lengths(tokenizer, [row[column] or "" for row in rows]))
    if not prompts:
        raise SnapshotRefused(f"{snapshot} holds no training rows; widen the snapshot's filter")
    answer = min(longest + 1, max_length - 1)
    return Examples(
        prompt=min(round(median(prompts)), max_length - answer), answer=answer, answers=len(columns)
    )


def _newest(kind: str) -> Any:
    snapshots = select(DatasetSnapshot.digest).where(DatasetSnapshot.kind == kind)
    standing = snapshots.where(DatasetSnapshot.withdrawn_at.is_(None))
    return standing.order_by(DatasetSnapshot.created_at.desc()).limit(1).scalar_subquery()


def _rows(path: Path, columns: Sequence[str]) -> Any:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH, columns=list(columns)):
                yield batch.to_pylist()
    except (OSError, ValueError) as error:
        raise SnapshotRefused(f"{path} cannot be read: {error}") from error


def _lengths(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    return [len(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
