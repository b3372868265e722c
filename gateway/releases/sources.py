"""Measurements of the two policies of a release, read from the rows: for each answer its user and its figure.

Users are what the sticky canary sorts: the client's user, else the session, else the key. In a canary
stage both policies answer users of their own; in a shadow stage the candidate's copies stand beside the
answers they are copies of, but for how answers ended: only good ones are copied, so production's failures are
those of all its answers. Probes stand by themselves, and each probe counts as a user.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from gateway.releases.plan import TASK_PREFIX, Source
from gateway.releases.probes import BENIGN, HARMFUL, sentinel_of
from gateway.releases.samples import Sample
from ratchet.db.models.releases import Release
from ratchet.ids import floor_of

Pairs = list[tuple[Hashable, float | None]]

_COLUMNS = """
    answer.id, answer.policy, answer.status, answer.error_code, answer.ttft_ms, answer.duration_ms,
    answer.output_tokens, answer.prompt_tokens, answer.labels, answer.verdicts, answer.probe,
    coalesce('user:' || answer.user_id, 'session:' || answer.session_id, 'key:' || answer.key_id) AS unit
"""
_OF_USERS = text(f"""
    SELECT {_COLUMNS} FROM serving.response AS answer
    WHERE answer.id >= :low AND answer.policy IN (:candidate, :baseline) AND answer.plan_version = :version
        AND NOT answer.pinned AND answer.probe IS NULL AND answer.pair_of IS NULL
        AND answer.status IN ('ok', 'error', 'cancelled')
    ORDER BY answer.id
""")  # noqa: S608
_OF_COPIES = text(f"""
    SELECT {_COLUMNS} FROM serving.response AS copy
    JOIN serving.response AS answer ON answer.id IN (copy.id, copy.pair_of)
    WHERE copy.id >= :low AND copy.policy = :candidate AND copy.plan_version = :version
        AND copy.pair_of IS NOT NULL AND copy.status IN ('ok', 'error', 'cancelled')
    ORDER BY answer.id
""")  # noqa: S608
_OF_PROBES = text("""
    SELECT answer.id, answer.policy, answer.status, answer.labels, answer.probe, answer.output,
    answer.outputs,
           answer.finish_reason
    FROM serving.response AS answer
    WHERE answer.id >= :low AND answer.policy IN (:candidate, :baseline) AND answer.probe LIKE '%:%'
        AND answer.status IN ('ok', 'error')
    ORDER BY answer.id
""")
_SAID = text("""
    SELECT response_id, kind, name, value FROM feedback.feedback_event
    WHERE id >= :low AND kind IN ('thumb', 'rating', 'retry', 'regenerate', 'escalate', 'metric')
    ORDER BY id
""")
_KINDS = {"retry": Source.RETRIES, "regenerate": Source.REGENERATIONS, "escalate": Source.ESCALATIONS}


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost."""

    prompt: float
    output: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one arm's answers of a stage measured.

    Attributes:
        units: Users with an answer, that failed or not.
        samples: By source, as `gateway.releases.plan.Source` or `task:NAME`.
    """

    units: frozenset[Hashable]
    samples: dict[str, Sample]


def read_measurements(
    session: Session, release: Release, began: datetime, prices: Prices, *, shadow: bool
) -> dict[str, Measured]:
    """Everything that a stage has measured so far.

    Args:
        session: As the operator.
        release: Whose stage.
        began: When the stage began.
        prices: For the cost of an answer.
        shadow: Whether the candidate only gets copies.

    Returns:
        Policy to what its answers measured.
    """
    asked = {
        "low": floor_of(began),
        "version": release.stage_plan,
        "candidate": release.policy,
        "baseline": release.baseline,
    }
    asked_for = session.execute(_OF_USERS, asked).all()
    answers = session.execute(_OF_COPIES, asked).all() if shadow else asked_for
    said = _said(session, asked)
    probes = session.execute(_OF_PROBES, asked).all()
    ended = {release.policy: answers, release.baseline: asked_for}
    return {
        policy: _of_policy(*([row for row in rows if row.policy == policy]
                             for rows in (answers, of_all, probes)), said, prices)
        for policy, of_all in ended.items()
    }  # fmt: skip


def _of_policy(
    answers: list[Row[Any]],
    ended: list[Row[Any]],
    probes: list[Row[Any]],
    said: dict[Any, list[tuple[str, float]]],
    prices: Prices,
) -> Measured:
    pairs: dict[str, Pairs] = {source.value: [] for source in Source}
    for row in ended:
        pairs[Source.ERRORS].append((row.unit, float(row.status == "error")))
        pairs[Source.TIMEOUTS].append((row.unit, float(row.error_code == "engine_timeout")))
        pairs[Source.ABANDONED].append((row.unit, float(row.status == "cancelled")))
    for row in answers:
        if row.status == "ok":
            for source, figure in _FIGURES.items():
                pairs[source].append((row.unit, figure(row, prices)))
            _add_optional(pairs, row)
        told = said.get(row.id, [])
        for source in _KINDS.values():
            pairs[source].append((row.unit, float(any(name == source for name, _ in told))))
        for name, value in told:
            if name not in _KINDS.values():
                pairs.setdefault(name, []).append((row.unit, value))
    _add_probes(pairs, probes)
    samples = {name: Sample.of(measured) for name, measured in pairs.items()}
    return Measured(frozenset(row.unit for row in answers), samples)


_FIGURES: dict[Source, Callable[[Row[Any], Prices], float | None]] = {
    Source.FIRST_TOKEN: lambda row, _: _seconds(row.ttft_ms),
    Source.LATENCY: lambda row, _: _seconds(row.duration_ms),
    Source.COST: lambda row, prices: (
        (row.prompt_tokens or 0) * prices.prompt + row.output_tokens * prices.output
        if row.output_tokens is not None
        else None
    ),
    Source.LENGTH: lambda row, _: row.output_tokens,
}


def _add_optional(pairs: dict[str, Pairs], row: Row[Any]) -> None:
    """Adds figures that only some answers have: a short one has no rhythm and cannot repeat itself."""
    if row.output_tokens is not None and row.output_tokens > 1 and row.ttft_ms is not None:
        pace = (row.duration_ms - row.ttft_ms) / (row.output_tokens - 1)
        pairs[Source.INTER_TOKEN].append((row.unit, _seconds(pace)))
    for source in (Source.TRUNCATION, Source.REPETITION, Source.REFUSAL):
        label = label_of(row.labels, source)
        if label is not None:
            pairs[source].append((row.unit, label))
    if row.verdicts:
        verdicts: dict[str, dict[str, Any]] = row.verdicts
        against = any(verdict.get("flagged") for verdict in verdicts.values())
        pairs[Source.GUARDRAIL].append((row.unit, float(against)))


def _add_probes(pairs: dict[str, Pairs], probes: list[Row[Any]]) -> None:
    for row in probes:
        kind = row.probe.partition(":")[0]
        failed = row.status != "ok"
        if kind in (BENIGN, HARMFUL):
            source = Source.REFUSAL_BENIGN if kind == BENIGN else Source.REFUSAL_HARMFUL
            pairs[source].append((row.probe, None if failed else label_of(row.labels, Source.REFUSAL)))
        went_off = None if failed else sentinel_of(row.probe, row.output or "", row.outputs, row.labels)
        if failed or went_off is not None:
            pairs[Source.SENTINEL].append((row.probe, went_off))


def label_of(labels: dict[str, Any], source: Source) -> float | None:
    """A label of `serving.response.labels` as a figure; None where the answer was not labelled, or could
    not be.

    A partial refusal counts as none: only full ones leave a user without an answer.
    """
    if source is Source.REFUSAL:
        refusal = labels.get("refusal")
        return None if refusal is None else float(refusal == "full")
    value = labels.get("repetition" if source is Source.REPETITION else "truncated")
    return None if value is None else float(value)


def _said(session: Session, asked: dict[str, Any]) -> dict[Any, list[tuple[str, float]]]:
    found: dict[Any, list[tuple[str, float]]] = {}
    for row in session.execute(_SAID, {"low": asked["low"]}):
        events = found.setdefault(row.response_id, [])
        if row.kind == "thumb":
            events.append((Source.THUMBS, (row.value + 1) / 2))
        elif row.kind == "rating":
            events.append((Source.RATING, min(max((row.value - 1) / 4, 0.0), 1.0)))
        elif row.kind == "metric":
            if row.value is not None:
                events.append((f"{TASK_PREFIX}{row.name}", row.value))
        else:
            events.append((_KINDS[row.kind], 1.0))
    return found


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
