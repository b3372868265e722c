"""Settings of the evaluator that only an operator gives: where judges answer, and the key engines ask for."""

import os
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from evaluator.judge.client import JudgeEndpoint
from ratchet.errors import ConfigError


class JudgeAddress(BaseModel):
    """Where a judge answers, and how hard it may be asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https?://\S+$")
    key: SecretStr = SecretStr("none")
    concurrency: Annotated[int, Field(ge=1)] = 32
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    retries: Annotated[int, Field(ge=0)] = 4


class EvaluatorSettings(BaseSettings):
    """The evaluator."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_", extra="ignore", frozen=True)

    evaluator_judges: dict[str, JudgeAddress] = {}
    """JSON: endpoint name to `{"url": "http://.../v1", "key": ..., "concurrency": ..., "timeout_s": ...}`."""
    evaluator_engine_key: SecretStr | None = None
    """Key the engines ask for; none: that of the data folder, where a command can read it."""
    evaluator_concurrency: Annotated[int, Field(ge=1)] = 16
    """Prompts under way at once at one engine."""

    def endpoint(self, name: str, model: str, parameters: dict[str, float]) -> JudgeEndpoint:
        """The address of a judge by the name that its row gives.

        Args:
            name: Of the endpoint.
            model: The judge's model.
            parameters: Its `max_tokens` and `temperature`.

        Raises:
            ConfigError: The settings have no such endpoint.
        """
        if name not in self.evaluator_judges:
            known = ", ".join(sorted(self.evaluator_judges)) or "none"
            raise ConfigError(
                f"no judge endpoint {name!r} (known: {known}): set RATCHET_EVALUATOR_JUDGES to JSON such as"
                f' {{"{name}": {{"url": "http://host:8000/v1"}}}}'
            )
        address = self.evaluator_judges[name]
        return JudgeEndpoint(
            base_url=address.url,
            model=model,
            api_key=address.key.get_secret_value(),
            concurrency=address.concurrency,
            timeout_seconds=address.timeout_s,
            retries=address.retries,
            max_tokens=int(parameters["max_tokens"]),
            temperature=parameters["temperature"],
        )


def load_settings() -> EvaluatorSettings:
    """Reads them from the environment.

    Raises:
        ConfigError: A value is wrong; the message names its variable and never shows the value.
    """
    try:
        return EvaluatorSettings()
    except ValueError as error:
        given = [name for name in os.environ if name.startswith("RATCHET_EVALUATOR_")]
        raise ConfigError(f"settings of the evaluator cannot be read, look at {', '.join(given)}") from error
