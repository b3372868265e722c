"""Settings, one small class for each process; every field is an environment variable `RATCHET_<FIELD>`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet.errors import ConfigError


class Process(BaseSettings):
    """What every process of a stack is given."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_", extra="ignore", frozen=True)

    database_url: SecretStr
    """Address of this process's own database role."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    log_format: str = "json"
    """`json` for machines, `console` for people."""
    instance: str = "local"
    """Name of this process among its like; it stands in rows and metrics."""
    otlp_endpoint: str | None = None
    """OTLP/HTTP collector for traces and metrics, such as `http://collector:4318`; none: not exported."""


class FullSpool(StrEnum):
    """What the gateway does when the recorder's spool has no room."""

    FAIL_CLOSED = "fail-closed"
    """Refuse the request with 503: nothing is answered that is not recorded."""
    FAIL_OPEN = "fail-open"
    """Answer without a record, count it, and raise an alarm."""


class GatewaySettings(Process):
    """The gateway."""

    spool_dir: Path
    """Folder of the durable spool; each gateway process makes its own folder in it."""
    spool_max_bytes: Annotated[int, Field(ge=1 << 16)] = 2 << 30
    """Bytes the spool may hold before it counts as full."""
    spool_full: FullSpool = FullSpool.FAIL_CLOSED
    """What happens when the spool or its disk is full."""
    spool_fsync_interval_s: Annotated[float, Field(ge=0)] = 0.5
    """Seconds between syncs of the spool to disk (power loss; a killed process loses nothing); 0: never."""
    engine_api_key: SecretStr | None = None
    """Key the engines ask for."""
    plan_poll_s: Annotated[float, Field(gt=0)] = 2.0
    """Seconds between polls of plan, keys and engines, beside LISTEN/NOTIFY."""
    proof_tolerance: Annotated[float, Field(gt=0)] = 0.02
    """Largest allowed difference, in nats, between an engine's and the golden log-probability of a token."""
    max_concurrency: Annotated[int, Field(ge=1)] = 256
    """Requests in flight at once in this process."""
    max_queue: Annotated[int, Field(ge=0)] = 256
    """Requests that may wait for a place; one more gets 503."""
    queue_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds a request may wait for a place before it gets 503."""
    upstream_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds an answer may take in all."""
    upstream_first_byte_s: Annotated[float, Field(gt=0)] = 300.0
    """Seconds until the engine's first byte."""
    shadow_places: Annotated[int, Field(ge=0)] = 8
    """Shadow answers under way at once in this process; requests beyond are not copied."""
    shadow_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds a shadow answer may take in all; none: as long as the answer it is a copy of may."""
    switch_dir: Path | None = None
    """Folder in which `ratchet release abort --offline` leaves its switch; none: there is no such switch."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 << 20
    """Largest request body."""


class WorkerSettings(Process):
    """A subsystem's web application and Celery worker."""

    broker_url: SecretStr
    """Celery broker; on a laptop kombu's SQLAlchemy transport on the same PostgreSQL."""


S = TypeVar("S", bound=Process)


def load(kind: type[S]) -> S:
    """Reads a process's settings from its environment.

    Raises:
        ConfigError: A variable is missing or wrong; the message names it.
    """
    try:
        return kind()  # type: ignore[call-arg]
    except ValidationError as error:
        reasons = "; ".join(
            f"RATCHET_{str(item['loc'][0]).upper()}: {item['msg']}" if item["loc"] else item["msg"]
            for item in error.errors()
        )
        raise ConfigError(f"settings of {kind.__name__}: {reasons}") from error
