"""Which policies a stack serves: what the traffic plans say, and what `--model` adds to them."""

import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine as Connections

from ratchet import subprogram
from ratchet.db.engine import session_scope
from ratchet.errors import NotFound
from ratchet.home import Home
from ratchet.plan import Arm, Plan, PlannedArm, current_plans, publish
from ratchet.registry import add_policy, folder_of, get_policy, resolve
from ratchet.supervisor.show import Show

DEFAULT_MODEL = "smollm2"
FETCH_PROGRAM = "trainer.fetch"
ACTOR = "ratchet up"


@dataclass(frozen=True)
class Served:
    """What clients will find.

    Attributes:
        models: Model name to the policy in production.
        policies: Policies that need an engine now.
    """

    models: dict[str, str]
    policies: tuple[str, ...]


def settle(connections: Connections, home: Home, wish: str | None, show: Show) -> Served:
    """Makes sure that there is something to serve.

    A model name that has a plan keeps it: a newer version reaches traffic by a release, never by a restart.

    Args:
        connections: To the database, as operator.
        home: The data folder.
        wish: Name of a registered policy, a model folder, or None for what the plans say.
        show: Where it is told.

    Raises:
        NotFound: No policy and no folder is called so.
        PolicyRefused: The folder cannot become a policy.
        EnvironmentFault: The artefact of a policy is not what was stored.
    """
    with session_scope(connections) as session:
        plans = current_plans(session)
    wish = wish or (None if plans else DEFAULT_MODEL)
    asked = plans
    if wish is not None:
        policy = _registered(connections, home, wish, show)
        name = policy.rpartition("@")[0]
        plan = plans.get(name) or _first_plan(connections, name, policy)
        if plan.production != policy:
            show.trouble(
                "policy", f"{policy} is registered, but {plan.production} stays in production until a release"
            )
        asked = {name: plan}
    for name, plan in asked.items():
        for policy in plan.policies:
            _prove_artifact(connections, home, policy)
        show.done(
            "policy", f"{name} is answered by " + ", ".join(f"{arm.policy} ({arm.arm})" for arm in plan.arms)
        )
    policies = dict.fromkeys(policy for plan in asked.values() for policy in plan.policies)
    models = {name: plan.production for name, plan in {**asked, **plans}.items()}
    return Served(models, tuple(policies))


def _registered(connections: Connections, home: Home, wish: str, show: Show) -> str:
    try:
        with session_scope(connections) as session:
            return resolve(session, wish).ref
    except NotFound as unknown:
        folder = Path(wish).expanduser()
        if folder.is_dir():
            return _add(connections, home, _name_of(folder.resolve()), folder.resolve(), show)
        if wish != DEFAULT_MODEL:
            raise NotFound(
                f"no policy and no folder is called {wish!r}: give a model folder, or a name of "
                "`ratchet policy list`"
            ) from unknown
    target = home.models / DEFAULT_MODEL
    subprogram.run(
        FETCH_PROGRAM, [DEFAULT_MODEL, "--to", str(target)], lambda stage: show.wait("model", stage)
    )
    return _add(connections, home, DEFAULT_MODEL, target, show)


def _add(connections: Connections, home: Home, name: str, folder: Path, show: Show) -> str:
    added = add_policy(
        connections,
        home,
        name=name,
        path=folder,
        report=lambda stage: show.wait("policy", f"{name}: {stage}"),
    )
    if added.created:
        show.done("policy", f"registered {added.policy.ref} from {folder}")
    return added.policy.ref


def _name_of(folder: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip("._-")[:64]
    return name or "model"


def _first_plan(connections: Connections, name: str, policy: str) -> Plan:
    arms = (PlannedArm(Arm.PRODUCTION, policy, 1.0),)
    with session_scope(connections) as session:
        publish(
            session, model=name, stage="production", arms=arms, actor=ACTOR, reason=f"first policy of {name}"
        )
        return current_plans(session)[name]


def _prove_artifact(connections: Connections, home: Home, policy: str) -> None:
    with session_scope(connections) as session:
        version = get_policy(session, policy)
    folder_of(home, version)
