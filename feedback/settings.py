"""Settings of the feedback processes; each is the environment variable `RATCHET_<FIELD>`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from feedback.gold import GoldRule
from ratchet.settings import WorkerSettings

Stratum = Literal["policy", "language", "length"]

DEFAULT_SCHEDULE: dict[str, float] = {
    "heartbeat": 15,
    "join": 5,
    "infer": 20,
    "compare": 300,
    "expire": 60,
    "samples": 30,
    "builds": 30,
    "loops": 5,
    "reconcile": 600,
    "partitions": 86_400,
    "retention": 86_400,
}
"""Seconds between runs of each periodic task."""


class FeedbackSettings(WorkerSettings):
    """The rating page and the Celery worker."""

    feedback_lease_minutes: Annotated[float, Field(gt=0)] = 20.0
    """Minutes a rater has for an item before it goes back."""
    feedback_votes_wanted: Annotated[int, Field(ge=1)] = 2
    """Raters who vote on each item: the overlap that agreement is measured on."""
    feedback_gold_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the items shown that are gold."""
    feedback_gold_min_seen: Annotated[int, Field(ge=1)] = 5
    """Gold items before a rater is judged by them."""
    feedback_gold_min_right: Annotated[float, Field(ge=0, le=1)] = 0.7
    """Share of right gold answers below which a rater is set aside."""
    feedback_session_hours: Annotated[float, Field(gt=0)] = 12.0
    """Hours a rater stays signed in."""
    feedback_secure_cookies: bool = False
    """Send the session cookie over HTTPS only; set it behind an ingress with TLS."""
    feedback_guidelines: Path | None = None
    """Markdown file shown to raters as guidelines; none: the built-in one."""
    feedback_reasons: tuple[str, ...] = (
        "More correct",
        "More helpful",
        "Safer",
        "Clearer",
        "Better length",
        "Followed instructions",
    )
    """Reason tags a rater may give."""
    feedback_comparisons_per_day: Annotated[int, Field(ge=0)] = 200
    """Comparisons made from traffic in 24 hours at most; 0 makes none."""
    feedback_strata: tuple[Stratum, ...] = ("policy", "language", "length")
    """What the comparisons made are spread over evenly."""
    feedback_retention_days: Annotated[int, Field(ge=32)] | None = None
    """Whole months of responses, events and comparisons older than this are dropped; none: kept."""
    feedback_mask_at_rest: bool = False
    """Mask personal data in comments, edits and comparisons before they are kept, not only on export."""
    feedback_schedule: dict[str, float] = Field(default_factory=dict[str, float])
    """Seconds between runs of a periodic task, by its name in `DEFAULT_SCHEDULE`; 0 switches it off."""
    feedback_gateway_url: str | None = None
    """Gateway that is asked for fresh answers to logged prompts."""
    feedback_gateway_key: SecretStr | None = None
    """API key of role `service` for it."""

    @property
    def gold(self) -> GoldRule:
        """How gold items are mixed in, and when a rater fails."""
        return GoldRule(self.feedback_gold_share, self.feedback_gold_min_seen, self.feedback_gold_min_right)

    def every(self, task: str) -> float:
        """Seconds between runs of a periodic task; 0: never."""
        return self.feedback_schedule.get(task, DEFAULT_SCHEDULE[task])
