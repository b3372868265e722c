"""Measurements of the two policies of a release, read from the rows: for each answer its user and its figure.

Users are what the sticky canary sorts: the client's user, else the session, else the key. In a canary
stage both policies answer users of their own; in a shadow stage the candidate's copies stand beside the
answers they are copies of, but for how answers ended: only good ones are copied, so production's failures are
those of all its answers. Probes stand by themselves, and each probe counts as a user.

The database counts: what leaves it is each user's distinct figures and how often each was measured, of the
sources that are asked for.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.releases.plan import ENDED, PROBED, TASK_PREFIX, Source
from gateway.releases.probes import BENIGN, HARMFUL, sentinel_of
from gateway.releases.samples import Sample
from ratchet.db.models.releases import Release
from ratchet.ids import floor_of

Counts = list[tuple[Hashable, float | None, int]]

_AT_ONCE = 10_000
_COLUMNS = """
    row_number() OVER (ORDER BY answer.id) AS place, answer.id, answer.policy, answer.status,
    answer.error_code, answer.ttft_ms, answer.duration_ms, answer.output_tokens, answer.prompt_tokens,
    answer.labels, answer.verdicts,
    coalesce('user:' || answer.user_id, 'session:' || answer.session_id, 'key:' || answer.key_id) AS unit
"""
_OF_USERS = f"""
    SELECT {_COLUMNS} FROM serving.response AS answer
    WHERE answer.id >= :low AND answer.policy IN (:candidate, :baseline) AND answer.plan_version = :version
        AND NOT answer.pinned AND answer.probe IS NULL AND answer.pair_of IS NULL
        AND answer.status IN ('ok', 'error', 'cancelled')
"""  # noqa: S608
_OF_COPIES = f"""
    SELECT {_COLUMNS} FROM serving.response AS copy
    JOIN serving.response AS answer ON answer.id IN (copy.id, copy.pair_of)
    WHERE copy.id >= :low AND copy.policy = :candidate AND copy.plan_version = :version
        AND copy.pair_of IS NOT NULL AND copy.status IN ('ok', 'error', 'cancelled')
"""  # noqa: S608
_ENDED_OF_ALL = """
    SELECT * FROM answers WHERE policy = :candidate
    UNION ALL SELECT * FROM of_users WHERE policy = :baseline
"""
_SAID = """
    SELECT answers.id, answers.place, answers.policy, answers.unit, event.kind, event.name, event.value
    FROM answers JOIN feedback.feedback_event AS event ON event.response_id = answers.id
    WHERE event.id >= :low AND event.kind IN ('thumb', 'rating', 'retry', 'regenerate', 'escalate', 'metric')
"""
_OF_PROBES = text("""
    SELECT answer.id, answer.policy, answer.status, answer.labels, answer.probe, answer.output,
    answer.outputs,
           answer.finish_reason
    FROM serving.response AS answer
    WHERE answer.id >= :low AND answer.policy IN (:candidate, :baseline) AND answer.probe LIKE '%:%'
        AND answer.status IN ('ok', 'error')
    ORDER BY answer.id
""")


def _label(name: str) -> str:
    value = f"labels ->> '{name}'"
    return f"CASE {value} WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE ({value})::float8 END"


_FIGURES = {
    Source.ERRORS: ("(status = 'error')::int", "ended"),
    Source.TIMEOUTS: ("coalesce(error_code = 'engine_timeout', false)::int", "ended"),
    Source.ABANDONED: ("(status = 'cancelled')::int", "ended"),
    Source.FIRST_TOKEN: ("ttft_ms / 1000", "answers WHERE status = 'ok'"),
    Source.LATENCY: ("duration_ms / 1000", "answers WHERE status = 'ok'"),
    Source.INTER_TOKEN: (
        "(duration_ms - ttft_ms) / (output_tokens - 1) / 1000",
        "answers WHERE status = 'ok' AND output_tokens > 1 AND ttft_ms IS NOT NULL",
    ),
    Source.COST: (
        "coalesce(prompt_tokens, 0) * CAST(:price_prompt AS float8)"
        " + output_tokens * CAST(:price_output AS float8)",
        "answers WHERE status = 'ok'",
    ),
    Source.LENGTH: ("output_tokens", "answers WHERE status = 'ok'"),
    Source.TRUNCATION: (
        _label("truncated"),
        "answers WHERE status = 'ok' AND labels ->> 'truncated' IS NOT NULL",
    ),
    Source.REPETITION: (
        _label("repetition"),
        "answers WHERE status = 'ok' AND labels ->> 'repetition' IS NOT NULL",
    ),
    Source.REFUSAL: (
        "(labels ->> 'refusal' = 'full')::int",
        "answers WHERE status = 'ok' AND labels ->> 'refusal' IS NOT NULL",
    ),
    Source.GUARDRAIL: (
        "jsonb_path_exists(verdicts, '$.*.flagged ? (@ == true)')::int",
        "answers WHERE status = 'ok' AND verdicts <> '{}'",
    ),
    Source.THUMBS: ("(value + 1) / 2", "said WHERE kind = 'thumb'"),
    Source.RATING: ("least(greatest((value - 1) / 4, 0), 1)", "said WHERE kind = 'rating'"),
    Source.RETRIES: ("(id IN (SELECT id FROM said WHERE kind = 'retry'))::int", "answers"),
    Source.REGENERATIONS: ("(id IN (SELECT id FROM said WHERE kind = 'regenerate'))::int", "answers"),
    Source.ESCALATIONS: ("(id IN (SELECT id FROM said WHERE kind = 'escalate'))::int", "answers"),
}
"""Each source's figure in SQL, and the rows that have one; a figure that is null has failed.

A partial refusal counts as none: only full ones leave a user without an answer.
"""
_TASKS = f"""
    SELECT policy, '{TASK_PREFIX}' || name, unit, value, place FROM said
    WHERE kind = 'metric' AND value IS NOT NULL AND name = ANY(:tasks)
"""  # noqa: S608


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
    session: Session,
    release: Release,
    began: datetime,
    prices: Prices,
    sources: Collection[str],
    *,
    shadow: bool,
) -> dict[str, Measured]:
    """What a stage has measured so far.

    Args:
        session: As the operator.
        release: Whose stage.
        began: When the stage began.
        prices: For the cost of an answer.
        sources: Which are read, as `gateway.releases.plan.Source` or `task:NAME`; others are left out.
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
    counts: dict[str, dict[str, Counts]] = {policy: {} for policy in (release.policy, release.baseline)}
    units: dict[str, set[Hashable]] = {policy: set() for policy in counts}
    statement, more = _statement(sources, prices, shadow=shadow)
    rows = session.execute(text(statement), {**asked, **more}, execution_options={"yield_per": _AT_ONCE})
    for policy, source, unit, value, times in rows:
        if source is None:
            units[policy].add(unit)
        else:
            counts[policy].setdefault(source, []).append((unit, value, times))
    if not PROBED.isdisjoint(sources):
        for row in session.execute(_OF_PROBES, asked):
            _add_probe(counts[row.policy], row)
    return {
        policy: Measured(
            frozenset(units[policy]), {source: Sample.counted(own.get(source, ())) for source in sources}
        )
        for policy, own in counts.items()
    }


def _statement(sources: Collection[str], prices: Prices, *, shadow: bool) -> tuple[str, dict[str, Any]]:
    """The query for all sources at once, and its further parameters."""
    parameters: dict[str, Any] = {}
    branches = ["SELECT policy, NULL AS source, unit, NULL::float8 AS value, place FROM answers"]
    branches += [
        f"SELECT policy, '{source}', unit, ({figure})::float8, place FROM {rows}"  # noqa: S608
        for source, (figure, rows) in _FIGURES.items()
        if source in sources
    ]
    tasks = [source.removeprefix(TASK_PREFIX) for source in sources if source.startswith(TASK_PREFIX)]
    if tasks:
        branches.append(_TASKS)
        parameters["tasks"] = tasks
    if Source.COST in sources:
        parameters |= {"price_prompt": prices.prompt, "price_output": prices.output}
    read = " UNION ALL ".join(branches)
    parts = {"answers": _OF_COPIES if shadow else _OF_USERS}
    if not ENDED.isdisjoint(sources):
        parts |= {"of_users": _OF_USERS} if shadow else {}
        parts["ended"] = _ENDED_OF_ALL if shadow else "SELECT * FROM answers"
    if "said" in read:
        parts["said"] = _SAID
    named = ", ".join(f"{name} AS MATERIALIZED ({part})" for name, part in parts.items())
    counted = f"""
        WITH {named}, measured AS ({read})
        SELECT policy, source, unit, value, count(*) FROM measured
        GROUP BY policy, source, unit, value ORDER BY min(place)
    """  # noqa: S608
    return counted, parameters


def _add_probe(counts: dict[str, Counts], row: Any) -> None:
    kind = row.probe.partition(":")[0]
    failed = row.status != "ok"
    if kind in (BENIGN, HARMFUL):
        source = Source.REFUSAL_BENIGN if kind == BENIGN else Source.REFUSAL_HARMFUL
        refusal = None if failed else row.labels.get("refusal")
        full = None if refusal is None else float(refusal == "full")
        counts.setdefault(source, []).append((row.probe, full, 1))
    went_off = None if failed else sentinel_of(row.probe, row.output or "", row.outputs, row.labels)
    if failed or went_off is not None:
        counts.setdefault(Source.SENTINEL, []).append((row.probe, went_off, 1))
