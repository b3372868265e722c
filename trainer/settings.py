"""Settings of the trainer's processes; each is the environment variable `RATCHET_<FIELD>`."""

from typing import Annotated

from pydantic import Field

from ratchet.settings import WorkerSettings


class TrainerSettings(WorkerSettings):
    """The trainer's web application and Celery worker."""

    trainer_look_every_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds between looks for rounds that were asked for."""
    trainer_reconcile_every_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds between looks for rounds whose worker fell silent."""
    trainer_measure_rewards_every_s: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds between looks for fresh pairs of what is in production, to measure reward models on again."""
    trainer_lost_after_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds of silence after which a round's worker counts as dead."""
