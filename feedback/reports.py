"""Numbers about ratings: agreement among raters, and policies by what raters preferred."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine, text

from feedback.agreement import agreement, ratings_of
from feedback.evidence import Pool
from feedback.matches import matches_of
from feedback.repository import Window, comparisons, frozen_view
from ratchet.bradley_terry import rank

_WAITING = text("""
    SELECT pool, count(*) FILTER (WHERE wanted IS NOT NULL AND leased + voted < wanted) AS open,
           count(*) FILTER (WHERE voted >= wanted) AS complete, count(*) FILTER (WHERE wanted IS NULL) AS gold
    FROM feedback.comparison GROUP BY pool
""")
_EVENTS = text("""
    SELECT kind, origin, count(*) AS events, count(*) FILTER (WHERE state <> 'joined') AS waiting
    FROM feedback.feedback_event WHERE created_at >= :since OR CAST(:since AS timestamptz) IS NULL
    GROUP BY kind, origin ORDER BY kind, origin
""")


def statistics(engine: Engine, pool: Pool, window: Window) -> dict[str, Any]:
    """Agreement and ranking of one pool's ratings, and what was said and is waiting.

    Args:
        engine: As the role `ratchet_feedback`.
        pool: Whose ratings.
        window: Comparisons with a vote in it.
    """
    with frozen_view(engine) as connection:
        rated = [
            item
            for item in comparisons(connection, window)
            if not item.gold and any(vote.pool == pool for vote in item.votes)
        ]
        waiting = {row["pool"]: dict(row) for row in connection.execute(_WAITING).mappings()}
        said = connection.execute(_EVENTS, {"since": window.since}).mappings()
        events = [dict(row) for row in said]
    return {
        "pool": pool,
        "comparisons": len(rated),
        "votes": sum(len(item.votes) for item in rated),
        "items": waiting.get(pool, {"open": 0, "complete": 0, "gold": 0}),
        "agreement": asdict(agreement(ratings_of(rated))),
        "ranking": asdict(rank(matches_of(rated))),
        "events": events,
    }
