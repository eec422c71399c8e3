"""Dense and sparse in turn: the phases of the paper, and masks by magnitude over all layers."""

import numpy as np
import pytest
import torch

from secateur import InputError
from secateur.training.acdc import ACDC, Phase


def test_the_defaults_are_the_phases_of_the_paper():
    schedule = ACDC()
    phases = schedule.all_phases()
    assert schedule.length == 600
    assert [p.start for p in phases if p.compressed] == [150, 200, 250, 300, 350, 400, 450, 525]
    assert [p.end - p.start for p in phases if p.compressed] == [25] * 7 + [75]
    assert [p.end - p.start for p in phases if not p.compressed] == [150] + [25] * 6 + [50]


CASES = {  # options: what each step is
    "one compressed phase at the end": (ACDC(warmup=2, phases=0, last_compressed=3), "ddSSS"),
    "compressed from the start": (ACDC(0, 1, 2, 9, 1, 2), "SSdSS"),
    "two phases": (ACDC(1, 2, 2, 3, 1, 1), "dSSdddSSdS"),
    "never dense": (ACDC(0, 0, 1, 1, 1, 4), "SSSS"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_step_lies_in_one_phase(case):
    schedule, steps = CASES[case]
    assert "".join("S" if schedule.phase_at(i).compressed else "d" for i in range(schedule.length)) == steps
    phases = schedule.all_phases()
    assert [p.start for p in phases] == [0, *(p.end for p in phases[:-1])]
    assert all(p.start < p.end for p in phases)
    starts = [i for i in range(schedule.length) if schedule.phase_at(i).start == i]
    assert starts == [i for i in range(len(steps)) if i == 0 or steps[i] != steps[i - 1]]


@pytest.mark.parametrize("step", [-1, 600, 1000])
def test_a_step_outside_is_refused(step):
    with pytest.raises(InputError, match=rf"The phases end at 600, and {step} is asked for"):
        ACDC().phase_at(step)


@pytest.mark.parametrize("sparsity", [0.0, 1 / 3, 0.9, 1.0])
def test_a_compressed_phase_keeps_the_largest_weights_of_all_layers(sparsity):
    torch.manual_seed(0)
    weights = {"a": torch.randn(7, 5, requires_grad=True), "b": 3 * torch.randn(2, 3, 3, 3), "c": torch.zeros(4, 1)}
    masks = ACDC().masks_for(Phase(0, 5, True), weights, sparsity)
    together = np.concatenate([w.detach().abs().numpy().ravel() for w in weights.values()])
    order = sorted(range(len(together)), key=lambda i: (together[i], i))
    expected = np.ones(len(together), dtype=bool)
    expected[order[: round(sparsity * len(together))]] = False
    np.testing.assert_array_equal(np.concatenate([m.numpy().ravel() for m in masks.values()]), expected)
    assert {n: m.shape for n, m in masks.items()} == {n: w.shape for n, w in weights.items()}


def test_layers_may_be_equally_sparse_and_a_decompressed_phase_keeps_everything():
    weights = {"a": torch.randn(7, 5), "b": torch.randn(4, 9)}
    uniform = ACDC(allocation="uniform").masks_for(Phase(0, 5, True), weights, 0.75)
    assert [int((~m).sum()) for m in uniform.values()] == [26, 27]
    assert all(m.all() for m in ACDC().masks_for(Phase(5, 9, False), weights, 0.75).values())


def test_a_sparsity_that_is_no_fraction_is_refused():
    with pytest.raises(InputError, match=r"sparsity is 75; give a number from 0 to 1"):
        ACDC().masks_for(Phase(0, 5, True), {"a": torch.ones(2, 2)}, 75)


WRONG = {
    "a negative warm-up": ({"warmup": -1}, "warmup is -1; give a whole number from 0"),
    "an empty phase": ({"compressed": 0}, "compressed is 0; give a whole number from 1"),
    "half a phase": ({"last_compressed": 2.5}, "last_compressed is 2.5; give a whole number from 1"),
    "another allocation": ({"allocation": "erk"}, "There is no allocation 'erk'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_cannot_be_are_refused(case):
    options, said = WRONG[case]
    with pytest.raises(InputError, match=said):
        ACDC(**options)
