"""What a report shows, read from rows as the role `ratchet_report`.

The rewards of a round come from the view `evaluation.reward_of_selected`, which shows none before the record
is written. They are means over the round's validation prompts, as differences from the reference.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from evaluator.comparing import question_of
from evaluator.overoptimisation import Point, parting
from evaluator.records import read_selection
from evaluator.statistics.interval import Interval
from evaluator.suites.items import Item
from evaluator.turns import in_turn
from ratchet.db.models.evaluation import AnswerRow, CalibrationRow, ItemRow, SelectionRow, VerdictRow

SAMPLES = 8
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

_REWARDS = text("""
    SELECT step, policy, coalesce(kl_k3, kl_k1) AS kl, reward FROM evaluation.reward_of_selected
    WHERE selection_id = :selection AND policy IS NOT NULL ORDER BY step
""")


def gather(session: Session, selection: str) -> dict[str, Any]:
    """The record, its calibrations, lengths, sample answers, and the proxy beside the judge.

    Args:
        session: As the role `ratchet_report`.
        selection: Id of the record, or of its round.

    Raises:
        NotFound: There is no such record.
    """
    row = read_selection(session, selection)
    record: dict[str, Any] = row.record
    shown = record["chosen"] or _furthest(record)
    return {
        "id": str(row.id),
        "digest": row.digest,
        "created_at": row.created_at,
        "record": record,
        "lengths": _lengths(session, row.run_id),
        "samples": _samples(session, row, shown),
        "compared": shown,
        "judge_health": _judge_health(session, record),
        "proxy": _proxy(session, row),
    }


def _furthest(record: Mapping[str, Any]) -> str | None:
    return record["candidates"][-1]["policy"] if record["candidates"] else None


def _lengths(session: Session, run: UUID) -> dict[str, dict[str, Any]]:
    lengths: dict[str, list[int]] = {}
    truncated: dict[str, int] = {}
    query = select(AnswerRow.policy, AnswerRow.text, AnswerRow.finish_reason).where(AnswerRow.run_id == run)
    for policy, said, reason in session.execute(query):
        lengths.setdefault(policy, []).append(len(said))
        truncated[policy] = truncated.get(policy, 0) + (reason == "length")
    return {
        policy: {
            "quantiles": np.quantile(np.array(values), QUANTILES).tolist(),
            "answers": len(values),
            "truncated": truncated[policy],
        }
        for policy, values in lengths.items()
    }


def _samples(session: Session, row: SelectionRow, candidate: str | None) -> list[dict[str, Any]]:
    """Answers side by side: those where a verdict differs from a tie first, then the first prompts."""
    if candidate is None:
        return []
    baseline: str = row.record["baseline"]
    verdicts = {
        (one.suite, one.item): one
        for one in session.scalars(
            select(VerdictRow).where(
                VerdictRow.run_id == row.run_id,
                VerdictRow.candidate == candidate,
                VerdictRow.other == baseline,
            )
        )
    }
    answers = {
        (one.policy, one.suite, one.item): one
        for one in session.scalars(
            select(AnswerRow).where(
                AnswerRow.run_id == row.run_id, AnswerRow.policy.in_([candidate, baseline])
            )
        )
    }
    items = session.scalars(
        select(ItemRow).where(ItemRow.run_id == row.run_id).order_by(ItemRow.position)
    ).all()
    pairs = [
        _sample(item, answers[candidate, item.suite, item.item], answers[baseline, item.suite, item.item],
                verdicts.get((item.suite, item.item)))
        for item in items
        if answers[candidate, item.suite, item.item].text != answers[baseline, item.suite, item.item].text
    ]  # fmt: skip
    return in_turn(pairs, lambda pair: (pair["suite"], pair["result"]))[:SAMPLES]


def _sample(item: ItemRow, mine: AnswerRow, theirs: AnswerRow, verdict: VerdictRow | None) -> dict[str, Any]:
    return {
        "suite": item.suite,
        "question": question_of(Item(item.suite, item.item, tuple(item.messages), item.spec)),
        "candidate": mine.text,
        "baseline": theirs.text,
        "result": None if verdict is None else verdict.result,
    }


def _judge_health(session: Session, record: Mapping[str, Any]) -> dict[str, Any] | None:
    judge = record["judge"]
    if judge is None:
        return None
    newest: dict[str, CalibrationRow] = {}
    query = select(CalibrationRow).where(CalibrationRow.judge == judge["ref"]).order_by(CalibrationRow.id)
    for one in session.scalars(query):
        newest[one.dimension] = one
    return {
        "ref": judge["ref"],
        "model": judge["model"],
        "calibrations": [
            {"dimension": one.dimension, "labels": one.labels, "pairs": one.pairs, "figures": one.figures}
            for one in newest.values()
        ],
        "unscored": sum(each["unscored"] for one in record["candidates"] for each in one["judged"]),
        "disagreements": sum(each["disagreements"] for one in record["candidates"] for each in one["judged"]),
        "compared": sum(
            each["wins"] + each["ties"] + each["losses"]
            for one in record["candidates"]
            for each in one["judged"]
        ),
    }


def _proxy(session: Session, row: SelectionRow) -> dict[str, Any] | None:
    """Both sides of the round, and whether they part; null where no checkpoint has a reward."""
    rewards = {
        one.policy: one
        for one in session.execute(_REWARDS, {"selection": row.id})
        if one.reward is not None and one.kl is not None
    }
    points = [
        Point(one["step"], one["kl"], rewards[one["policy"]].reward, _above_reference(one, row.record))
        for one in row.record["candidates"]
        if one["policy"] in rewards and one["primary"] is not None
    ]
    if not points:
        return None
    found = parting(points)
    return {
        "points": [
            {"step": point.step, "kl": point.kl, "proxy": point.proxy, "judged": asdict(point.judged)}
            for point in points
        ],
        "proxy_fit": None if found.proxy is None else asdict(found.proxy),
        "judged_fit": None if found.judged is None else asdict(found.judged),
        "parts_at": found.parts_at,
        "reward_hacking": found.reward_hacking,
        "reason": found.reason,
    }


def _above_reference(candidate: Mapping[str, Any], record: Mapping[str, Any]) -> Interval:
    """What ranks the candidate, against the reference; against production where that is the reference or no
    judge compared it with another one."""
    first = candidate["primary"]
    judged = [
        one["win_rate"]
        for one in candidate["judged"]
        if one["suite"] == record["ranked_by"] and one["against"] == record["reference"]
    ]
    value = judged[0] if judged else first
    return Interval(
        *(None if value[end] is None else value[end] - first["nothing_gained"]
          for end in ("estimate", "low", "high"))
    )  # fmt: skip
