"""Engines that break, clients that leave, a recorder without room, a database that is away."""

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import OpenAI

from ratchet.embedded import EmbeddedPostgres
from tests.conftest import Database
from tests.support.gateway_process import (
    GatewayProcess,
    Operator,
    Scene,
    free_port,
    operator_of,
    running_gateway,
    running_stub,
    scene_of,
    wait_until,
)

CHAT = "/v1/chat/completions"
NUMBERS = count()


@pytest.fixture(scope="module")
def operator(module_database: Database) -> Iterator[Operator]:
    with operator_of(module_database) as opened:
        yield opened


@pytest.fixture(scope="module")
def key(operator: Operator) -> str:
    return operator.key()


@pytest.fixture(scope="module")
def gateway(
    module_database: Database, key: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(module_database, folder, upstream_first_byte_s=1, upstream_timeout_s=5) as started:
        yield started


@pytest.fixture
def scene(gateway: GatewayProcess, operator: Operator, key: str) -> Iterator[Scene]:
    with scene_of(gateway, operator, key, f"m{next(NUMBERS)}") as made:
        yield made.serve()


@pytest.fixture
def own_scene(module_database: Database, operator: Operator, key: str, tmp_path: Path) -> Iterator[Scene]:
    """A scene whose gateway is started by the test itself, and may be killed."""
    alone = GatewayProcess(module_database, tmp_path, free_port(), {})
    with scene_of(alone, operator, key, f"m{next(NUMBERS)}") as made:
        yield made.want()
    if alone.process is not None:
        alone.stop()


def events(body: str) -> list[Any]:
    """Data of a stream's events."""
    return [
        line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in body.splitlines() if line
    ]


def text_of(body: str) -> str:
    """The text of a stream."""
    chunks = [event for event in events(body) if isinstance(event, dict) and "choices" in event]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("die", "engine_failed"),
        ("cut", "engine_failed"),
        ("hang", "engine_timeout"),
        ("garbage", "engine_failed"),
        ("error", "engine_failed"),
        ("no_done", "engine_failed"),
    ],
)
def test_a_stream_that_breaks_ends_with_an_error_and_keeps_what_was_said(
    scene: Scene, fault: str, code: str
) -> None:
    scene.engine.tell(fault=fault, gap_s=0.05)
    status, body, headers = scene.ask()
    assert status == 200
    assert events(body)[-1]["error"]["code"] == code
    row = scene.row(headers)
    assert (row["status"], row["http_status"], row["error_code"]) == ("error", 200, code)
    assert row["output"] == text_of(body) == ("w0 w1 w2 w3 w4 w5 w6 " if fault == "no_done" else "w0 w1 w2 ")
    assert row["output_tokens"] == (8 if fault == "no_done" else 3)
    assert row["stamp"] == "unverified"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("die", 503, "engine_failed"),
        ("cut", 503, "engine_failed"),
        ("garbage", 502, "engine_failed"),
        ("hang", 504, "engine_timeout"),
        ("error", 502, "engine_failed"),
        ("no_done", 502, "engine_failed"),
    ],
)
def test_a_whole_answer_that_breaks_is_an_error_and_keeps_what_there_was(
    scene: Scene, fault: str, status: int, code: str
) -> None:
    scene.engine.tell(fault=fault, gap_s=0.05)
    got, body, headers = scene.ask(stream=False)
    assert (got, body["error"]["code"]) == (status, code)
    row = scene.row(headers)
    assert (row["status"], row["http_status"], row["error_code"]) == ("error", status, code)
    assert row["output"] == ("w0 w1 w2 w3 w4 w5 w6 w7 " if fault == "no_done" else "w0 w1 w2 ")
    assert row["output_tokens"] == (8 if fault == "no_done" else 3)


def test_a_whole_answer_that_breaks_in_the_middle_is_begun_anew_on_another_engine(scene: Scene) -> None:
    with running_stub(scene.policy, fingerprint="stub-b", text="b{} ") as second:
        scene.operator.add_engine(scene.policy, second.url)
        scene.ready(engines=2)
        scene.engine.tell(fault="error", gap_s=0.02)
        answers = [scene.ask(stream=False) for _ in range(4)]
    for status, body, headers in answers:
        row = scene.row(headers)
        assert (status, row["status"], row["fingerprint"]) == (200, "ok", "stub-b")
        assert body["choices"][0]["message"]["content"] == row["output"] == "b0 b1 b2 b3 b4 b5 b6 b7 "
        assert body["usage"]["completion_tokens"] == row["output_tokens"] == 8


@pytest.mark.parametrize("stream", [True, False])
def test_another_engine_answers_while_the_client_has_nothing_yet(scene: Scene, stream: bool) -> None:
    with running_stub(scene.policy, fingerprint="stub-b") as second:
        scene.operator.add_engine(scene.policy, second.url)
        scene.ready(engines=2)
        scene.engine.tell(status=500)
        answers = [scene.ask(stream=stream) for _ in range(3)]
        scene.engine.kill()
        answers += [scene.ask(stream=stream) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200] * 6
    assert {scene.row(headers)["fingerprint"] for _, _, headers in answers} == {"stub-b"}


def test_an_engine_that_dies_before_its_first_word_is_no_ones_loss(scene: Scene) -> None:
    with running_stub(scene.policy, fingerprint="stub-b") as second:
        scene.operator.add_engine(scene.policy, second.url)
        scene.ready(engines=2)
        for engine in (scene.engine, second):
            engine.tell(first_s=0.05)
        scene.engine.tell(fault="die")
        answers = [scene.ask(stream=False) for _ in range(2)]
    assert [status for status, _, _ in answers] == [200, 200]


def test_an_engine_that_answers_500_is_502_when_there_is_no_other(scene: Scene) -> None:
    scene.engine.tell(status=500)
    status, body, headers = scene.ask()
    assert (status, body["error"]["code"]) == (502, "engine_failed")
    assert "retry-after" in headers


def test_a_dead_engine_is_503_with_the_reason(scene: Scene) -> None:
    scene.engine.kill()
    status, _, headers = scene.ask()
    assert status == 503
    assert "retry-after" in headers
    wait_until(lambda: not scene.status()["ready"], "the model is not ready")
    wait_until(lambda: "cannot be reached" in scene.ask()[1]["error"]["message"], "the reason is known")
    status, body, headers = scene.ask()
    assert (status, body["error"]["code"]) == (503, "engine_unavailable")
    row = scene.row(headers)
    assert (row["status"], row["engine_id"], row["policy"]) == ("error", None, scene.policy)
    scene.engine.start()
    scene.ready()
    assert scene.ask()[0] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_engine_and_keeps_its_row(scene: Scene, stream: bool) -> None:
    scene.engine.tell(tokens=60, gap_s=0.05)
    document = {"model": scene.model, "messages": [{"role": "user", "content": "Hello"}], "stream": stream}

    async def leave() -> None:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {scene.key}"}) as session:
            post = asyncio.ensure_future(session.post(scene.gateway.url + CHAT, json=document))
            if stream:
                answer = await post
                received = b""
                while b"w2" not in received:
                    received += await answer.content.readany()
                answer.close()
                return
            while (await asyncio.to_thread(scene.engine.state))["written"] < 6:
                pass
            post.cancel()
            await asyncio.gather(post, return_exceptions=True)

    asyncio.run(leave())
    wait_until(lambda: scene.engine.state()["cancelled"] == 1, "the engine was stopped")
    [row] = wait_until(lambda: scene.gateway.rows("WHERE model = %s", scene.model), "the row is stored")
    assert (row["status"], row["http_status"]) == ("cancelled", 499)
    assert row["error_code"] == "client_closed_request"
    assert row["output"].startswith("w0 w1 w2 ")
    assert row["output_tokens"] >= 3
    assert scene.gateway.metric("ratchet_requests_in_flight") == 0


def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_a_row(
    gateway: GatewayProcess, key: str
) -> None:
    before = {row["id"] for row in gateway.rows()}
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 100\r\n\r\n"
        )
        connection.sendall(head.encode() + b'{"model"')
    [row] = wait_until(lambda: [r for r in gateway.rows() if r["id"] not in before], "the row is stored")
    assert (row["status"], row["model"]) == ("cancelled", None)


def test_answers_are_given_while_the_database_is_away(cluster: EmbeddedPostgres, scene: Scene) -> None:
    cluster.stop()
    try:
        wait_until(lambda: scene.gateway.get("/readyz")[1]["rows"]["trouble"], "the gateway notices")
        answers = [scene.ask() for _ in range(5)]
        assert scene.status()["ready"]
    finally:
        cluster.start()
    assert [status for status, _, _ in answers] == [200] * 5
    assert [scene.row(headers)["status"] for _, _, headers in answers] == ["ok"] * 5
    wait_until(lambda: not scene.gateway.get("/readyz")[1]["rows"]["trouble"], "the rows are read again")


def test_a_gateway_that_starts_without_a_database_says_so_and_goes_on(
    cluster: EmbeddedPostgres, own_scene: Scene
) -> None:
    cluster.stop()
    try:
        own_scene.gateway.start()
        status, body, _ = own_scene.gateway.get("/readyz")
        assert (status, "never read" in body["reasons"][0]) == (503, True)
        status, body, headers = own_scene.ask()
        assert (status, body["error"]["code"]) == (503, "starting")
        assert "retry-after" in headers
    finally:
        cluster.start()
    own_scene.ready()
    assert own_scene.ask()[0] == 200


def test_a_full_spool_refuses_before_the_engine_is_asked(cluster: EmbeddedPostgres, own_scene: Scene) -> None:
    own_scene.gateway.settings["spool_max_bytes"] = 1 << 16
    own_scene.gateway.start()
    own_scene.ready()
    long = [{"role": "user", "content": "x" * 9000}]
    assert own_scene.ask()[0] == 200
    cluster.stop()
    try:
        answers = (own_scene.ask(messages=long) for _ in range(20))
        status, body, headers = next(answer for answer in answers if answer[0] != 200)
        asked = len(own_scene.engine.state()["requests"])
        again = own_scene.ask(messages=long)
        assert own_scene.gateway.get("/readyz")[0] == 503
    finally:
        cluster.start()
    assert (status, body["error"]["code"]) == (503, "recorder_full")
    assert "retry-after" in headers
    assert (again[0], len(own_scene.engine.state()["requests"])) == (503, asked)
    wait_until(lambda: own_scene.ask()[0] == 200, "there is room again")


def test_a_spool_that_fills_during_a_stream_ends_it_before_an_unrecorded_byte_leaves(
    cluster: EmbeddedPostgres, own_scene: Scene
) -> None:
    own_scene.gateway.settings["spool_max_bytes"] = 1 << 16
    own_scene.gateway.start()
    own_scene.ready()
    own_scene.engine.tell(tokens=64, gap_s=0.001, text="w{} " + "y" * 2000)
    cluster.stop()
    try:
        status, body, headers = own_scene.ask()
    finally:
        cluster.start()
    assert status == 200
    assert events(body)[-1]["error"]["code"] == "recorder_full"
    row = own_scene.row(headers)
    assert row["status"] == "error"
    assert len(text_of(body)) > 20_000
    assert row["output"] == text_of(body)


def test_sigterm_lets_answers_end_and_cuts_those_that_do_not(own_scene: Scene) -> None:
    own_scene.gateway.start()
    own_scene.ready()
    document = {"model": own_scene.model, "messages": [{"role": "user", "content": "Hello"}], "stream": True}

    async def story() -> list[str]:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {own_scene.key}"}) as session:
            await asyncio.to_thread(own_scene.engine.tell, tokens=10, gap_s=0.1)
            short = await session.post(own_scene.gateway.url + CHAT, json=document)
            await asyncio.to_thread(own_scene.engine.tell, tokens=1000, gap_s=0.5)
            long = await session.post(own_scene.gateway.url + CHAT, json=document)
            assert own_scene.gateway.process is not None
            own_scene.gateway.process.send_signal(signal.SIGTERM)
            return list(await asyncio.gather(short.text(), long.text()))

    short, long = asyncio.run(story())
    assert own_scene.gateway.stop() == 0
    assert events(short)[-1] == "[DONE]"
    assert events(long)[-1]["error"]["code"] == "shutting_down"
    rows = own_scene.gateway.rows("WHERE model = %s", own_scene.model)
    assert [(row["status"], row["output"]) for row in rows] == [
        ("ok", text_of(short)),
        ("error", text_of(long)),
    ]


def test_a_killed_gateway_leaves_what_it_delivered(own_scene: Scene) -> None:
    own_scene.gateway.start()
    own_scene.ready()
    own_scene.engine.tell(tokens=60, gap_s=0.05)
    document = {"model": own_scene.model, "messages": [{"role": "user", "content": "Hello"}], "stream": True}

    async def story() -> bytes:
        received = b""
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {own_scene.key}"}) as session,
            session.post(own_scene.gateway.url + CHAT, json=document) as answer,
        ):
            while b"w3" not in received:
                received += await answer.content.readany()
            await asyncio.to_thread(own_scene.gateway.stop, signal.SIGKILL)
            with contextlib.suppress(aiohttp.ClientError):
                while piece := await answer.content.readany():
                    received += piece
        return received

    received = asyncio.run(story()).decode()
    own_scene.gateway.start()
    [row] = wait_until(
        lambda: own_scene.gateway.rows("WHERE model = %s", own_scene.model), "the row is stored"
    )
    assert row["status"] == "lost"
    assert row["output"].startswith(text_of(received[: received.rindex("\n\n")]))


def test_a_taken_port_and_a_wrong_setting_are_one_clear_line(gateway: GatewayProcess, tmp_path: Path) -> None:
    for settings, port, said in (
        ({}, gateway.port, f"cannot listen on 127.0.0.1:{gateway.port}"),
        ({"max_concurrency": 0}, free_port(), "RATCHET_MAX_CONCURRENCY"),
    ):
        second = GatewayProcess(gateway.database, tmp_path, port, settings)
        assert second.launch().wait(30) == 2
        [line] = second.log.read_text().splitlines()
        assert said in line
        second.log.unlink()


def test_several_workers_share_a_port_and_end_together(own_scene: Scene) -> None:
    own_scene.gateway.start("--workers", "2")
    hello: Any = [{"role": "user", "content": "Hello"}]
    with OpenAI(base_url=f"{own_scene.gateway.url}/v1", api_key=own_scene.key, max_retries=20) as client:
        for _ in range(6):
            client.chat.completions.create(model=own_scene.model, messages=hello, max_tokens=1)
    assert own_scene.gateway.stop() == 0
    stored = own_scene.gateway.rows("WHERE model = %s AND status = 'ok'", own_scene.model)
    assert len(stored) == 6
    assert own_scene.gateway.get("/healthz")[0] == 0
