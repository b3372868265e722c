"""Settings of `ratchet up`, from the environment as `RATCHET_<FIELD>`."""

from typing import Annotated

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet.errors import ConfigError


class SupervisorSettings(BaseSettings):
    """What an operator may set beside the options of `ratchet up`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_", extra="ignore", frozen=True)

    database_url: SecretStr | None = None
    """PostgreSQL of your own, as a role that may create roles and schemas; none: the embedded one."""
    engine_command: str = "{command}"
    """How an engine is started, in shell words without a shell. `{command}` stands for the whole vLLM
    command; `{python}`, `{model}` (folder), `{served}` (policy), `{host}`, `{port}` and `{fingerprint}` for
    its parts. `numactl -N 0 {command}` wraps it; `podman run ... {model} {port}` replaces it."""
    engine_options: str = ""
    """Further options of vLLM, after ours, such as `--max-num-seqs 64` or `--no-enforce-eager`."""
    engine_dtype: str | None = None
    """vLLM's --dtype; none: float32 on a CPU, where the golden log-probabilities were computed in it, and
    vLLM's own choice on a GPU."""
    engine_max_model_len: Annotated[int, Field(ge=16)] = 4096
    """Tokens of prompt and answer together, where the model's own context is longer."""
    engine_kv_gib: Annotated[int, Field(ge=1)] = 1
    """GiB of main memory for the key-value cache of one engine on a CPU."""
    engine_cores: Annotated[int, Field(ge=1)] | None = None
    """Cores of one engine on a CPU; none: an equal part of what the engines wanted now can share."""
    engine_start_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    """Seconds until an engine must be healthy before it is started again."""


def load_settings() -> SupervisorSettings:
    """Reads the environment.

    Raises:
        ConfigError: A variable is wrong; the message names it.
    """
    try:
        return SupervisorSettings()
    except ValidationError as error:
        reasons = "; ".join(
            f"RATCHET_{str(item['loc'][0]).upper()}: {item['msg']}" for item in error.errors()
        )
        raise ConfigError(f"settings of `ratchet up`: {reasons}") from error
