"""What a sparsity may be given as, and what is said of everything else."""

import pytest

from secateur import InputError
from secateur.patterns import NM
from secateur.sparsity import plain, read_sparsity


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (0.5, 0.5),
        (0, 0),
        (1, 1),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("dense", 0.0),
        ("2:4", NM(2, 4)),
        (" 2:4 ", NM(2, 4)),
        ("07:16", NM(7, 16)),
        (NM(1, 4), NM(1, 4)),
        ({"a": "2:4", "b": 0.3, "c": "dense", "d": NM(1, 2)}, {"a": NM(2, 4), "b": 0.3, "c": 0.0, "d": NM(1, 2)}),
        ({}, {}),
    ],
)
def test_a_fraction_a_pattern_or_a_table_of_them_is_read(given, read):
    assert read_sparsity(given) == read == read_sparsity(read)


@pytest.mark.parametrize("given", [0.5, "2:4", {"a": "2:4", "b": 0.3}])
def test_what_was_read_has_a_plain_form_for_json(given):
    assert plain(read_sparsity(given)) == given


@pytest.mark.parametrize(
    ("sparsity", "message"),
    [
        (-0.1, r"The sparsity -0.1 is no fraction from 0 to 1\."),
        (1.5, r"did you mean 0.015\?"),
        (75, r"The sparsity 75 is no fraction from 0 to 1; did you mean 0.75\?"),
        ("75", r"The sparsity 75.0 is no fraction from 0 to 1; did you mean 0.75\?"),
        (float("nan"), "The sparsity nan is no fraction"),
        (float("inf"), "The sparsity inf is no fraction"),
        (True, "The sparsity True is no fraction"),
        (None, "The sparsity None is no fraction"),
        ("half", r"The sparsity 'half' is no fraction from 0 to 1, no pattern such as 2:4, and not dense\."),
        ("2of4", "The sparsity '2of4' is no fraction"),
        ({"a": 2}, r"The sparsity 2 of 'a' is no fraction from 0 to 1; did you mean 0.02\?"),
        ("4:4", r"4:4 must keep at least one of a group and not all of it; for no zeros at all ask for 0\."),
        ("0:4", r"The pattern 0:4 must keep .*; for nothing but zeros ask for 1\."),
        ("0:0", r"The pattern 0:0 must keep .*; for nothing but zeros ask for 1\."),
        ("4:2", r"The pattern 4:2 must keep .*; did you mean 2:4\?"),
        ("5:0", r"The pattern 5:0 must keep .*; for no zeros at all ask for 0\."),
        ("2:4:8", r"'2:4:8' is no pattern N:M of two whole numbers; try 2:4\."),
        ("-2:4", "'-2:4' is no pattern"),
        ("2.0:4", "'2.0:4' is no pattern"),
        ("²:4", "'²:4' is no pattern"),
        (":", "':' is no pattern"),
        ("2:1000000000000", "'2:1000000000000' is no pattern"),
        ({"a": "4:1"}, r"The pattern 4:1 of 'a' must keep .* did you mean 1:4\?"),
    ],
)
def test_a_sparsity_that_is_none_is_named(sparsity, message):
    with pytest.raises(InputError, match=message):
        read_sparsity(sparsity)


def test_the_place_where_it_stood_is_named():
    with pytest.raises(InputError, match=r"The pattern 4:4 of 'fc1' in a\.yaml must keep"):
        read_sparsity({"fc1": "4:4"}, " in a.yaml")
