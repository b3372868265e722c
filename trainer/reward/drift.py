"""Whether a reward model still knows the policy it is used on: measured again on that policy's own pairs.

A reward model is fitted to answers of the policy that gathered its data. As the policy moves on, it scores
answers unlike any it has seen; its accuracy on fresh pairs falls before anything else shows it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.orm import Session

from ratchet.alarms import raise_alarm
from ratchet.db.models.training import RewardMeasurement, RewardModel
from ratchet.ids import new_id
from trainer.reward.statistics import Measured, change


@dataclass(frozen=True)
class Drift:
    """How the accuracy changed since the reward model was trained.

    Attributes:
        before: On validation pairs of its own data.
        now: On the fresh pairs.
        change: Now less before.
        fallen: Whether the whole interval of the change lies below zero.
    """

    before: Measured
    now: Measured
    change: Measured
    fallen: bool

    def document(self) -> dict[str, Any]:
        """In JSON types."""
        return asdict(self)


def drift(before: Mapping[str, Any], now: Mapping[str, Any]) -> Drift:
    """Compares two reports of one reward model."""
    first, second = Measured(**before["accuracy"]), Measured(**now["accuracy"])
    difference = change(first, second)
    return Drift(first, second, difference, fallen=difference.high < 0)


def observe(
    session: Session, model: RewardModel, *, report: dict[str, Any], policy: str | None, snapshot: str
) -> Drift:
    """Writes a new measurement, and raises an alarm where the accuracy fell.

    Alarms are read by everyone, the evaluator too; the figures are not for it, so the alarm names the
    measurement that holds them.

    Args:
        session: As the trainer.
        model: The row of the reward model.
        report: What was measured now.
        policy: Whose answers all pairs are; None where they are of several policies.
        snapshot: Digest of the data.
    """
    found, identity = drift(model.report, report), new_id()
    session.add(
        RewardMeasurement(
            id=identity, reward_model=model.ref, policy=policy, snapshot=snapshot, report=report
        )
    )
    if found.fallen:
        raise_alarm(session, "reward-model-drift", model.name, {"measurement": str(identity)})
    return found
