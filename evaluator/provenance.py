"""Where judges, policies and reward models come from, and whether a judge is a judge in its own cause.

A judge that grew from the same weights as what it judges prefers its own manner; one that was trained on the
same data or labelled by the same people repeats what the reward already says. Either way its verdict is no
held-out one. So names of lineage, training data and labelling are declared for a judge and read from the rows
of policies, and no name may be on both sides. Letter case does not tell names apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ratchet.errors import UsageError

PREFERENCE_RATERS = "raters:preference"
"""Who labels whatever is trained on a snapshot of this stack."""
_SOURCES = ("source", "repo", "repository", "url", "model", "package")
"""Keys that name where weights came from; the SQL function shared_with_reward_models has the same."""


class JudgeRefused(UsageError):
    """A judge that may not judge here: it shares too much with what it would judge, or was not shown good."""


class Declared(BaseModel):
    """What an operator declares of a judge: every list is given, an empty one says that there is nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    lineage: list[str] = Field(min_length=1)
    """Models it grew from, such as `hf:org/name`, digests of weights, policy versions."""
    training_data: list[str]
    """Data sets it was trained on: names, digests of snapshots."""
    labelling: list[str]
    """Who labelled them, such as `raters:agency`."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Names in lower case."""

    lineage: frozenset[str]
    training_data: frozenset[str]
    labelling: frozenset[str]


@dataclass(frozen=True, slots=True)
class Shared:
    """Something on both sides."""

    of: str
    """The policy or reward model."""
    kind: str
    """`lineage`, `training data` or `labelling`."""
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} with {self.of}"


def parse_declared(document: Any, source: str) -> Declared:
    """Checks what is declared of a judge.

    Raises:
        UsageError: A list is missing or wrong; the message names it.
    """
    try:
        return Declared.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise UsageError(
            f"{source}: {place}: {first['msg']}; lineage, training_data and labelling are lists of names"
        ) from error


def origin_of_judge(declared: Declared, model: str) -> Origin:
    """A judge's origin; the model it is asked as counts as its lineage, and the raters' pool as its labelling
    only where it is declared."""
    return Origin(
        _folded([*declared.lineage, model]), _folded(declared.training_data), _folded(declared.labelling)
    )


def origin_of_policy(generations: Sequence[Mapping[str, Any]]) -> Origin:
    """A policy's origin, over itself and its ancestors.

    Args:
        generations: Of each: `ref`, `name`, `digest`, `weights_digest`, `provenance`.
    """
    lineage: list[str] = []
    data: list[str] = []
    labelling: list[str] = []
    for policy in generations:
        provenance: Mapping[str, Any] = policy["provenance"]
        lineage += [policy[field] for field in ("ref", "name", "digest", "weights_digest")]
        lineage += [str(provenance[field]) for field in _SOURCES if provenance.get(field)]
        lineage += _names(provenance, "lineage")
        data += _names(provenance, "training_data")
        labelling += _names(provenance, "labelling")
        if provenance.get("snapshot"):
            data.append(str(provenance["snapshot"]))
            labelling.append(PREFERENCE_RATERS)
    return Origin(_folded(lineage), _folded(data), _folded(labelling))


def shared(judge: Origin, other: Origin, of: str) -> list[Shared]:
    """What both have in common, by kind and name."""
    sides = (
        ("lineage", judge.lineage & other.lineage),
        ("training data", judge.training_data & other.training_data),
        ("labelling", judge.labelling & other.labelling),
    )
    return [Shared(of, kind, name) for kind, names in sides for name in sorted(names)]


def _names(provenance: Mapping[str, Any], field: str) -> list[str]:
    value = provenance.get(field)
    return [str(name) for name in cast(list[Any], value)] if isinstance(value, list) else []


def _folded(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in names if name)
