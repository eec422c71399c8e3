from pathlib import Path

import pytest

from secateur import memory

GIB = 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:  100 kB\nMemAvailable:    8388608 kB\n"  # 8 GiB are available
CGROUP = "/sys/fs/cgroup/memory."


@pytest.fixture
def files(monkeypatch):
    """What the kernel says, in place of its files."""
    texts = {"/proc/meminfo": MEMINFO}

    def read(path, *_, **__):
        if str(path) not in texts:
            raise FileNotFoundError(path)
        return texts[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    return texts


def group(limit, used, cached=0):
    return {
        f"{CGROUP}max": f"{limit}\n",
        f"{CGROUP}current": f"{used}\n",
        f"{CGROUP}stat": f"anon {used - cached}\nactive_file 0\ninactive_file {cached}\n",
    }


def test_without_a_control_group_it_is_the_kernels_estimate(files):
    assert memory.available_bytes() == 8 * GIB


@pytest.mark.parametrize(
    ("limit", "used", "cached", "available"),
    [
        ("max", 4 * GIB, 0, 8),  # no limit
        (4 * GIB, 1 * GIB, 0, 3),
        (4 * GIB, 4 * GIB, 3 * GIB, 3),  # cached files are given up when memory runs short
        (4 * GIB, 5 * GIB, 0, 0),
        (99 * GIB, 1 * GIB, 0, 8),
    ],
)
def test_a_control_group_limits_it(files, limit, used, cached, available):
    files |= group(limit, used, cached)
    assert memory.available_bytes() == available * GIB


def test_where_the_kernel_gives_no_estimate_it_is_half_of_what_is_built_in(files, monkeypatch):
    files.clear()
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4 * GIB // 4096}.__getitem__)
    assert memory.available_bytes() == 2 * GIB


def test_this_machine_has_some():
    assert 0 < memory.available_bytes() < 1 << 50
