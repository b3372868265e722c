"""The decode configuration a policy was trained under: pinned with its weights, addressed by content."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ratchet.canonical import digest_of
from ratchet.errors import DecodeConfigError


class SeedPolicy(StrEnum):
    """Who may choose the sampler's seed."""

    CLIENT = "client"
    """The client's seed is used; without one the engine draws freely."""
    FIXED = "fixed"
    """Always `seed`; a client's own seed is overridden."""
    NONE = "none"
    """No seed is ever sent; a client's own seed is overridden."""


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("NUL cannot be part of a stop text")
    return text


StopText = Annotated[str, Field(min_length=1), AfterValidator(_without_nul)]


class DecodeConfig(BaseModel):
    """How tokens are drawn from the policy. Frozen; equal content has an equal digest.

    Ranges are those of the OpenAI and vLLM sampling parameters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 considers every token."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Upper bound of an answer in tokens; a client may ask for fewer."""
    stop: Annotated[tuple[StopText, ...], Field(max_length=16)] = ()
    """Always in force; a client may add its own."""
    seed_policy: SeedPolicy = SeedPolicy.CLIENT
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    """The fixed seed; set exactly when `seed_policy` is `fixed`."""
    logit_bias: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict[int, float]
    )
    """Token id to additive bias on its logit."""

    @model_validator(mode="after")
    def _seed_fits_its_policy(self) -> Self:
        if (self.seed is not None) != (self.seed_policy is SeedPolicy.FIXED):
            raise ValueError("seed must be given exactly when seed_policy is 'fixed'")
        return self

    def content(self) -> dict[str, Any]:
        """Every field, defaults included, in JSON types: what the digest is taken over."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the canonical content."""
        return digest_of(self.content())

    @classmethod
    def parse(cls, values: dict[str, Any], *, source: str) -> Self:
        """Checks values from a file or a row.

        Args:
            values: Field name to value.
            source: Where they came from, for the message.

        Raises:
            DecodeConfigError: A value is unknown or out of range; the message names it.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            reasons = "; ".join(
                f"{'.'.join(str(part) for part in item['loc']) or 'decode config'}: {item['msg']}"
                for item in error.errors()
            )
            raise DecodeConfigError(f"{source}: {reasons}") from error

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Reads a TOML or JSON file.

        Raises:
            DecodeConfigError: The file cannot be read or parsed, or a value is out of range.
        """
        import json
        import tomllib

        try:
            text = path.read_text("utf-8")
            values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except (OSError, ValueError) as error:
            raise DecodeConfigError(f"{path}: cannot read this decode file: {error}") from error
        return cls.parse(values, source=str(path))
