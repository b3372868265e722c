"""The database roles: one for each service, each with the least it needs.

The grants themselves stand in the migrations, beside the tables they speak of.
"""

from enum import StrEnum


class Role(StrEnum):
    """A PostgreSQL login. Values are the role names."""

    OWNER = "ratchet_owner"
    """Owns every object; used by migrations alone."""
    GATEWAY = "ratchet_gateway"
    FEEDBACK = "ratchet_feedback"
    TRAINER = "ratchet_trainer"
    EVALUATOR = "ratchet_evaluator"
    OPERATOR = "ratchet_operator"
    """The command line and the supervisor of engines."""
    REPORT = "ratchet_report"
    """Read-only joins for reports, after a selection record is written."""

    @property
    def service(self) -> str:
        """The name without its prefix: how people and secret files say it."""
        return self.value.removeprefix("ratchet_")


SERVICE_ROLES = tuple(role for role in Role if role is not Role.OWNER)
