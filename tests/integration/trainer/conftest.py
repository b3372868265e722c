"""Tiny models: a second thread only waits, and would add up in another order than one."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """One thread in this process, as in those that are started."""
    torch.set_num_threads(1)
