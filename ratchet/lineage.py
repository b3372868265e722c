"""Everything that led to a response, a policy, a round or a user's answers, read from the rows.

Each function gives one JSON-able document. A policy stands there with its digests, decode config and
provenance; its ancestors follow from the nearest to the root.
"""

from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ratchet.db.models.evaluation import SelectionRow
from ratchet.db.models.feedback import DatasetSnapshot, DemonstrationEntry, PreferencePair
from ratchet.db.models.registry import DecodeConfigRow, EngineProof, EngineRow, Policy
from ratchet.db.models.serving import Response, TrafficPlan
from ratchet.db.models.training import Checkpoint, TrainingRound
from ratchet.errors import NotFound
from ratchet.registry import PolicyVersion, find, get_policy

_RESPONSE = (
    "id", "created_at", "status", "model", "policy", "pinned", "decode", "decode_overridden",
    "parameters_used", "arm", "stage", "plan_version", "engine_id", "fingerprint", "stamp", "gateway",
    "user_id", "session_id", "conversation_id", "prompt_hash", "output_sha256", "trace_id", "pair_of",
    "probe",
)  # fmt: skip
_ENGINE = ("id", "policy", "managed", "desired", "state", "url", "fingerprint", "restarts", "created_at")
_PROOF = ("id", "gateway", "fingerprint", "ok", "max_abs_difference", "tolerance", "reason", "created_at")
_ROUND = (
    "id", "method", "state", "policy", "reference", "reference_digest", "snapshot", "config_digest",
    "code_version", "asked_by", "reason", "created_at", "started_at", "ended_at",
)  # fmt: skip
_SELECTION = ("id", "round_id", "run_id", "chosen", "reason", "digest", "created_at")
_SNAPSHOT = ("digest", "kind", "created_at", "withdrawn_at", "withdrawn_reason")
_PLAN = ("version", "model", "stage", "arms", "enforcement", "actor", "reason", "created_at")


def of_response(session: Session, identity: UUID) -> dict[str, Any]:
    """What made one response: policy and ancestors, decode config, traffic plan, engine and its last proof.

    Raises:
        NotFound: There is no such response.
    """
    response = session.get(Response, identity)
    if response is None:
        raise NotFound(
            f"no response {identity}; one that was just given may still be on its way from the gateway"
        )
    plan = session.get(TrafficPlan, response.plan_version) if response.plan_version else None
    engine = session.get(EngineRow, response.engine_id) if response.engine_id else None
    proof = session.scalar(
        select(EngineProof)
        .where(EngineProof.engine_id == response.engine_id, EngineProof.created_at <= response.created_at)
        .where(EngineProof.gateway == response.gateway)
        .order_by(EngineProof.created_at.desc())
        .limit(1)
    )
    policy = find(session, response.policy) if response.policy else None
    decode = session.get(DecodeConfigRow, response.decode) if response.decode else None
    return {
        "kind": "response",
        "response": _fields(response, _RESPONSE),
        "policy": _policy(policy) if policy else None,
        "ancestors": _ancestors(session, policy) if policy else [],
        "decode": decode.config if decode else None,
        "plan": _fields(plan, _PLAN) if plan else None,
        "engine": _fields(engine, _ENGINE) if engine else None,
        "proof": _fields(proof, _PROOF) if proof else None,
    }


def of_policy(session: Session, ref: str) -> dict[str, Any]:
    """What made a policy version and what came of it.

    Ancestors, the rounds that trained it and them, children, rounds that began with it, plans, engines and
    their proofs, responses.

    Raises:
        NotFound: It is not registered.
    """
    policy = get_policy(session, ref)
    children = session.scalars(select(Policy.ref).where(Policy.parent == ref).order_by(Policy.number))
    plans = session.scalars(
        select(TrafficPlan).where(TrafficPlan.arms.contains([{"policy": ref}])).order_by(TrafficPlan.version)
    )
    engines = session.scalars(select(EngineRow).where(EngineRow.policy == ref).order_by(EngineRow.id))
    return {
        "kind": "policy",
        "policy": _policy(policy),
        "ancestors": _ancestors(session, policy),
        "trained_by": _trained_by(session, policy),
        "children": list(children),
        "rounds": [
            _fields(row, _ROUND)
            for row in session.scalars(
                select(TrainingRound).where(TrainingRound.policy == ref).order_by(TrainingRound.id)
            )
        ],
        "selections": _selections(session, SelectionRow.candidates.contains([{"policy": ref}])),
        "plans": [
            {**_fields(plan, _PLAN), "arm": next(arm for arm in plan.arms if arm["policy"] == ref)}
            for plan in plans
        ],
        "engines": [
            {
                **_fields(engine, _ENGINE),
                "proofs": [
                    _fields(proof, _PROOF)
                    for proof in session.scalars(
                        select(EngineProof)
                        .where(EngineProof.engine_id == engine.id)
                        .order_by(EngineProof.created_at)
                    )
                ],
            }
            for engine in engines
        ],
        "responses": _counts(session, Response.policy == ref),
    }


def of_round(session: Session, identity: UUID) -> dict[str, Any]:
    """What a round was made of and what came of it: policy, ancestors, data under all of them, candidates.

    Raises:
        NotFound: There is no such round.
    """
    row = session.get(TrainingRound, identity)
    if row is None:
        raise NotFound(f"no round {identity}: `ratchet round list` shows their ids")
    policy = get_policy(session, row.policy)
    candidates = select(Checkpoint.step, Checkpoint.policy, Checkpoint.digest)
    return {
        "kind": "round",
        "round": _fields(row, _ROUND),
        "config": row.config,
        "snapshot": _snapshot(session, row.snapshot),
        "policy": _policy(policy),
        "ancestors": _ancestors(session, policy),
        "trained_by": _trained_by(session, policy),
        "selections": _selections(session, SelectionRow.round_id == identity),
        "candidates": [
            dict(each)
            for each in session.execute(
                candidates.where(Checkpoint.round_id == identity).order_by(Checkpoint.step)
            ).mappings()
        ],
    }


def of_user(session: Session, user: str) -> dict[str, Any]:
    """A user's answers, counted by the policy, decode config and arm that gave them, and what was made of
    them: the snapshots that hold the user's rows, each with every policy that would be trained anew without
    them.

    Raises:
        NotFound: No response and no row of a snapshot names this user.
    """
    responses = _counts(session, Response.user_id == user)
    trained_on = _snapshots_of_user(session, user)
    if not responses and not trained_on:
        raise NotFound(f"{user!r} is no response id, no policy, and no user of any stored response")
    refs = dict.fromkeys(row["policy"] for row in responses if row["policy"])
    policies = [policy for ref in refs if (policy := find(session, ref))]
    return {
        "kind": "user",
        "user": user,
        "conversations": session.scalar(
            select(func.count(Response.conversation_id.distinct())).where(Response.user_id == user)
        ),
        "responses": responses,
        "policies": [_policy(policy) for policy in policies],
        "snapshots": trained_on,
    }


def _snapshots_of_user(session: Session, user: str) -> list[dict[str, Any]]:
    """Snapshots that hold rows of a user, the oldest first."""
    held: dict[str, int] = {}
    for table in (PreferencePair, DemonstrationEntry):
        counted = select(table.snapshot, func.count()).where(table.user_id == user).group_by(table.snapshot)
        held |= {row[0]: row[1] for row in session.execute(counted)}
    snapshots = select(DatasetSnapshot).where(DatasetSnapshot.digest.in_(held))
    return [
        {
            **_fields(row, _SNAPSHOT),
            "rows_of_the_user": held[row.digest],
            "policies_to_redo": _trained_on(session, row.digest),
        }
        for row in session.scalars(snapshots.order_by(DatasetSnapshot.created_at, DatasetSnapshot.digest))
    ]


def _trained_on(session: Session, snapshot: str) -> list[str]:
    """The candidates of every round on a snapshot, and all policies that descend from them."""
    made = (
        select(Checkpoint.policy.label("ref"))
        .join(TrainingRound, TrainingRound.id == Checkpoint.round_id)
        .where(TrainingRound.snapshot == snapshot, Checkpoint.policy.is_not(None))
        .cte("made", recursive=True)
    )
    made = made.union(select(Policy.ref).join(made, Policy.parent == made.c.ref))
    return list(session.scalars(select(made.c.ref).order_by(made.c.ref)))


def _counts(session: Session, condition: Any) -> list[dict[str, Any]]:
    groups = (Response.policy, Response.decode, Response.arm, Response.status)
    rows = session.execute(
        select(
            *groups,
            func.count().label("count"),
            func.min(Response.created_at).label("first"),
            func.max(Response.created_at).label("last"),
        )
        .where(condition)
        .group_by(*groups)
        .order_by(func.min(Response.created_at))
    )
    return [dict(row) for row in rows.mappings()]


def _ancestors(session: Session, policy: PolicyVersion) -> list[dict[str, Any]]:
    ancestors: list[dict[str, Any]] = []
    while policy.parent is not None:
        policy = get_policy(session, policy.parent)
        ancestors.append(_policy(policy))
    return ancestors


def _trained_by(session: Session, policy: PolicyVersion) -> list[dict[str, Any]]:
    """The rounds that made a policy and its ancestors, the nearest first, each with its snapshot."""
    rounds: list[dict[str, Any]] = []
    following: PolicyVersion | None = policy
    while following is not None:
        made = select(TrainingRound, Checkpoint.step).join(
            Checkpoint, Checkpoint.round_id == TrainingRound.id
        )
        for row, step in session.execute(
            made.where(Checkpoint.policy == following.ref).order_by(TrainingRound.id)
        ):
            rounds.append(
                {
                    "candidate": following.ref,
                    "step": step,
                    **_fields(row, _ROUND),
                    "snapshot": _snapshot(session, row.snapshot),
                }
            )
        following = get_policy(session, following.parent) if following.parent else None
    return rounds


def _selections(session: Session, condition: Any) -> list[dict[str, Any]]:
    """Selection records, the oldest first, each with the judge and the policy it was compared with."""
    rows = session.scalars(select(SelectionRow).where(condition).order_by(SelectionRow.id))
    return [
        {**_fields(row, _SELECTION), "judge": row.record["judge"], "baseline": row.record["baseline"]}
        for row in rows
    ]


def _snapshot(session: Session, digest: str) -> dict[str, Any]:
    row = session.get(DatasetSnapshot, digest)
    if row is None:
        return {"digest": digest}
    told = {name: row.manifest.get(name) for name in ("filter", "by_policy", "by_source", "by_split")}
    return {**_fields(row, _SNAPSHOT), **told}


def _policy(policy: PolicyVersion) -> dict[str, Any]:
    return {**vars(policy), "decode": policy.decode.content()}


def _fields(row: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}
