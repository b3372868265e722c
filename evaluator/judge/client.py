"""Asks a judge behind any OpenAI-compatible endpoint, many prompts at once, and never raises for one of them.

The stock client does the HTTP: connections, time limits, retries with backoff that heed Retry-After.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from openai import APIError, AsyncOpenAI

from evaluator.judge.pairwise import PairVerdict, combine
from evaluator.judge.parse import Reply, read_choice
from evaluator.judge.templates import Prompt, Template

DEAD_AFTER = 20


@dataclass(frozen=True, slots=True)
class JudgeEndpoint:
    """Where a judge answers, and how it is asked."""

    base_url: str
    """Up to and with `/v1`."""
    model: str
    api_key: str = "none"
    """Sent as bearer token; servers without keys ignore it."""
    concurrency: int = 32
    """Requests under way at once."""
    timeout_seconds: float = 120.0
    """For one attempt."""
    retries: int = 4
    max_tokens: int = 512
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One question with the answers of two policies."""

    prompt: str
    """Hash or id."""
    question: str
    candidate: str
    other: str


class JudgeClient:
    """A connection to one judge; use it as an asynchronous context."""

    def __init__(self, endpoint: JudgeEndpoint) -> None:
        """Connects to nothing yet.

        Args:
            endpoint: Of the judge.

        Raises:
            ValueError: The concurrency is below one.
        """
        if endpoint.concurrency < 1:
            raise ValueError("a judge is asked at least one prompt at once")
        self._endpoint = endpoint
        self._places = asyncio.Semaphore(endpoint.concurrency)
        self._failed_in_a_row = 0
        self._client = AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            timeout=endpoint.timeout_seconds,
            max_retries=endpoint.retries,
        )

    async def __aenter__(self) -> Self:
        """Nothing is connected before the first question."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connections."""
        await self._client.close()

    async def ask_all(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """The replies in the order of the prompts; a call that failed for good is a reply with its error.

        After twenty failures in a row the judge counts as dead and is asked no more.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(prompt)) for prompt in prompts]
        return [task.result() for task in tasks]

    async def compare(self, template: Template, pairs: Sequence[Pair]) -> list[PairVerdict]:
        """One verdict for each pair, from both orders of its answers."""
        forward = [template.render(pair.question, pair.candidate, pair.other) for pair in pairs]
        backward = [template.render(pair.question, pair.other, pair.candidate) for pair in pairs]
        readings = [read_choice(reply) for reply in await self.ask_all([*forward, *backward])]
        return [
            combine(pair.prompt, readings[place], readings[place + len(pairs)])
            for place, pair in enumerate(pairs)
        ]

    async def _ask(self, prompt: Prompt) -> Reply:
        async with self._places:
            if self._failed_in_a_row >= DEAD_AFTER:
                return Reply(
                    None, None, f"the judge failed {DEAD_AFTER} times in a row and was asked no more"
                )
            try:
                completion = await self._client.chat.completions.create(
                    model=self._endpoint.model,
                    messages=cast(Any, prompt.messages()),
                    max_tokens=self._endpoint.max_tokens,
                    temperature=self._endpoint.temperature,
                )
            except APIError as error:
                self._failed_in_a_row += 1
                return Reply(None, None, f"{type(error).__name__}: {error.message}"[:300])
            except ValueError as error:
                self._failed_in_a_row += 1
                return Reply(None, None, f"the judge's answer is no JSON: {error}"[:300])
        choices = cast(list[Any], getattr(completion, "choices", None) or [])
        if not choices or choices[0].message.content is None:
            return Reply(None, None, "the judge's answer holds no text")
        self._failed_in_a_row = 0
        return Reply(choices[0].message.content, choices[0].finish_reason)
