"""The sandbox: what code can do in it, and every way out that we could think of."""

import json
import os
import socket
from pathlib import Path

import pytest

from evaluator.sandbox import Limits, SandboxUnavailable, run_python
from evaluator.scorers.code import Case, extract_code, score_code
from evaluator.scorers.outcome import Answer, Outcome

SMALL = Limits(wall_seconds=8, cpu_seconds=1, processes=4)


def test_code_runs_with_the_standard_library_and_nothing_of_ours():
    os.environ["RATCHET_CANARY"] = "secret"
    told = run_python(
        "import json, os\n"
        "print(json.dumps({'env': dict(os.environ), 'files': os.listdir('.'), 'user': os.getuid(),"
        " 'roots': sorted(os.listdir('/')), 'input': input.__name__}))"
    )
    del os.environ["RATCHET_CANARY"]
    assert told.end == "finished", told.stderr
    seen = json.loads(told.stdout)
    assert "RATCHET_CANARY" not in seen["env"]
    assert seen["files"] == ["main.py"]
    assert seen["user"] != 0
    assert not {"etc", "home", "proc", "sys", "work", "tmp", "var"} & set(seen["roots"])


def test_how_code_ends_is_told():
    assert run_python("raise SystemExit(3)").exit_code == 3
    failed = run_python("1 / 0")
    assert (failed.end, failed.exit_code) == ("failed", 1)
    assert "ZeroDivisionError" in failed.stderr


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/etc/passwd')",
        f"open({str(Path(__file__).resolve())!r})",
        "open('/proc/1/environ')",
        "open('/usr/escaped', 'w')",
        "open('/escaped', 'w')",
        "import os; os.mknod('/scratch/disk', 0o60666, os.makedev(8, 0))",
        "import os; os.setuid(0)",
        "import os; os.chroot('/scratch')",
        "import os; os.kill(os.getppid() or -1, 9)",
        "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
        "import ctypes; c = ctypes.CDLL(None); assert c.umount2(b'/usr', 2) == 0",
        "import ctypes; c = ctypes.CDLL(None); assert c.mount(None, b'/usr', None, 4096 | 32, None) == 0",
        "import ctypes; c = ctypes.CDLL(None); assert c.sethostname(b'x', 1) == 0",
        "x = bytearray(2 * 1024**3)",
        "import os; os.write(os.open('big', os.O_CREAT | os.O_WRONLY), b'x'); f = open('big', 'wb', 0)\n"
        "for _ in range(9): assert f.write(bytes(1024**2)) == 1024**2",
        "for name in range(40): open(f'f{name}', 'wb').write(bytes(1024**2))",
        "files = [open('/dev/null') for _ in range(100)]",
        "import os\nfor _ in range(40): os.fork() or __import__('time').sleep(3)",
    ],
)
def test_what_is_walled_off_fails(attempt: str):
    assert run_python(attempt, SMALL).end == "failed"


def test_a_server_outside_is_not_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        told = run_python(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
    assert told.end == "failed"
    assert "OSError" in told.stderr or "Error" in told.stderr


def test_time_and_processor_are_bounded():
    assert run_python("while True: pass", SMALL).end in {"failed", "timed_out"}
    assert run_python("import time; time.sleep(60)", Limits(wall_seconds=0.7)).end == "timed_out"


def test_a_child_in_its_own_session_dies_with_the_rest():
    marker = "ratchet-orphan-" + os.urandom(6).hex()
    code = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        sleep = 'import time; time.sleep(50)'\n"
        f"        os.execv(sys.executable, [sys.executable, '-c', sleep, {marker!r}])\n"
        "    os._exit(0)\n"
        "time.sleep(0.5)\n"
    )
    assert run_python(code).end == "finished"
    alive = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and marker.encode() in path.read_bytes()
    ]
    assert alive == []


def test_a_flood_of_output_is_cut():
    told = run_python("while True: print('x' * 10000)", SMALL)
    assert len(told.stdout) <= SMALL.file_bytes


def test_without_namespaces_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import sys, json, os\nos.write(json.load(sys.stdin)['report_fd'], b'unshare: not permitted')"
    )
    monkeypatch.setattr("evaluator.sandbox.LAUNCHER", launcher)
    with pytest.raises(SandboxUnavailable, match="unshare: not permitted"):
        run_python("print(1)")


CASES = [Case("add(1, 2)", 3), Case("add('a', 'b')", "ab")]


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (
            "Here:\n```python\ndef add(a, b):\n    print('adding')\n    return a + b\n```\nDone.",
            Outcome.RIGHT,
        ),
        ("def add(a, b):\n    return a + b", Outcome.RIGHT),
        ("```python\ndef add(a, b):\n    return a - b\n```", Outcome.WRONG),
        ("```python\ndef add(a, b)\n```", Outcome.WRONG),
        ("```python\nimport os\nos._exit(0)\n```", Outcome.WRONG),
        ("```python\nraise SystemExit(0)\n```", Outcome.WRONG),
        ("```python\nprint('[[\"value\", 3]]'); raise SystemExit(0)\n```", Outcome.WRONG),
        ("```python\nclass E:\n    __eq__ = lambda *_: True\nadd = lambda a, b: E()\n```", Outcome.WRONG),
        ("I would write a function.", Outcome.WRONG),
    ],
)
def test_code_is_judged_by_what_it_gives(text: str, outcome: Outcome):
    assert score_code(Answer(text), CASES).outcome == outcome


def test_code_outcomes_without_running():
    assert score_code(Answer("def f():", "length"), CASES).outcome == Outcome.TRUNCATED
    assert score_code(Answer("def f(): pass"), []).outcome == Outcome.UNSCORED
    assert extract_code("```python\na = 1\n```\nbetter:\n```python\na = 2\n```") == "a = 2\n"
