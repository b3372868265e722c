"""Answers of a policy under its pinned decode config, many at once, straight from its vLLM server.

Every sampling parameter is sent, so that no default of the engine can matter. Where the config leaves the
seed to clients, it follows from the run's seed and the item, so that a run can be repeated.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from openai import APIError, AsyncOpenAI, BadRequestError
from openai.types.chat import ChatCompletion

from evaluator.engines import ServedPolicy
from evaluator.scorers.outcome import Answer
from evaluator.suites.items import Item
from ratchet.decode import DecodeConfig, SeedPolicy
from ratchet.errors import EngineError, StampMismatch
from ratchet.prompts import storable

TIMEOUT_S = 600.0
RETRIES = 3


class GenerationFailed(EngineError):
    """An engine gave no answer to a prompt, however often it was asked."""


@dataclass(frozen=True, slots=True)
class Given:
    """An answer as it came, and the fingerprint of what gave it."""

    item: Item
    answer: Answer
    fingerprint: str | None


def request_body(decode: DecodeConfig, seed: int, item: Item, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The sampling part of a request: every parameter of the pinned config, and nothing else of ours."""
    body: dict[str, Any] = {
        "temperature": decode.temperature,
        "top_p": decode.top_p,
        "presence_penalty": decode.presence_penalty,
        "frequency_penalty": decode.frequency_penalty,
        "max_completion_tokens": decode.max_tokens,
        "extra_body": {
            "top_k": decode.top_k,
            "min_p": decode.min_p,
            "repetition_penalty": decode.repetition_penalty,
        },
    }
    if decode.stop:
        body["stop"] = list(decode.stop)
    if decode.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in decode.logit_bias.items()}
    if decode.seed_policy is not SeedPolicy.NONE:
        body["seed"] = _seed(seed, item) if decode.seed is None else decode.seed
    if tools:
        body["tools"] = tools
    return body


async def generate(
    served: ServedPolicy,
    decode: DecodeConfig,
    asked: Sequence[tuple[Item, list[dict[str, Any]]]],
    *,
    api_key: str,
    seed: int,
    concurrency: int,
) -> AsyncGenerator[Given]:
    """Asks for every answer; each is given as soon as it is there, in no order.

    A prompt that the engine says is too long counts as a truncated, empty answer.

    Args:
        served: Who answers.
        decode: The policy's pinned config.
        asked: Items, each with the tools it offers.
        api_key: What the engine asks for.
        seed: Of the run.
        concurrency: Prompts under way at once.

    Raises:
        GenerationFailed: The engine failed for good on a prompt.
        StampMismatch: An answer carries another fingerprint than the engine's row.
    """
    places = asyncio.Semaphore(concurrency)
    async with AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key=api_key, timeout=TIMEOUT_S, max_retries=RETRIES
    ) as client:

        async def one(item: Item, tools: list[dict[str, Any]]) -> Given:
            async with places:
                return await _answer(client, served, item, request_body(decode, seed, item, tools))

        tasks = [asyncio.ensure_future(one(item, tools)) for item, tools in asked]
        try:
            for next_done in asyncio.as_completed(tasks):
                yield await next_done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(client: AsyncOpenAI, served: ServedPolicy, item: Item, body: dict[str, Any]) -> Given:
    try:
        create = cast(Callable[..., Awaitable[ChatCompletion]], client.chat.completions.create)
        completion = await create(model=served.policy, messages=list(item.messages), **body)
    except BadRequestError as error:
        if "context length" in error.message or "maximum model length" in error.message:
            return Given(item, Answer("", "length", 0), served.fingerprint)
        raise GenerationFailed(_said(served, item, error)) from error
    except (APIError, ValueError) as error:
        raise GenerationFailed(_said(served, item, error)) from error
    if not getattr(completion, "choices", None):
        raise GenerationFailed(_said(served, item, ValueError("the answer is no chat completion")))
    if served.fingerprint is not None and completion.system_fingerprint != served.fingerprint:
        raise StampMismatch(
            f"{served.url} answers as {completion.system_fingerprint}, and its row says"
            f" {served.fingerprint}: it is not the engine of {served.policy} any more"
        )
    choice = completion.choices[0]
    calls = [call.model_dump(mode="json") for call in choice.message.tool_calls or []]
    answer = Answer(
        storable(choice.message.content or ""),
        choice.finish_reason,
        completion.usage.completion_tokens if completion.usage else None,
        tuple(calls),
    )
    return Given(item, answer, completion.system_fingerprint)


def _said(served: ServedPolicy, item: Item, error: Exception) -> str:
    return (
        f"{served.policy} at {served.url} gave no answer to {item.suite}/{item.name}:"
        f" {type(error).__name__}: {error}"[:400]
    )


def _seed(seed: int, item: Item) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\n{item.suite}\n{item.name}".encode()).digest()[:4])
