"""What is known of releases, read as JSON-able documents for the command line, HTTP and the pages."""

from typing import Any
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from gateway.releases.plan import ReleasePlan
from gateway.releases.readiness import why_not_ready
from ratchet.db.models.releases import AnalysisRow, Drill, Look, Release, ReleaseEvent
from ratchet.errors import NotFound
from ratchet.plan import current_plan

Document = dict[str, Any]
LISTED = 200
"""Releases a history goes back."""
SHOWN = 300
"""Looks of a release that its page shows."""


def newest(session: Session, model: str) -> Document:
    """The newest release of a model.

    Raises:
        NotFound: It never had one.
    """
    release = session.scalars(
        select(Release).where(Release.model == model).order_by(Release.id.desc()).limit(1)
    ).first()
    if release is None:
        raise NotFound(f"{model} never had a release; `ratchet release start {model}` begins one")
    return view(session, release)


def newest_of_each(session: Session) -> list[Document]:
    """The newest release of every model, by name."""
    models = session.scalars(select(Release.model).distinct().order_by(Release.model)).all()
    return [newest(session, model) for model in models]


def by_id(session: Session, identity: UUID) -> Document:
    """One release.

    Raises:
        NotFound: There is none of this id.
    """
    release = session.get(Release, identity)
    if release is None:
        raise NotFound(f"no release has the id {identity}")
    return view(session, release)


def view(session: Session, release: Release) -> Document:
    """A release as people ask for it: where it stands, who gets which share, what the last look saw."""
    session.refresh(release)
    plan = current_plan(session, release.model)
    look = session.scalars(
        select(Look).where(Look.release_id == release.id).order_by(Look.id.desc()).limit(1)
    ).first()
    seen = look_document(session, look) if look else None
    return {
        "release": str(release.id),
        "model": release.model,
        "policy": release.policy,
        "baseline": release.baseline,
        "plan": release.plan_name,
        "stage": release.stage,
        "state": release.state,
        "waits_for": why_not_ready(session, release) if release.state == "preparing" else None,
        "since": release.stage_since,
        "started_at": release.created_at,
        "ended_at": release.ended_at,
        "actor": release.actor,
        "reason": release.reason,
        "plan_version": plan.version if plan else None,
        "shares": [
            {"arm": arm.arm.value, "policy": arm.policy, "share": arm.share}
            for arm in (plan.arms if plan else ())
        ],
        "look": seen,
        "metrics": [_told(metric) for metric in seen["metrics"]] if seen else [],
        "selection": str(release.selection_id) if release.selection_id else None,
        "overridden": release.overridden,
        "predicted": release.predicted,
        "observed": release.observed,
    }


def _told(metric: Document) -> Document:
    """A metric of the last look in short."""
    return {
        "metric": metric["metric"],
        "n": {"baseline": metric["n_baseline"], "candidate": metric["n_candidate"]},
        "estimate": metric["estimate"],
        "interval": [metric["low"], metric["high"]],
        "decision": metric["decision"],
    }


def look_document(session: Session, look: Look) -> Document:
    """One look with what it saw of each metric."""
    rows = session.scalars(
        select(AnalysisRow).where(AnalysisRow.look_id == look.id).order_by(AnalysisRow.metric)
    )
    return {
        "number": look.number,
        "stage": look.stage,
        "at": look.created_at,
        "decision": look.decision,
        "reason": look.reason,
        "exposure": look.exposure,
        "metrics": [metric_document(row) for row in rows],
    }


def metric_document(row: AnalysisRow) -> Document:
    """One metric of one look; the estimate is how much worse the candidate is."""
    return {
        "metric": row.metric,
        "n_baseline": row.n_baseline,
        "n_candidate": row.n_candidate,
        "baseline": row.baseline,
        "candidate": row.candidate,
        "estimate": row.estimate,
        "low": row.low,
        "high": row.high,
        "decision": row.decision,
        **row.detail,
    }


def history(session: Session, model: str | None) -> list[Document]:
    """Releases, the newest first, each with its audit."""
    query = select(Release).order_by(Release.id.desc()).limit(LISTED)
    releases = session.scalars(query.where(Release.model == model) if model else query).all()
    return [{**view(session, release), "events": events(session, release.id)} for release in releases]


def events(session: Session, release: UUID) -> list[Document]:
    """The audit of one release, oldest first."""
    rows = session.scalars(
        select(ReleaseEvent).where(ReleaseEvent.release_id == release).order_by(ReleaseEvent.id)
    )
    return [
        {
            "at": row.created_at,
            "kind": row.kind,
            "actor": row.actor,
            "reason": row.reason,
            "before": row.before,
            "after": row.after,
            "plan_version": row.plan_version,
        }
        for row in rows
    ]


def series(session: Session, release: UUID) -> dict[str, list[Document]]:
    """Each metric over the looks of a release, oldest first.

    Of many looks about `SHOWN` are taken, evenly, with the first of each stage and the newest of each metric,
    which alone has its detail.
    """
    found: dict[str, list[Document]] = {}
    for row in session.execute(_SERIES, {"release": release, "shown": SHOWN}).mappings():
        point = {name: value for name, value in row.items() if name != "detail"}
        found.setdefault(row["metric"], []).append({**point, **(row["detail"] or {})})
    return found


_SERIES = text("""
    WITH taken AS (
        SELECT id, stage, created_at, row_number() OVER (ORDER BY id DESC) AS back,
               row_number() OVER (PARTITION BY stage ORDER BY id) AS of_stage,
               (count(*) OVER () + :shown - 1) / :shown AS step
        FROM releases.look WHERE release_id = :release
    ), newest AS (
        SELECT DISTINCT ON (metric) metric, look_id FROM releases.analysis
        WHERE look_id IN (SELECT id FROM taken) ORDER BY metric, look_id DESC
    )
    SELECT taken.created_at AS at, taken.stage, seen.metric, seen.n_baseline, seen.n_candidate, seen.baseline,
           seen.candidate, seen.estimate, seen.low, seen.high, seen.decision,
           CASE WHEN newest.look_id IS NOT NULL THEN seen.detail END AS detail
    FROM taken JOIN releases.analysis AS seen ON seen.look_id = taken.id
    LEFT JOIN newest ON newest.look_id = seen.look_id AND newest.metric = seen.metric
    WHERE newest.look_id IS NOT NULL OR taken.of_stage = 1
        OR (taken.back - 1) % taken.step = 0
    ORDER BY taken.id
""")


def drills(session: Session, model: str, most: int = 20) -> list[Document]:
    """Drills of a model, the newest first."""
    rows = session.scalars(select(Drill).where(Drill.model == model).order_by(Drill.id.desc()).limit(most))
    return [
        {
            "drill": str(row.id),
            "model": row.model,
            "production": row.production,
            "other": row.other,
            "actor": row.actor,
            "state": row.state,
            "started_at": row.started_at,
            "finished_at": row.finished_at,
            **(row.result or {}),
        }
        for row in rows
    ]


def plan_of_release(session: Session, identity: UUID) -> ReleasePlan:
    """The plan that a release follows.

    Raises:
        NotFound: There is no such release.
    """
    release = session.get(Release, identity)
    if release is None:
        raise NotFound(f"no release has the id {identity}")
    return ReleasePlan.parse(release.plan, source=release.plan_name)
