"""Settings of the release process; each is the environment variable `RATCHET_<FIELD>`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, HttpUrl

from ratchet.settings import Process


class ReleaseSettings(Process):
    """The process that walks releases, and shows them."""

    release_gateway_url: str
    """Where clients ask: probes and drills go there."""
    release_tick_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds between rounds over everything that may be due; a plan says how often its metrics are looked
    at."""
    release_ready_s: Annotated[float, Field(gt=0)] = 1800.0
    """Seconds a candidate's engine may take until it is proved and warm; then the release has failed."""
    release_keep_previous_hours: Annotated[float, Field(ge=0)] = 24.0
    """Hours after a promotion without a holdback until the release is closed, and the previous engine let
    go."""
    release_webhook: HttpUrl | None = None
    """Called on automatic aborts, holds and failures, where the release's plan names none."""
    release_probes: Path | None = None
    """TOML file of probe prompts; none: the built-in ones."""
    release_probe_tools: bool = False
    """Send probes that need a tool call too; for policies that make them."""
    release_probe_s: Annotated[float, Field(ge=0)] = 5.0
    """Seconds between two probes of a release; 0 sends none."""
    release_price_prompt: Annotated[float, Field(ge=0)] = 1.0
    """Price of a million prompt tokens, for the cost of an answer; only its proportion to the next
    matters."""
    release_price_output: Annotated[float, Field(ge=0)] = 4.0
    """Price of a million answer tokens."""
    release_session_hours: Annotated[float, Field(gt=0)] = 12.0
    """Hours an operator stays signed in to the pages."""
    release_secure_cookies: bool = False
    """Send the session cookie over HTTPS only; set it behind an ingress with TLS."""
