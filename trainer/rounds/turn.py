"""Asking for a turn of the loop. What is the trainer's is checked here, at once; what others will be asked is
checked by each of them before the first step begins."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Engine

from ratchet.db.engine import session_scope
from ratchet.errors import ConfigError, UsageError
from ratchet.loop import Wish, begin
from trainer.config import Method
from trainer.rounds.asking import Build, find_policy

PAIRS: dict[str, dict[str, Any]] = {
    "current": {"policy": "current"},
    "lineage": {"policy": "lineage"},
    "all": {},
}
"""Filters of a turn's snapshot, by the words that people use."""
_GIVEN = ("method", "model", "snapshot", "reference")


@dataclass(frozen=True)
class Selecting:
    """What the evaluator is asked.

    Attributes:
        suites: Names, or paths of files; none: those that come along.
        judge: `NAME@VERSION` or `NAME`; None: task metrics only.
        primary: Suite that ranks; None leaves it to the evaluator.
        data: What paths of data files in suites are relative to.
    """

    suites: tuple[str, ...] = ()
    judge: str | None = None
    primary: str | None = None
    data: Path | None = None

    def content(self) -> dict[str, Any]:
        """As the turn's row keeps it: files by their text, so that they mean the same later.

        Raises:
            ConfigError: A file cannot be read.
        """
        return {
            "suites": [named_or_text(each) for each in self.suites],
            "judge": self.judge,
            "primary": self.primary,
            "data": "" if self.data is None else str(self.data.resolve()),
        }


def named_or_text(wish: str) -> str:
    """A name as it is; of a TOML file, its text.

    Raises:
        ConfigError: The file cannot be read.
    """
    path = Path(wish)
    if path.suffix != ".toml":
        return wish
    try:
        return path.read_text("utf-8") + "\n"
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def ask_for_turn(
    engine: Engine,
    method: Method,
    build: Build,
    *,
    policy: str,
    pairs: str,
    selecting: Selecting,
    release_plan: str | None,
    by: str,
    reason: str,
) -> UUID:
    """Asks for a turn of the loop.

    Args:
        engine: As the operator.
        method: What is trained.
        build: Makes the round's configuration.
        policy: See `find_policy`.
        pairs: A key of `PAIRS`.
        selecting: What the evaluator is asked.
        release_plan: Name or file of the plan by which what is selected is released; None proposes it only.
        by: Who asks, for people.
        reason: Why.

    Raises:
        UsageError: A part is wrong, or a turn of the model is under way.
    """
    if pairs not in PAIRS:
        raise UsageError(f"--pairs is {', '.join(PAIRS)}, not {pairs!r}")
    config = build({"model": Path("model"), "snapshot": Path("snapshot")})
    if config.method is not method:
        raise ConfigError(f"the configuration is of method {config.method}, not {method}")
    if config.reference is not None:
        raise ConfigError("a turn measures KL from the policy it trains on: leave `reference` out")
    filters = dict(PAIRS[pairs])
    with session_scope(engine) as session:
        version = find_policy(session, policy)
        if filters:
            filters["model"] = version.name
        wish = Wish(
            model=version.name,
            policy=version.ref,
            method=method.value,
            config={name: value for name, value in config.content().items() if name not in _GIVEN},
            pairs=filters,
            selection=selecting.content(),
            release=release_plan is not None,
            plan=None if release_plan is None else named_or_text(release_plan),
        )
        return begin(session, wish, by=by, reason=reason)
