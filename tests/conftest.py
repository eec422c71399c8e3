"""One thread for all tests and what they start: their tensors are tiny, and sharing them takes longer than work.

Ctrl-C is listened to, also where a shell has started the tests in the background and ignores it for them.
"""

import os
import signal

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
