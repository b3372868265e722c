"""Amounts of memory as people write them, and what one process of a round may use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import UsageError
from trainer.plan.device import Device, here, size_of


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 << 30), ("24 GB", 24 * 10**9), ("512mib", 512 << 20), ("1.5GiB", 3 << 29), ("4096", 4096)],
)
def test_amounts_by_hand(text: str, size: int) -> None:
    assert size_of(text) == size


@given(st.text(max_size=8).filter(lambda text: not any(sign.isdecimal() for sign in text)))
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="80GiB"):
        size_of(text)


def test_processes_share_the_memory_of_a_host_and_not_that_of_gpus() -> None:
    assert Device("cpu", 1000).share(4) == 250
    assert Device("cuda", 1000).share(4) == 1000
    assert here().bytes > 0
