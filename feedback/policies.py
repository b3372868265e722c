"""Which policy versions a data set may speak of: the one now served, a name, or a lineage."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, Row, text

from feedback.staleness import lineage
from ratchet.errors import NotFound, UsageError

_POLICIES = text("SELECT ref, name, parent FROM registry.policy ORDER BY number")
_SERVED = text(
    "SELECT DISTINCT ON (model) model, arms FROM serving.traffic_plan ORDER BY model, version DESC"
)


@dataclass(frozen=True, slots=True)
class Registry:
    """The policies there are, and which is served."""

    parents: Mapping[str, str | None]
    names: Mapping[str, str]
    """Version to name."""
    served: Mapping[str, str]
    """Model name to the version in production."""

    @classmethod
    def read(cls, connection: Connection) -> "Registry":
        """The registry as it is now."""
        rows = connection.execute(_POLICIES).all()
        served = {row.model: _production(row) for row in connection.execute(_SERVED)}
        return cls({row.ref: row.parent for row in rows}, {row.ref: row.name for row in rows}, served)

    def current(self, model: str | None = None) -> str:
        """The version in production.

        Args:
            model: Of this model name; None where only one is served.

        Raises:
            NotFound: Nothing is served under this name, or at all.
            UsageError: Several models are served and none is named.
        """
        if model is not None:
            if model not in self.served:
                raise NotFound(
                    f"no model {model!r} is served; served are: {', '.join(self.served) or 'none'}"
                )
            return self.served[model]
        versions = set(self.served.values())
        if len(versions) == 1:
            return versions.pop()
        if not versions:
            raise NotFound("no policy is served, so none is current: name one, or leave --policy out")
        raise UsageError(f"several models are served ({', '.join(self.served)}): say which with --model")

    def chosen(self, wish: str, model: str | None, max_distance: int | None) -> frozenset[str]:
        """The versions a wish means.

        Args:
            wish: `current`, `lineage` (the current one and its ancestors), a name (all its versions), or
                `name@version`.
            model: See `current`.
            max_distance: Of a lineage, steps back at most.

        Raises:
            NotFound: No policy has this name, or none is served.
        """
        if wish == "current":
            return frozenset({self.current(model)})
        if wish == "lineage":
            distances = lineage(self.current(model), self.parents)
            return frozenset(
                ref for ref, distance in distances.items() if max_distance is None or distance <= max_distance
            )
        if wish in self.parents:
            return frozenset({wish})
        named = frozenset(ref for ref, name in self.names.items() if name == wish)
        if not named:
            raise NotFound(f"no policy is named {wish!r}: `ratchet policy list` names them")
        return named


def _production(row: Row[tuple[str, list[dict[str, str]]]]) -> str:
    return next(arm["policy"] for arm in row.arms if arm["arm"] == "production")
