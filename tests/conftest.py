"""One thread for all tests and what they start: their tensors are tiny, and sharing them takes longer than work."""

import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
