"""Judges as rows and artefacts: registered once, never changed, refused where they may not judge."""

import json
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from evaluator.judge.templates import TEMPLATES, Template
from evaluator.provenance import (
    Declared,
    JudgeRefused,
    Shared,
    origin_of_judge,
    origin_of_policy,
    parse_declared,
    shared,
)
from ratchet.artifacts import JudgeRef, Kind, address, checked_name, store_of
from ratchet.canonical import canonical_json, digest_of, digest_of_file, short
from ratchet.db.models.evaluation import CalibrationRow, Judge
from ratchet.errors import NotFound, UsageError
from ratchet.home import Home
from ratchet.registry import get_policy

CARD = "judge.json"
MAX_TOKENS = 512

_WITH_REWARD_MODELS = text(
    "SELECT reward_model, kind, name FROM evaluation.shared_with_reward_models(:lineage, :data, :labelling)"
)


@dataclass(frozen=True, slots=True)
class JudgeVersion:
    """A registered judge, with the texts of its prompts."""

    ref: str
    endpoint: str
    model: str
    templates: Mapping[str, Template]
    """By dimension."""
    parameters: dict[str, float]
    """`max_tokens` and `temperature` of a reply."""
    provenance: Declared
    created_at: datetime

    def template(self, dimension: str) -> Template:
        """Its prompt for a dimension.

        Raises:
            UsageError: It has none.
        """
        if dimension not in self.templates:
            raise UsageError(
                f"judge {self.ref} has no prompt for {dimension!r}: it judges {', '.join(self.templates)}"
            )
        return self.templates[dimension]


@dataclass(frozen=True, slots=True)
class NewJudge:
    """A judge to register."""

    name: str
    endpoint: str
    model: str
    templates: Sequence[Template]
    provenance: Declared
    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0

    def content(self) -> dict[str, Any]:
        """All that shapes what it says, and where it comes from; in JSON types."""
        return {
            "endpoint": self.endpoint,
            "model": self.model,
            "parameters": {"max_tokens": self.max_tokens, "temperature": self.temperature},
            "provenance": self.provenance.model_dump(),
            "templates": {one.dimension: _template_content(one) for one in self.templates},
        }


def add_judge(session: Session, home: Home, new: NewJudge) -> tuple[JudgeVersion, bool]:
    """Registers a judge; equal content under one name is one version.

    Args:
        session: As the role `ratchet_evaluator`.
        home: Whose store of judges keeps the prompts.
        new: The judge.

    Returns:
        The version, and whether it is new.

    Raises:
        UsageError: The name is none, or a dimension has two prompts.
    """
    checked_name(new.name)
    dimensions = [one.dimension for one in new.templates]
    if len(set(dimensions)) < len(dimensions) or not dimensions:
        raise UsageError("a judge has one prompt for each dimension, and at least one dimension")
    content = new.content()
    digest = digest_of(content)
    ref = str(JudgeRef(new.name, short(digest)))
    made = session.execute(
        insert(Judge)
        .values(
            ref=ref,
            name=new.name,
            version=short(digest),
            digest=digest,
            artifact=_store(home, content),
            endpoint=new.endpoint,
            model=new.model,
            templates={
                one.dimension: {"name": one.name, "version": one.version, "digest": one.digest}
                for one in new.templates
            },
            parameters=content["parameters"],
            provenance=content["provenance"],
        )
        .on_conflict_do_nothing()
        .returning(Judge.ref)
    ).scalar_one_or_none()
    return get_judge(session, home, ref), made is not None


def get_judge(session: Session, home: Home, name: str) -> JudgeVersion:
    """A judge by `name@version`, or by name for its newest version.

    Raises:
        NotFound: It is not registered, or the store has lost its prompts.
        EnvironmentFault: The prompts are not what was registered.
    """
    query = select(Judge).order_by(Judge.number.desc()).limit(1)
    row = session.scalars(query.where(Judge.ref == name if "@" in name else Judge.name == name)).first()
    if row is None:
        raise NotFound(f"no judge {name!r} is registered; `ratchet judge list` shows those that are")
    card = store_of(home, Kind.JUDGE).open(row.artifact) / CARD
    content: dict[str, Any] = json.loads(card.read_text("utf-8"))
    templates = {name: Template(**fields) for name, fields in content["templates"].items()}
    declared = parse_declared(row.provenance, row.ref)
    return JudgeVersion(row.ref, row.endpoint, row.model, templates, row.parameters, declared, row.created_at)


def list_judges(session: Session) -> list[Judge]:
    """Every judge version, the newest first."""
    return list(session.scalars(select(Judge).order_by(Judge.number.desc())))


def calibrations(session: Session, ref: str) -> list[CalibrationRow]:
    """What was measured of a judge, the newest first."""
    query = select(CalibrationRow).where(CalibrationRow.judge == ref).order_by(CalibrationRow.id.desc())
    return list(session.scalars(query))


def load_template(path: Path) -> Template:
    """A judge prompt from a TOML file with `name`, `version`, `dimension`, `system` and `user`.

    Raises:
        UsageError: It cannot be read, or is none.
    """
    try:
        return Template(**tomllib.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} is no judge prompt: {error}") from error


def built_in_templates(dimensions: Sequence[str]) -> list[Template]:
    """The prompts that come along.

    Raises:
        UsageError: There is none for a dimension.
    """
    unknown = [name for name in dimensions if name not in TEMPLATES]
    if unknown:
        raise UsageError(
            f"no prompt comes along for {unknown[0]!r}, only for {', '.join(TEMPLATES)}:"
            " give a --template FILE"
        )
    return [TEMPLATES[name] for name in dimensions]


def conflicts(session: Session, judge: JudgeVersion, policies: Sequence[str]) -> list[Shared]:
    """What a judge has in common with policies, their ancestors, and every reward model.

    Of reward models only the names come back that the judge declares itself.
    """
    origin = origin_of_judge(judge.provenance, judge.model)
    found: dict[Shared, None] = {}
    for ref in policies:
        found |= dict.fromkeys(shared(origin, origin_of_policy(_generations(session, ref)), ref))
    with_rewards = session.execute(
        _WITH_REWARD_MODELS,
        {
            "lineage": sorted(origin.lineage),
            "data": sorted(origin.training_data),
            "labelling": sorted(origin.labelling),
        },
    )
    return [*found, *(Shared(f"reward model {row.reward_model}", row.kind, row.name) for row in with_rewards)]


def require_independent(session: Session, judge: JudgeVersion, policies: Sequence[str]) -> None:
    """Refuses a judge in its own cause.

    Raises:
        JudgeRefused: It shares lineage, training data or labelling; the message names what and with whom.
    """
    found = conflicts(session, judge, policies)
    if found:
        raise JudgeRefused(
            f"judge {judge.ref} is not independent: it shares {'; '.join(map(str, found[:5]))}"
            f"{f' and {len(found) - 5} more' if len(found) > 5 else ''}. Take a judge of another origin, or"
            " select by task metrics alone"
        )


def require_calibrated(session: Session, judge: JudgeVersion, dimensions: Sequence[str]) -> None:
    """Refuses a judge that was not shown to be good at each dimension it would be asked about.

    Raises:
        JudgeRefused: Its newest calibration is below the bar, was made with another prompt, or is missing.
    """
    newest = {row.dimension: row for row in reversed(calibrations(session, judge.ref))}
    for dimension in dimensions:
        row = newest.get(dimension)
        if row is None or row.template != judge.template(dimension).digest:
            raise JudgeRefused(
                f"judge {judge.ref} was never calibrated for {dimension}: run `ratchet judge calibrate"
                f" {judge.ref} --dimension {dimension} --labels FILE`"
            )
        if not row.passed:
            raise JudgeRefused(
                f"judge {judge.ref} is below the bar for {dimension}: {'; '.join(row.shortcomings)}"
            )


def _generations(session: Session, ref: str) -> list[dict[str, Any]]:
    generations: list[dict[str, Any]] = []
    next_ref: str | None = ref
    while next_ref is not None:
        policy = get_policy(session, next_ref)
        generations.append(vars(policy))
        next_ref = policy.parent
    return generations


def _template_content(template: Template) -> dict[str, Any]:
    return {
        "name": template.name,
        "version": template.version,
        "dimension": template.dimension,
        "system": template.system,
        "user": template.user,
    }


def _store(home: Home, content: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory(prefix="ratchet-judge-") as folder:
        card = Path(folder) / CARD
        card.write_text(canonical_json(content), "utf-8")
        files = {CARD: digest_of_file(card)}
        store_of(home, Kind.JUDGE).put(Path(folder), files)
    return address(files)
