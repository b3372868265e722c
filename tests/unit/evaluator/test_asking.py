"""How policies and judges are asked: pinned sampling, seeds that repeat, addresses by name alone."""

import asyncio
import gzip
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.comparing import Contest, decided_without_a_judge, question_of
from evaluator.engines import ServedPolicy
from evaluator.generation import GenerationFailed, generate, request_body
from evaluator.judge.client import JudgeClient, JudgeEndpoint
from evaluator.judge.parse import Reply
from evaluator.judge.templates import Prompt
from evaluator.labelled import load_labelled
from evaluator.scorers.outcome import Answer
from evaluator.selection import Floor
from evaluator.settings import load_settings
from evaluator.statistics.interval import Interval
from evaluator.suites.items import Item
from evaluator.suites.loaders import load_prompts
from evaluator.turns import in_turn
from evaluator.watching import Look, reason
from ratchet.decode import DecodeConfig, SeedPolicy
from ratchet.errors import ConfigError, UsageError

ITEM = Item("s", "0000", ({"role": "user", "content": "Why?"},), {})


def test_every_sampling_parameter_of_the_pinned_config_is_sent() -> None:
    decode = DecodeConfig(temperature=0.3, top_p=0.8, top_k=7, min_p=0.1, presence_penalty=0.5,
                          frequency_penalty=-0.5, repetition_penalty=1.1, max_tokens=9, stop=("x",),
                          logit_bias={5: -1.0}, seed_policy=SeedPolicy.FIXED, seed=11)  # fmt: skip
    assert request_body(decode, 3, ITEM, []) == {
        "temperature": 0.3, "top_p": 0.8, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "max_completion_tokens": 9, "stop": ["x"], "logit_bias": {"5": -1.0}, "seed": 11,
        "extra_body": {"top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1},
    }  # fmt: skip


def test_an_open_seed_follows_from_run_and_item_and_none_is_never_sent() -> None:
    other = Item("s", "0001", ITEM.messages, {})
    seeds = [request_body(DecodeConfig(), run, item, [])["seed"] for run in (0, 1) for item in (ITEM, other)]
    assert len(set(seeds)) == 4
    assert request_body(DecodeConfig(), 0, ITEM, [])["seed"] == seeds[0]
    assert "seed" not in request_body(DecodeConfig(seed_policy=SeedPolicy.NONE), 0, ITEM, [])
    assert request_body(DecodeConfig(), 0, ITEM, [{"type": "function"}])["tools"] == [{"type": "function"}]


@contextmanager
def answering(body: bytes, kind: str) -> Generator[str]:
    """A server that gives every request the same answer; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


NO_ANSWERS = [
    (b"<html>Sign in</html>", "text/html"),
    (b'{"choices": [', "application/json"),
    (b'"just words"', "application/json"),
    (b'{"choices": []}', "application/json"),
]


@pytest.mark.parametrize(("body", "kind"), NO_ANSWERS)
def test_a_judge_that_answers_no_completion_gives_no_verdict(body: bytes, kind: str) -> None:
    async def ask(url: str) -> Reply:
        async with JudgeClient(JudgeEndpoint(f"{url}/v1", "m", retries=0)) as judge:
            [reply] = await judge.ask_all([Prompt("system", "user")])
            return reply

    with answering(body, kind) as url:
        reply = asyncio.run(ask(url))
    assert reply.text is None
    assert reply.error


@pytest.mark.parametrize(("body", "kind"), NO_ANSWERS)
def test_an_engine_that_answers_no_completion_fails_the_run_with_a_reason(body: bytes, kind: str) -> None:
    async def ask(url: str) -> None:
        served = ServedPolicy("sky@1", url, None)
        async for _ in generate(served, DecodeConfig(), [(ITEM, [])], api_key="k", seed=0, concurrency=1):
            raise AssertionError("nothing was answered")

    with answering(body, kind) as url, pytest.raises(GenerationFailed, match=r"gave no answer to s/0000"):
        asyncio.run(ask(url))


def test_an_address_comes_from_the_settings_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"url": "http://judge.example/v1", "key": "secret", "concurrency": 5}
    monkeypatch.setenv("RATCHET_EVALUATOR_JUDGES", json.dumps({"main": address}))
    endpoint = load_settings().endpoint("main", "m", {"max_tokens": 64, "temperature": 0.0})
    assert (endpoint.base_url, endpoint.api_key, endpoint.concurrency, endpoint.max_tokens) == (
        "http://judge.example/v1", "secret", 5, 64,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"no judge endpoint 'http://evil' \(known: main\)"):
        load_settings().endpoint("http://evil", "m", {"max_tokens": 64, "temperature": 0.0})
    for wrong in ("{", '{"main": {"url": "ftp://x", "key": "secret"}}'):
        monkeypatch.setenv("RATCHET_EVALUATOR_JUDGES", wrong)
        with pytest.raises(ConfigError, match="RATCHET_EVALUATOR_JUDGES") as refused:
            load_settings()
        assert "secret" not in str(refused.value)


def test_a_conversation_is_shown_to_a_judge_with_its_roles() -> None:
    turns = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"},
             {"role": "user", "content": "More"})  # fmt: skip
    assert question_of(ITEM) == "Why?"
    assert question_of(Item("s", "1", turns, {})) == "user: Hi\n\nassistant: Yes?\n\nuser: More"


def test_equal_answers_are_a_tie_without_asking() -> None:
    same = Contest("new", "old", ITEM, Answer("Because. "), Answer("Because."), "helpfulness")
    other = Contest("new", "old", ITEM, Answer("Because."), Answer("No."), "helpfulness")
    verdict = decided_without_a_judge(same)
    assert verdict is not None
    assert (verdict.result, verdict.agreed) == ("tie", True)
    assert decided_without_a_judge(other) is None


def test_a_breach_is_told_with_where_to_restart() -> None:
    floor = Floor("sums", Interval(None, None, None), 0.5)
    seen = Look("new@1", 30, (floor, Floor("kept", Interval(0.9, 0.8, 1.0), 0.5)))
    assert reason(seen, None) == (
        "floor breached at step 30: sums unknown, at least 0.5 is asked."
        " Restart from the beginning with a larger beta"
    )
    assert "Restart from step 20 (good@1) with" in reason(seen, Look("good@1", 20, ()))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers())))
def test_taking_in_turn_loses_nothing_and_lets_no_group_get_ahead(items: list[tuple[int, int]]) -> None:
    taken = in_turn(items, lambda item: item[0])
    assert sorted(taken) == sorted(items)
    totals = {group: sum(item[0] == group for item in items) for group, _ in items}
    for place in range(len(taken)):
        seen = {group: sum(item[0] == group for item in taken[:place]) for group in totals}
        assert all(
            seen[one] <= seen[other] + 1 for one in totals for other in totals if seen[other] < totals[other]
        )


def test_prompts_are_read_as_lines_or_json(tmp_path: Path) -> None:
    path = tmp_path / "held.txt"
    path.write_text('One?\n\n{"prompt": "Two\\nlines?"}\n')
    assert load_prompts(path) == ["One?", "Two\nlines?"]
    for text, words in (("", "holds no prompt"), ('{"p": 1}', "line 1, is no JSON with a prompt"),
                        ('{"prompt": 1}', "the prompt is no text")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            load_prompts(path)


def test_a_gzip_file_that_was_cut_off_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "Why?"}\n' * 500)[:-20])
    with pytest.raises(UsageError, match="cannot be read"):
        load_labelled(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_prompts(path)
