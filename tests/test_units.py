"""Amounts that are written as people read them, and read as people write them."""

import pytest

from secateur.errors import InputError
from secateur.resources import Resources
from secateur.units import duration, parse_bytes, readable


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 42, "4.0 TiB"),
        (1 << 52, "4096.0 TiB"),
    ],
)
def test_sizes_read_well(size, text):
    assert readable(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(75, "75 s"), (3000, "50 min"), (9000, "2.5 h")])
def test_durations_are_read_at_a_glance(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "count"), [("12GiB", 12 * 2**30), ("800M", 800 * 2**20), ("1.5 kb", 1536), (4096, 4096), ("1T", 2**40)]
)
def test_amounts_of_memory_are_read(text, count):
    assert parse_bytes(text) == count == Resources(memory=text).bytes


@pytest.mark.parametrize("text", ["", "much", "-1G", "0", "1X"])
def test_an_amount_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="is no amount of memory; give such as 12GiB"):
        parse_bytes(text)
