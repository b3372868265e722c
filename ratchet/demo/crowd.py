"""The people of the demonstration: users who ask, and one rater. Scripted, and called so."""

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import httpx

from ratchet.errors import EnvironmentFault

FORMS = (
    "In one sentence, what is {}?", "In one sentence, why do people like {}?",
    "In one sentence, how would you begin with {}?", "In one sentence, what goes wrong most often with {}?",
    "In one sentence, who knows most about {}?", "In one sentence, what surprises most people about {}?",
    "In one sentence, when did people first care about {}?", "In one sentence, where would I find {}?",
    "In one sentence, what does {} cost?", "Say something that goes well with {}.",
    "Give me one short tip about {}.", "Name one short fact about {}.",
)  # fmt: skip
TOPICS = (
    "pottery", "sailing", "tomatoes", "a telescope", "old maps", "knitting", "the piano", "snow tyres",
    "mushrooms", "a sewing machine", "coral reefs", "night trains", "blacksmiths", "mosaics",
    "weather balloons",
)  # fmt: skip
QUESTIONS = tuple(form.format(topic) for topic in TOPICS for form in FORMS)
AT_ONCE = 8
LONGEST = 160
"""Tokens of an answer that the scripted users ask for at most."""
USERS = 200
RULE = "the answer with fewer characters"


def prefers(left: str, right: str) -> str:
    """The scripted rater's vote, from the two texts alone: see `RULE`."""
    if len(left) == len(right):
        return "tie"
    return "left" if len(left) < len(right) else "right"


class Crowd:
    """Scripted users of one model.

    Args:
        base_url: The gateway's address.
        key: A client's key.
        model: Whom they ask.
    """

    def __init__(self, base_url: str, key: str, model: str) -> None:
        self._url = f"{base_url}/v1/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}"}
        self._model = model

    def ask_all(self, questions: Sequence[str], answers: int) -> list[list[str]]:
        """Asks each question once, for several answers; each of another user.

        Returns:
            The answers, by question.
        """
        with httpx.Client(headers=self._headers, timeout=600) as client, ThreadPoolExecutor(AT_ONCE) as pool:

            def ask(number: int, question: str) -> list[str]:
                return self._ask(client, question, f"asker-{number}", answers)

            return list(pool.map(ask, range(len(questions)), questions))

    @contextmanager
    def asking(self) -> Generator[None]:
        """Asks without end, as `USERS` users in turn, for as long as the context lasts."""
        stopping = threading.Event()
        numbers = count()

        def ask_on() -> None:
            with httpx.Client(headers=self._headers, timeout=600) as client:
                while not stopping.is_set():
                    number = next(numbers)
                    self._ask(client, QUESTIONS[number % len(QUESTIONS)], f"user-{number % USERS}", 1)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            asking = [pool.submit(ask_on) for _ in range(AT_ONCE)]
            try:
                yield
            finally:
                stopping.set()
        for each in asking:
            each.result()

    def _ask(self, client: httpx.Client, question: str, user: str, answers: int) -> list[str]:
        body = {
            "model": self._model, "user": user, "n": answers, "max_tokens": LONGEST,
            "messages": [{"role": "user", "content": question}],
        }  # fmt: skip
        answer = client.post(self._url, json=body)
        if answer.status_code != 200:
            raise EnvironmentFault(f"the gateway answered {answer.status_code}: {answer.text[:200]}")
        choices: list[dict[str, Any]] = answer.json()["choices"]
        return [choice["message"]["content"] or "" for choice in choices]


def rate(url: str, link: str, wanted: int, patience_s: float = 120.0) -> int:
    """Votes by `prefers` until so many items are voted on, or none has come for a while.

    Args:
        url: Address of the rating page.
        link: Token of a sign-in link.
        wanted: Votes to give.
        patience_s: Seconds without an item after which there are no more.

    Returns:
        Votes given.
    """
    votes = 0
    with httpx.Client(base_url=url, timeout=60) as client:
        token = client.post("/api/session", json={"link": link}).raise_for_status().json()["token"]
        client.headers["Authorization"] = f"Bearer {token}"
        deadline = time.monotonic() + patience_s
        while votes < wanted and time.monotonic() < deadline:
            found = client.post("/api/leases").raise_for_status()
            if found.status_code == 204:
                time.sleep(1.0)
                continue
            item = found.json()
            choice = prefers(item["left"], item["right"])
            client.post(f"/api/leases/{item['lease']}/vote", json={"choice": choice}).raise_for_status()
            votes += 1
            deadline = time.monotonic() + patience_s
    return votes
