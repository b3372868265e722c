"""One proof of one engine: what it says of known prompts must be what the policy's own weights say.

Names and fingerprints can be copied; log-probabilities of other weights cannot be equal. The engine must also
tokenize the known texts and chats as the policy does: another tokenizer or chat template is another policy.
"""

import math
from dataclasses import dataclass
from typing import Any

import aiohttp

from gateway import jsontext
from gateway.engines import PooledEngine
from gateway.jsontext import as_list, as_object
from gateway.snapshot import Golden, ServedPolicy

TIMEOUT = aiohttp.ClientTimeout(total=120, sock_connect=5)
NEUTRAL = {
    "temperature": 0,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
}


class NoAnswer(Exception):
    """The engine could not be asked, so nothing is known about it."""


class Refuted(Exception):
    """The engine answered, and is not the policy.

    Attributes:
        fingerprint: What it reported, as far as it came to that.
        difference: Largest difference of a log-probability in nats, likewise.
    """

    def __init__(
        self, reason: str, *, fingerprint: str | None = None, difference: float | None = None
    ) -> None:
        super().__init__(reason)
        self.fingerprint = fingerprint
        self.difference = difference


@dataclass(frozen=True, slots=True)
class Proof:
    """An engine that is the policy.

    Attributes:
        fingerprint: What its answers carry from now on.
        difference: Largest difference of a log-probability in nats.
        context_length: Tokens of prompt and answer together; None when it does not say.
    """

    fingerprint: str
    difference: float
    context_length: int | None


async def prove(
    session: aiohttp.ClientSession, engine: PooledEngine, policy: ServedPolicy, tolerance: float
) -> Proof:
    """Asks an engine about every golden prompt of its policy; one token is generated for each.

    Args:
        session: Sends the engine's key.
        engine: Whom to ask.
        policy: Whom it claims to be.
        tolerance: Largest allowed difference of a log-probability in nats.

    Raises:
        NoAnswer: It could not be asked.
        Refuted: It is not the policy.
    """
    if not policy.golden:
        raise Refuted("the policy has no golden prompts, so nothing can be proved")
    context_length = await _check_name(session, engine, policy.ref)
    fingerprint: str | None = engine.spec.fingerprint
    worst = 0.0
    for number, golden in enumerate(policy.golden, start=1):
        await _check_tokens(session, engine, policy.ref, golden, number)
        answer = await _score(session, engine, policy.ref, golden)
        seen = answer.get("system_fingerprint")
        if not isinstance(seen, str) or not seen:
            raise Refuted("its answers carry no system_fingerprint")
        if fingerprint is not None and seen != fingerprint:
            raise Refuted(f"its fingerprint is {seen!r}, not {fingerprint!r}", fingerprint=seen)
        fingerprint = seen
        difference = largest_difference(golden, answer)
        worst = max(worst, difference)
        if not worst <= tolerance:
            raise Refuted(
                f"its log-probabilities on golden prompt {number} differ by {worst:.4g} nats "
                f"from the policy's own; {tolerance:g} are allowed",
                fingerprint=seen,
                difference=worst,
            )
    assert fingerprint is not None  # noqa: S101
    return Proof(fingerprint, worst, context_length)


def largest_difference(golden: Golden, answer: dict[str, Any]) -> float:
    """The largest difference in nats between an answer's `prompt_logprobs` and the golden ones.

    Raises:
        Refuted: The answer does not score this prompt, or generated no token.
    """
    choice = as_object((as_list(answer.get("choices")) or [None])[0]) or {}
    usage = as_object(answer.get("usage")) or {}
    if not usage.get("completion_tokens"):
        raise Refuted("it generated no token")
    steps = as_list(choice.get("prompt_logprobs")) or []
    if len(steps) != len(golden.token_ids):
        raise Refuted(f"it scored {len(steps)} of {len(golden.token_ids)} tokens of a golden prompt")
    worst = 0.0
    for token, expected, step in zip(golden.token_ids[1:], golden.logprobs, steps[1:], strict=True):
        scored = as_object((as_object(step) or {}).get(str(token))) or {}
        logprob = scored.get("logprob")
        if not isinstance(logprob, int | float):
            raise Refuted(f"it gave no log-probability for token {token} of a golden prompt")
        difference = abs(logprob - expected)
        worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


async def _check_name(session: aiohttp.ClientSession, engine: PooledEngine, ref: str) -> int | None:
    document = await _ask(session, "GET", f"{engine.url}/v1/models", None)
    cards = [as_object(card) or {} for card in as_list(document.get("data")) or []]
    named = next((card for card in cards if card.get("id") == ref), None)
    if named is None:
        names = ", ".join(str(card.get("id")) for card in cards) or "nothing"
        raise Refuted(f"it serves {names}, not {ref}")
    length = named.get("max_model_len")
    return length if isinstance(length, int) else None


async def _check_tokens(
    session: aiohttp.ClientSession, engine: PooledEngine, ref: str, golden: Golden, number: int
) -> None:
    prompt = {"messages": golden.messages} if golden.messages is not None else {"prompt": golden.text}
    request = {"model": ref, **prompt, "add_special_tokens": golden.messages is None}
    document = await _ask(session, "POST", f"{engine.url}/tokenize", request)
    if tuple(as_list(document.get("tokens")) or []) != golden.token_ids:
        raise Refuted(f"it tokenizes golden prompt {number} differently: another tokenizer or chat template")


async def _score(
    session: aiohttp.ClientSession, engine: PooledEngine, ref: str, golden: Golden
) -> dict[str, Any]:
    request = {
        "model": ref,
        "prompt": list(golden.token_ids),
        "max_tokens": 1,
        "prompt_logprobs": 0,
        **NEUTRAL,
    }
    return await _ask(session, "POST", f"{engine.url}/v1/completions", request)


async def _ask(
    session: aiohttp.ClientSession, method: str, url: str, request: dict[str, Any] | None
) -> dict[str, Any]:
    data = None if request is None else jsontext.encode(request)
    headers = {} if data is None else {"Content-Type": "application/json"}
    try:
        async with session.request(
            method, url, data=data, headers=headers, timeout=TIMEOUT, allow_redirects=False
        ) as response:
            body = await response.read()
    except TimeoutError as error:
        raise NoAnswer(f"{url} did not answer within {TIMEOUT.total:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise NoAnswer(f"{url} cannot be reached: {error}") from error
    if response.status in (401, 403):
        raise NoAnswer(f"{url} refuses our key: set RATCHET_ENGINE_API_KEY to the engine's --api-key")
    if response.status >= 500:
        raise NoAnswer(f"{url} answered {response.status}")
    if response.status >= 300:
        text = body[:200].decode("utf-8", "replace")
        raise Refuted(f"{url} answered {response.status}: {text}")
    try:
        document = as_object(jsontext.decode(body))
    except ValueError:
        document = None
    if document is None:
        raise Refuted(f"{url} did not answer with a JSON object")
    return document
