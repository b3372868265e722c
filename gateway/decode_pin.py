"""The pinned decode config, enforced: what the engine is told, whatever the client would like."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import bad_request
from gateway.fields import PINNED, Kind
from ratchet.canonical import short
from ratchet.decode import DecodeConfig, SeedPolicy
from ratchet.plan import Enforcement

PASSED_ON = (
    "n",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "logprobs",
    "top_logprobs",
)
"""Fields that are the client's own choice."""


@dataclass(frozen=True, slots=True)
class PinnedRequest:
    """How the engine is asked.

    Attributes:
        parameters: Every sampling parameter, explicit, so that no default of the engine can matter.
        overridden: Fields whose client value was replaced by the pinned one, sorted.
    """

    parameters: dict[str, Any]
    overridden: list[str]


def pin(
    kind: Kind, asked: Mapping[str, Any], decode: DecodeConfig, enforcement: Enforcement, room: int | None
) -> PinnedRequest:
    """Puts the pinned values in the place of the client's.

    Args:
        kind: Which endpoint.
        asked: The client's checked fields.
        decode: The policy's pinned config.
        enforcement: Replace differing values, or refuse the request.
        room: Context length of the engines, which bounds an answer too; None when unknown.

    Raises:
        ApiError: 400 naming the differing fields, where the plan refuses them.
    """
    parameters: dict[str, Any] = {name: getattr(decode, name) for name in PINNED if name != "logit_bias"}
    if decode.logit_bias:
        parameters["logit_bias"] = {str(token): bias for token, bias in decode.logit_bias.items()}
    overridden = [name for name in PINNED if name in asked and _differs(name, asked[name], decode)]

    wishes = [asked[name] for name in ("max_tokens", "max_completion_tokens") if name in asked]
    overridden += [name for name in ("max_tokens", "max_completion_tokens")
                   if name in asked and asked[name] > decode.max_tokens]  # fmt: skip
    limit = min([decode.max_tokens, *wishes, *([room] if room else [])])
    parameters["max_completion_tokens" if kind is Kind.CHAT else "max_tokens"] = limit

    stops = list(dict.fromkeys([*decode.stop, *asked.get("stop", [])]))
    if stops:
        parameters["stop"] = stops

    seed = asked.get("seed") if decode.seed_policy is SeedPolicy.CLIENT else decode.seed
    if seed is not None:
        parameters["seed"] = seed
    if asked.get("seed") is not None and asked["seed"] != seed:
        overridden.append("seed")

    parameters |= {name: asked[name] for name in PASSED_ON if name in asked}
    overridden.sort()
    if overridden and enforcement is Enforcement.REFUSE:
        raise bad_request(
            overridden[0],
            f"{', '.join(overridden)} differ from the decode config pinned with this model: leave them out",
            code="decode_pinned",
        )
    return PinnedRequest(parameters, overridden)


def header(digest: str, overridden: list[str], ignored: tuple[str, ...]) -> str:
    """The value of `x-ratchet-decode`: the digest's beginning, and the fields that had no effect."""
    parts = [short(digest)]
    if ignored:
        parts.append("ignored=" + ",".join(ignored))
    if overridden:
        parts.append("overridden=" + ",".join(overridden))
    return "; ".join(parts)


def _differs(name: str, value: Any, decode: DecodeConfig) -> bool:
    if name == "top_k" and value == -1:
        value = 0
    return value != getattr(decode, name)
