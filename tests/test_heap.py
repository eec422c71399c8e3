"""Page faults of large buffers, counted in a process of their own."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="only glibc has the means")
PAGES = 2**16  # of four buffers
COUNTED = """
import resource, torch
from secateur.heap import keep_freed_memory
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
keep_freed_memory()
for turn in range(20):
    if turn == 16:  # the heap has grown to what it needs
        before = faults()
    torch.ones(2**24)  # 64 MiB
print(faults() - before)
"""


def faults(**environment):
    """How many it takes to fill and free 64 MiB four times more."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    found = subprocess.run([sys.executable, "-c", COUNTED], env=clean | environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return int(found.stdout)


def test_freed_buffers_are_used_again():
    assert faults() < PAGES / 100


def test_what_the_environment_says_comes_first():
    assert faults(MALLOC_MMAP_THRESHOLD_="1048576") >= PAGES
