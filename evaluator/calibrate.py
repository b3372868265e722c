"""Calibrates a judge for one dimension, from labelled pairs to a row."""

import asyncio
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine

from evaluator.judge.calibration import REPEATS, Bar, LabelledPair, calibrate, judge_labelled, shortcomings
from evaluator.judge.client import JudgeClient
from evaluator.judges import JudgeVersion
from evaluator.labelled import labels_digest
from evaluator.settings import EvaluatorSettings
from ratchet.db.engine import session_scope
from ratchet.db.models.evaluation import CalibrationRow
from ratchet.ids import new_id


def calibrate_judge(
    engine: Engine,
    settings: EvaluatorSettings,
    judge: JudgeVersion,
    dimension: str,
    pairs: list[LabelledPair],
    *,
    labels: str,
    bar: Bar | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
) -> CalibrationRow:
    """Asks a judge about every pair, in both orders, and keeps what it is worth.

    Args:
        engine: The database, as the role `ratchet_evaluator`.
        settings: Where the judge answers.
        judge: The judge.
        dimension: Which of its prompts.
        pairs: With human labels.
        labels: What the labels are called.
        bar: What it must show; None is the default bar.
        repeats: Times each order is asked.
        seed: Of the intervals.

    Raises:
        ConfigError: The settings do not say where it answers.
        UsageError: It has no prompt for the dimension.
    """
    template = judge.template(dimension)
    endpoint = settings.endpoint(judge.endpoint, judge.model, judge.parameters)
    bar = bar or Bar()

    async def asked() -> Any:
        async with JudgeClient(endpoint) as client:
            return await judge_labelled(client, template, pairs, repeats)

    found = calibrate(asyncio.run(asked()), seed=seed)
    short_of = shortcomings(found, bar)
    row = CalibrationRow(
        id=new_id(),
        judge=judge.ref,
        dimension=dimension,
        template=template.digest,
        labels=labels,
        labels_digest=labels_digest(pairs),
        pairs=found.pairs,
        figures={**asdict(found), "repeats": repeats},
        bar=asdict(bar),
        shortcomings=short_of,
        passed=not short_of,
    )
    with session_scope(engine) as session:
        session.add(row)
    return row
