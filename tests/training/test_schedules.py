import math

import pytest

from secateur.errors import InputError
from secateur.training.schedules import learning_rate, ramp

TABLE = {  # shape: η at t = 0 … 5, from 8 to 2 in cycles of 3
    "linear": [8, 6, 4, 8, 6, 4],
    "cosine": [8, 6.5, 3.5, 8, 6.5, 3.5],
    "constant": [8, 8, 8, 8, 8, 8],
}


@pytest.mark.parametrize("shape", TABLE)
def test_rates_are_those_of_the_table(shape):
    assert [learning_rate(t, shape, 8.0, 2.0, cycle=3) for t in range(6)] == pytest.approx(TABLE[shape])


@pytest.mark.parametrize("t", [0, 7, 19.5, 20, 33, 299])
def test_the_cyclic_linear_rate_is_the_formula_of_the_paper(t):
    highest, lowest, cycle = 5e-4, 1e-5, 20
    assert learning_rate(t, "linear", highest, lowest, cycle) == highest - (highest - lowest) * (t % cycle) / cycle


def test_one_cosine_goes_from_the_highest_through_the_middle_towards_the_lowest():
    rates = [learning_rate(t, "cosine", 1.0, 0.0, cycle=100) for t in range(100)]
    assert (
        rates[0] == 1
        and rates[50] == pytest.approx(0.5)
        and rates[99] == pytest.approx((1 - math.cos(math.pi / 100)) / 2)
    )
    assert rates == sorted(rates, reverse=True)


def test_the_warm_up_rises_to_the_highest_and_the_cycle_goes_on_where_it_would_be():
    rates = [learning_rate(t, "linear", 6.0, 0.0, cycle=12, warmup=5) for t in range(7)]
    assert rates == pytest.approx([1, 2, 3, 4, 5, 3.5, 3])


RAMPS = [
    (("linear", 0.5, 0.9, 5), (0.5, 0.6, 0.7, 0.8, 0.9)),
    (("cubic", 0.0, 0.8, 3), (0.0, 0.7, 0.8)),
    (("cubic", 0.4, 0.9, 2), (0.4, 0.9)),
    (("linear", 0.4, 0.9, 1), (0.9,)),
    (("linear", 0.5, 0.9, 5, [0.62, 0.75]), (0.5, 0.62, 0.75, 0.8, 0.9)),
    (("linear", 0.5, 0.9, 5, [0.5, 0.9]), (0.5, 0.6, 0.7, 0.8, 0.9)),
]


@pytest.mark.parametrize(("arguments", "expected"), RAMPS)
def test_ramps_are_those_of_the_table(arguments, expected):
    assert ramp(*arguments) == expected


def test_the_ramp_of_the_paper_hits_every_target_and_never_falls():
    values = ramp("cubic", 0.4, 0.9, 15, [0.5, 0.6, 0.75, 0.8])
    assert {0.4, 0.5, 0.6, 0.75, 0.8, 0.9} <= set(values)
    assert list(values) == sorted(set(values)) and len(values) == 15
    assert values.index(0.5) == 1 and values.index(0.75) == 5  # written after 40 and 120 epochs


def test_two_targets_never_take_the_same_step():
    assert ramp("linear", 0.5, 0.9, 4, [0.7, 0.71]) == (0.5, 0.7, 0.71, 0.9)


def test_more_targets_than_steps_are_refused():
    with pytest.raises(InputError, match=r"3 pruning steps cannot pass through 0\.6, 0\.7 between 0\.5 and 0\.9"):
        ramp("linear", 0.5, 0.9, 3, [0.6, 0.7])
