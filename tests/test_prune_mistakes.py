"""What `prune_` refuses: named before the work where it can be known, and the model is then as it was."""

import copy

import pytest
import torch
from cases import images, mlp

from secateur import InputError, Magnitude, NumericsError, prune_


def unchanged_after(model, error, message, **arguments):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=message):
        prune_(model, **({"batches": images()} | arguments))
    assert all(torch.equal(a.nan_to_num(), before[n].nan_to_num()) for n, a in model.state_dict().items())


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("no method 'capp'", {"method": "capp"}),
        ("The sparsity 50 is no fraction", {"sparsity": 50}),
        ("no allocation 'layerwise'", {"allocation": "layerwise"}),
        ("matches no layer", {"layers": "nowhere"}),
        ("matches no layer of the model", {"sparsity": {"nowhere": 0.5}}),
        ("cap works from batches of images and labels, and none are given", {"batches": None}),
        ("recomputations is 0; give a whole number from 1", {"recomputations": 0}),
        ("recomputations is 1.5; give", {"recomputations": 1.5}),
        ("samples_per_gradient is -1; give", {"samples_per_gradient": -1}),
        ("samples_per_gradient is True; give", {"samples_per_gradient": True}),
        (
            r"The mask of 1.weight is torch.float32 of shape \(9, 12\); it must be torch.bool of shape \(9, 12\)",
            {"masks": {"1.weight": torch.ones(9, 12)}},
        ),
        (r"torch.bool of shape \(12, 9\)", {"masks": {"1.weight": torch.ones(12, 9, dtype=torch.bool)}}),
        ("takes 100 samples but the batches hold 24", {"samples_per_gradient": 100}),
        ("Labels of batch 0 run from 0 to 9", {"batches": [(torch.randn(2, 12), torch.tensor([0, 9]))]}),
    ],
)
def test_a_mistake_is_named_and_leaves_the_model_as_it_was(message, arguments):
    unchanged_after(mlp(), InputError, message, **arguments)


def test_more_zeros_than_asked_for_are_named_before_the_first_gradient():
    model = mlp()
    prune_(model, None, "magnitude", 0.5)
    unchanged_after(model, InputError, "hold .* zeros of 192 already", sparsity=0.4, batches=explode())


def explode():
    raise AssertionError("a batch was asked for")
    yield


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named_before_the_first_gradient(bad):
    model = mlp()
    model[3].weight.data[2, 1] = bad
    message = "3.weight holds 1 weights of 63 that are NaN or infinite"
    unchanged_after(model, NumericsError, message, batches=explode())


def test_a_gradient_that_is_not_finite_is_named_and_leaves_the_model_as_it_was():
    batches = images()
    batches[1][0][3] = float("nan")
    unchanged_after(mlp(), NumericsError, "batch 1", batches=batches)


class Bursting(Magnitude):
    def compensate(self, weight, before, keep, fisher, damping):
        return torch.where(keep, torch.inf, 0.0)


def test_a_solver_that_returns_infinity_is_named_and_leaves_the_model_as_it_was():
    message = "magnitude gave 1.weight a weight that is not finite; try a larger damping"
    unchanged_after(mlp(), NumericsError, message, method=Bursting())
