"""What the routes and the pages of the release process work with."""

from dataclasses import dataclass

from sqlalchemy import Engine

from gateway.releases.control import Control
from gateway.releases.settings import ReleaseSettings


@dataclass(frozen=True, slots=True)
class Desk:
    """One for a process.

    Attributes:
        engine: As the operator.
        control: What can be done.
        settings: The process's.
    """

    engine: Engine
    control: Control
    settings: ReleaseSettings

    @property
    def gateway_url(self) -> str:
        """Where clients ask."""
        return self.settings.release_gateway_url.rstrip("/")
