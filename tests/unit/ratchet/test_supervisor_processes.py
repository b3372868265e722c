"""One process and what surrounds it: its group, its parent's death, its log, its back-off, the lock."""

import contextlib
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import AlreadyRunning, ConfigError, PortTaken
from ratchet.home import Home
from ratchet.supervisor import ports
from ratchet.supervisor.backoff import STEADY_S, Backoff
from ratchet.supervisor.child import Child, Command, end_all, trim_log
from ratchet.supervisor.identity import Identity
from ratchet.supervisor.lock import hold, holder, lock_file
from ratchet.supervisor.service import Service
from ratchet.supervisor.show import Show
from ratchet.supervisor.state import StackState, StateFile, boot_id, load, save, state_file, sweep
from ratchet.supervisor.words import last_words

WAIT_S = 20
FAMILY = (
    "import os, signal, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").ensure()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts Python programs as children, and ends those that are left."""
    started: list[Child] = []

    def run(program: str, *arguments: str, grace_s: float = 5.0) -> Child:
        command = Command(
            name="program",
            argv=(sys.executable, "-c", program, *arguments),
            env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"},
            cwd=tmp_path,
            log=tmp_path / "program.log",
            grace_s=grace_s,
        )
        started.append(Child(command))
        return started[-1]

    yield run
    for child in started:
        child.kill()


def ended(pid: int) -> bool:
    """Whether a process ends, or has ended, within the time; one that nobody reaped yet has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], WAIT_S)[0])
    finally:
        os.close(handle)


def at_end(child: Child) -> Child:
    """The child, once it has ended; its exit code is left for whoever asks first."""
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child


def first_line(child: Child) -> str:
    """The first line a child writes, once it is whole."""
    follow = ["tail", "-n", "+1", "-f", f"--pid={child.pid}", str(child.command.log)]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        line = reader.stdout.readline()
        reader.kill()
    return line.strip()


def test_a_child_leads_a_session_of_its_own_and_its_output_is_its_log(start: Callable[..., Child]) -> None:
    child = start("import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())")
    child.kill()
    assert first_line(child) in ("True", "")
    again = start("import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())")
    assert first_line(again) == "True"


def test_it_gets_its_own_environment_and_nothing_of_ours(
    start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_OPERATOR_DATABASE_URL", "postgresql://secret")
    child = start("import os; print(sorted(k for k in os.environ if k != 'LC_CTYPE'))")
    assert first_line(child) == "['PATH', 'PYTHONUNBUFFERED']"


def test_the_whole_group_ends_when_a_child_is_killed(start: Callable[..., Child]) -> None:
    child = start(FAMILY)
    grandchild = int(first_line(child))
    child.kill()
    assert child.exit_code() == -signal.SIGKILL
    assert ended(grandchild)


def test_what_outlives_its_leader_ends_too(start: Callable[..., Child]) -> None:
    child = start(FAMILY)
    grandchild = int(first_line(child))
    end_all([child])
    assert child.exit_code() == -signal.SIGTERM
    assert ended(grandchild)


def test_one_that_ignores_sigterm_is_killed_after_its_grace(start: Callable[..., Child]) -> None:
    stubborn = start(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "time.sleep(600)",
        grace_s=0.2,
    )
    assert first_line(stubborn) == "deaf"
    end_all([stubborn])
    assert stubborn.exit_code() == -signal.SIGKILL


def test_in_a_hurry_nobody_is_waited_for(start: Callable[..., Child]) -> None:
    slow = start(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "print('slow', flush=True)\n"
        "while True: time.sleep(600)",
        grace_s=600,
    )
    assert first_line(slow) == "slow"
    end_all([slow], hurry=lambda: True)
    assert slow.exit_code() == -signal.SIGKILL


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = (
        "import os, pathlib, sys, time\n"
        "from ratchet.supervisor.child import Child, Command\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "argv = (sys.executable, '-c', 'import time; time.sleep(600)')\n"
        "child = Child(Command('sleeper', argv, dict(os.environ), folder, folder / 'log'))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
    ) as process:  # fmt: skip
        assert process.stdout is not None
        sleeper = int(process.stdout.readline())
        assert psutil.pid_exists(sleeper)
        process.kill()
    assert ended(sleeper)


def test_a_program_that_does_not_exist_says_so(tmp_path: Path) -> None:
    command = Command("none", ("/no/such/program",), {}, tmp_path, tmp_path / "log")
    child = at_end(Child(command))
    assert child.why() == "ended with code 1: /no/such/program: No such file or directory"


def test_why_it_ended_names_signal_and_last_error(start: Callable[..., Child]) -> None:
    child = at_end(start("raise ValueError('no such tensor')"))
    assert child.why() == "ended with code 1: ValueError: no such tensor"
    killed = at_end(start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert killed.why() == "ended by signal 9 (Killed)"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", ""),
        ("starting\n\nall well\n", "all well"),
        (
            "(EngineCore pid=7) ERROR 11-30 16:00:01 [core.py:12] ValueError: no room for 4096 tokens\n"
            "(APIServer pid=3) RuntimeError: Engine core initialization failed. See root cause above.\n",
            "ValueError: no room for 4096 tokens",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, Unknown quantization method: gguf. [type=value_error]\n"
            "    For further information visit https://errors.pydantic.dev\n",
            "Value error, Unknown quantization method: gguf. [type=value_error]",
        ),
        (
            "WARNING 11-30 20:07:01 [utils.py:9] This can cause `OSError: [Errno 24] Too many`\nready\n",
            "ready",
        ),
        (
            'psycopg.OperationalError: "postgresql://me:hunter2@host/db" is away\n',
            'psycopg.OperationalError: "postgresql://me:***@host/db" is away',
        ),
    ],
)
def test_the_last_words_name_the_cause_and_no_secret(tmp_path: Path, log: str, expected: str) -> None:
    file = tmp_path / "log"
    file.write_text(log)
    assert last_words(file) == expected


def test_last_words_are_those_of_this_start(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("OSError: of an earlier start\n")
    since = file.stat().st_size
    with file.open("a") as more:
        more.write("listening\n")
    assert last_words(file, since) == "listening"
    file.write_text("trimmed\n")
    assert last_words(file, since) == "trimmed"


def test_a_log_that_grew_too_long_is_moved_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n" * 10)
        trim_log(log, limit=20)
        writer.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"old\n" * 10


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_each_wait_lies_between_half_and_all_of_a_doubling_bound(seed: int, failures: int) -> None:
    backoff = Backoff(first=1.0, longest=60.0, draw=random.Random(seed))
    for failure in range(failures):
        whole = min(2.0**failure, 60.0)
        assert whole / 2 <= backoff.next() <= whole


def test_a_long_life_makes_the_next_wait_short_again() -> None:
    backoff = Backoff(failures=9)
    backoff.lived(STEADY_S - 1)
    assert backoff.failures == 9
    backoff.lived(STEADY_S)
    assert backoff.failures == 0


def test_a_service_that_dies_is_started_again_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "import time; time.sleep(600)"
    command = Command("sleeper", (sys.executable, "-c", program), {}, tmp_path, tmp_path / "log", grace_s=0.1)
    changes: list[bool] = []
    service = Service(command, Show(to_stderr=False), lambda: changes.append(service.child is not None))
    service.tick()
    assert service.child is not None
    first = service.child.pid
    service.child.kill()
    service.tick()
    while service.child is None:
        service.tick()
    assert service.child.pid != first
    assert changes == [True, False, True]
    assert "sleeper         ended by signal 9 (Killed); again in" in capsys.readouterr().out
    assert service.refusal is None
    service.child.kill()


def test_a_service_that_refuses_what_it_was_given_is_known_by_its_exit_code(tmp_path: Path) -> None:
    program = "import sys; sys.stderr.write('ratchet: no such spool'); sys.exit(2)"
    service = Service(
        Command("gateway", (sys.executable, "-c", program), {}, tmp_path, tmp_path / "log"),
        Show(to_stderr=True),
        lambda: None,
    )
    service.tick()
    assert service.child is not None
    at_end(service.child)
    service.tick()
    assert service.refusal == "ended with code 2: ratchet: no such spool"


def test_a_service_that_cannot_be_started_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    command = Command("sleeper", (sys.executable, "-c", "pass"), {}, tmp_path, log)
    service = Service(command, Show(to_stderr=False), lambda: None)
    service.tick()
    assert service.child is None
    assert "sleeper         cannot be started: [Errno 21] Is a directory" in capsys.readouterr().out


def test_a_state_that_cannot_be_written_ends_nothing(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    state = StateFile(home, Show(to_stderr=False), embedded=True)
    state.describe({"gateway": "http://127.0.0.1:1"}, dict)
    state.save()
    saved = load(home)
    assert saved is not None
    assert (saved.addresses, saved.embedded) == ({"gateway": "http://127.0.0.1:1"}, True)
    shutil.rmtree(home.run)
    state.save()
    assert "cannot be written: No such file or directory" in capsys.readouterr().out


def test_a_story_that_nobody_hears_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as deaf:
        monkeypatch.setattr(sys, "stdout", deaf)
        show = Show(to_stderr=False)
        show.done("ready", "but nobody listens")
        show.plain("at all")
        with contextlib.suppress(BrokenPipeError):
            deaf.close()


def test_a_held_folder_names_its_process_and_is_free_again(home: Home) -> None:
    with hold(home):
        assert holder(home) == Identity.of(os.getpid())
        with pytest.raises(AlreadyRunning, match=rf"process {os.getpid()}\).*kill {os.getpid()}"), hold(home):
            pass
    assert holder(home) is None
    assert not lock_file(home).exists()
    with hold(home):
        assert lock_file(home).exists()


@pytest.mark.parametrize("content", ["", "garbage", "999999999 1.0", f"{os.getpid()} 1.0"])
def test_a_lock_file_of_a_dead_process_never_blocks(home: Home, content: str) -> None:
    lock_file(home).write_text(content)
    assert holder(home) is None
    with hold(home):
        assert holder(home) is not None


def test_a_process_is_known_by_its_start_too() -> None:
    own = Identity.of(os.getpid())
    assert own.is_alive()
    assert not own.number_was_given_away()
    assert Identity.parse(str(own)) == own
    earlier = Identity(os.getpid(), own.started - 1000)
    assert not earlier.is_alive()
    assert earlier.number_was_given_away()


def test_a_taken_port_names_who_has_it_and_a_free_one() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} on 127.0.0.1 .*process {os.getpid()}.*--port \d+"):
            ports.check("127.0.0.1", port)
        assert not ports.is_free("127.0.0.1", port)
        assert ports.near("127.0.0.1", port, set()) != port
    ports.check("127.0.0.1", port)
    assert ports.near("127.0.0.1", port, set()) == port
    assert ports.near("127.0.0.1", port, {port}) != port
    assert ports.near("127.0.0.1", 70_000, set()) < 65_536


@pytest.mark.parametrize("host", ["203.0.113.7", "no host at all"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}:8000"):
        ports.check(host, 8000)


def test_a_sweep_ends_groups_without_leaders_and_leaves_other_processes_alone(
    home: Home, start: Callable[..., Child]
) -> None:
    family = start(FAMILY)
    grandchild = int(first_line(family))
    os.kill(family.pid, signal.SIGKILL)
    at_end(family)
    stranger = start("import time; time.sleep(600)")
    state = StackState(
        supervisor=Identity(999_999_999, 1.0),
        boot=boot_id(),
        processes={
            "engine": family.identity,
            "reused": Identity(stranger.pid, stranger.identity.started - 1000),
            "nobody": Identity(0, 1.0),
        },
    )
    save(home, state)
    assert load(home) == state
    assert sweep(home, grace_s=1.0) == ["engine"]
    assert ended(grandchild)
    assert not stranger.has_ended()
    assert not state_file(home).exists()
    assert sweep(home) == []


def test_a_sweep_after_a_reboot_ends_nothing(home: Home, start: Callable[..., Child]) -> None:
    child = start("import time; time.sleep(600)")
    save(home, StackState(Identity(1, 1.0), "another boot", processes={"engine": child.identity}))
    assert sweep(home) == []
    assert not child.has_ended()
