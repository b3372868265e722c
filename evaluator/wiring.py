"""What commands need to run an evaluation on a stack: suites by name or path, and the parts of a run."""

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine

from evaluator.engines import Report
from evaluator.harness import Parts
from evaluator.settings import EvaluatorSettings
from evaluator.suites.model import Suite, built_in_suites, load_suite
from ratchet.errors import UsageError
from ratchet.home import Home
from ratchet.labels.refusal import refusal
from ratchet.secrets_store import known_shared_key
from ratchet.supervisor.engines import ENGINE_KEY


def suites_named(names: Sequence[str]) -> tuple[Suite, ...]:
    """Suites by name, for those that come along, or by path; all that come along where none is named.

    Raises:
        UsageError: A name is neither.
        ConfigError: A file is no suite.
    """
    known = {suite.name: suite for suite in built_in_suites()}
    if not names:
        return tuple(known.values())
    return tuple(_named(name, known) for name in names)


def parts_of(home: Home, database: Engine, settings: EvaluatorSettings, report: Report) -> Parts:
    """The parts of a run on the stack of a data folder.

    Args:
        home: Of the stack; its engines' key is used where the settings have none.
        database: As the role `ratchet_evaluator`.
        settings: Of the evaluator.
        report: Told how far it is.
    """
    given = settings.evaluator_engine_key
    key = given.get_secret_value() if given is not None else known_shared_key(home, ENGINE_KEY)
    return Parts(database, settings, key or "none", refuses, report)


def refuses(text: str) -> bool | None:
    """Whether a text refuses in full, as traffic is labelled too; null where it is too short to tell."""
    label = refusal(text)
    return None if label is None else label == "full"


def _named(name: str, known: dict[str, Suite]) -> Suite:
    if name in known:
        return known[name]
    path = Path(name)
    if path.suffix != ".toml":
        raise UsageError(
            f"{name!r} is no suite: name a TOML file, or one that comes along ({', '.join(known)})"
        )
    return load_suite(path)
