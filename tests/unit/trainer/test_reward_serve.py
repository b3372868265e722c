"""A reward server's life, with a small real server in vLLM's place: it answers, and leaves nothing behind."""

import os
import select
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.errors import AlreadyRunning, EnvironmentFault
from trainer.reward import serve
from trainer.reward.serve import client, score, served

STUB = """
import http.server, json, os, socketserver, subprocess, sys
helper = subprocess.Popen(["sleep", "600"])
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(200, {})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["model"] != "tiny@0":
            return self.reply(404, {"error": "no such model"})
        data = [{"index": i, "probs": [sum(each) / 2]} for i, each in enumerate(asked["input"])]
        self.reply(200, {"data": data[::-1], "helper": helper.pid})
    def reply(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def address_string(self):
        return "socket"
socketserver.UnixStreamServer(sys.argv[1], Answers).serve_forever()
"""


@pytest.fixture
def address() -> Iterator[Path]:
    """A socket's path, short enough."""
    with tempfile.TemporaryDirectory(prefix="ratchet-reward-") as folder:
        yield Path(folder) / "reward.sock"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the stub in vLLM's place."""
    monkeypatch.setattr(
        serve, "command", lambda _, name, address, length: [sys.executable, "-c", STUB, str(address)]
    )


@pytest.mark.usefixtures("run")
def test_it_answers_in_the_order_asked_and_ends_with_all_it_started(address: Path, tmp_path: Path) -> None:
    with served(tmp_path, "tiny@0", address, tmp_path / "log", 64) as server, client(address) as asking:
        assert score(asking, "tiny@0", [[1, 2], [3], [4, 4]]) == [1.5, 1.5, 4.0]
        helper = asking.post("/classify", json={"model": "tiny@0", "input": []}).json()["helper"]
        handle = os.pidfd_open(helper)
        with pytest.raises(EnvironmentFault, match=r"refused \(404\).*no such model"):
            score(asking, "another", [[1]])
    assert server.has_ended()
    assert select.select([handle], [], [], 10)[0]
    os.close(handle)
    assert not address.exists()


@pytest.mark.usefixtures("run")
def test_a_second_server_of_one_model_is_refused_and_the_first_goes_on(address: Path, tmp_path: Path) -> None:
    with served(tmp_path, "tiny@0", address, tmp_path / "log", 64), client(address) as asking:
        with (
            pytest.raises(AlreadyRunning, match="end that server first"),
            served(tmp_path, "tiny@0", address, tmp_path / "log", 64),
        ):
            pass
        assert score(asking, "tiny@0", [[2]]) == [1.0]


def test_one_that_does_not_start_says_why(
    address: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('ValueError: no weights here')"]
    monkeypatch.setattr(serve, "command", lambda *_: broken)
    with (
        pytest.raises(EnvironmentFault, match="ended with code 1: ValueError: no weights here"),
        served(tmp_path, "tiny@0", address, tmp_path / "log", 64),
    ):
        pass


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(EnvironmentFault, match="shorter --data-dir"),
        served(tmp_path, "tiny@0", tmp_path / ("x" * 100), tmp_path / "log", 64),
    ):
        pass


def test_what_vllm_is_asked_for(tmp_path: Path) -> None:
    """The raw score, of one label, on a socket and no port."""
    words = serve.command(tmp_path, "tiny@0", tmp_path / "s", 64)
    asked = dict(zip(words[3::2], words[4::2], strict=False))
    assert asked["--runner"] == "pooling"
    assert asked["--pooler-config"] == '{"use_activation": false}'
    assert asked["--uds"] == str(tmp_path / "s")
    assert not {"--port", "--host"} & set(words)
    assert "VLLM_API_KEY" not in serve.variables()
