"""Whether this process lives, whether it can answer, and which models it answers as."""

from typing import Any

from gateway.parts import Parts

RETRY_AFTER_S = 2


def readiness(parts: Parts) -> tuple[bool, dict[str, Any]]:
    """Whether every plan's production policy has a proved engine, and nothing goes unrecorded that must not.

    Returns:
        The verdict, and the reasons for each model.
    """
    snapshot = parts.follower.snapshot
    models = {name: _model(parts, plan.production) for name, plan in sorted(snapshot.plans.items())}
    recorder = parts.recorder.status()
    reasons: list[str] = []
    if not parts.follower.loaded:
        reasons.append(
            f"plans and keys were never read: {parts.follower.trouble or 'PostgreSQL is asked now'}"
        )
    elif not models:
        reasons.append("no model has a traffic plan yet")
    reasons += [f"{name}: {model['reason']}" for name, model in models.items() if not model["ready"]]
    if recorder["full"] and not parts.recorder.fails_open:
        reasons.append(f"the recorder has no room: {recorder['full_reason']}")
    document = {
        "ready": not reasons,
        "reasons": reasons,
        "models": models,
        "recorder": recorder,
        "rows": {"age_s": round(parts.follower.age_s, 3), "trouble": parts.follower.trouble},
    }
    return not reasons, document


def model_list(parts: Parts) -> list[dict[str, Any]]:
    """OpenAI's model objects: every name with a plan, every version that engines are wanted for."""
    snapshot = parts.follower.snapshot
    created = {ref: int(policy.created_at.timestamp()) for ref, policy in snapshot.policies.items()}
    names = {name: created.get(plan.production, 0) for name, plan in snapshot.plans.items()}
    versions = {ref: created[ref] for ref in snapshot.served}
    return [
        {"id": name, "object": "model", "created": moment, "owned_by": "ratchet"}
        for name, moment in sorted({**names, **versions}.items())
    ]


def _model(parts: Parts, policy: str) -> dict[str, Any]:
    ready = parts.pool.is_served(policy)
    return {
        "policy": policy,
        "ready": ready,
        "reason": None if ready else f"no engine serves {policy}: {parts.pool.why_not(policy)}",
        "engines": [
            {
                "id": str(engine.id),
                "state": engine.state.value,
                "reason": engine.reason,
                "row_state": engine.spec.state,
                "last_error": engine.spec.last_error,
                "in_flight": engine.in_flight,
            }
            for engine in parts.pool.of_policy(policy)
        ],
    }
