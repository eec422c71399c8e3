"""Keeping freed memory. A batch's activations are large buffers, and glibc gives each back to the system when it is
freed: the next one costs a page fault every 4 KiB, which in convolutional models can take as long as the arithmetic.
"""

import ctypes
import os
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 2**30  # bytes at the heap's end, and the largest buffer that is taken from it


def keep_freed_memory() -> None:
    """Let freed buffers be used again.

    For programs, not for libraries: it holds for the whole process. Only glibc has the means; what the environment
    says of them comes first.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(AttributeError, OSError, TypeError):  # another system's library; Windows has no CDLL(None)
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT)
        mallopt(M_TRIM_THRESHOLD, KEPT)
