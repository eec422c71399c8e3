"""Every method × every pattern × every kind of layer: counts, patterns, finite weights, predictions, equal runs."""

import pytest
from cases import KINDS, kind_example
from reference import as_matrix

from secateur import CAP, MFAC, OBD, FastCAP, GrW, Magnitude, WoodFisher, prune_
from secateur.layers import prunable_weights
from secateur.solvers import METHODS

SOLVERS = [  # blocks that end inside rows and groups, where they may
    Magnitude(), GrW(), GrW(product=True), OBD(), WoodFisher(), WoodFisher(block=10), MFAC(block=9, gradients=5),
    FastCAP(), FastCAP(block=5, forward=True), CAP(), CAP(block=16),
]  # fmt: skip
ASKED = {  # sparsity, and what else `prune_` is told
    "37 %": (0.37, {}),
    "37 % of each": (0.37, {"allocation": "uniform"}),
    "37 % in two stages": (0.37, {"recomputations": 2}),
    "2:4": ("2:4", {}),
    "1:4 of each": ("1:4", {"allocation": "uniform"}),
    "4:8": ("4:8", {}),
    "2:4 in two stages": ("2:4", {"recomputations": 2}),
    "a table of both": ({"first": "2:4", "second": 0.37}, {}),
}


def test_no_method_is_missing():
    assert {solver.name for solver in SOLVERS} == set(METHODS)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_counts_are_exact_patterns_hold_weights_are_finite_and_runs_are_equal(solver, kind, asked):
    model, result, wanted = pruned(solver, kind, asked)
    for name, mask in result.masks.items():
        weight = model.get_parameter(name)
        assert weight.isfinite().all() and mask.equal(weight != 0)
        if name not in result.left_out and ":" in str(wanted[name]):
            keep, of = map(int, wanted[name].split(":"))
            assert as_matrix(mask).unflatten(1, (-1, of)).sum(2).eq(keep).all()
    assert zeros_by_layer(result) == expected(result, wanted)
    assert result.left_out.keys() == {n for n, mask in result.masks.items() if not takes(mask.shape, wanted[n])}
    foretold = result.predicted_loss_increase
    assert foretold is None if solver.statistic is None or isinstance(solver, GrW) else foretold >= 0

    again, repeated, _ = pruned(solver, kind, asked)
    assert all(mask.equal(repeated.masks[name]) for name, mask in result.masks.items())
    assert all(value.equal(again.state_dict()[name]) for name, value in model.state_dict().items())


def pruned(solver, kind, asked):
    """The model, its result, and what each layer was asked for."""
    model, batch = kind_example(kind)
    (sparsity, options), names = ASKED[asked], list(prunable_weights(model))
    if isinstance(sparsity, dict):
        sparsity = dict(zip(names, sparsity.values(), strict=False))
    wanted = {name: sparsity.get(name, 0) if isinstance(sparsity, dict) else sparsity for name in names}
    return model, prune_(model, [batch], solver, sparsity, layers="*", **options), wanted


def takes(shape, wanted):
    return ":" not in str(wanted) or shape[1] % int(wanted.split(":")[1]) == 0


def zeros_by_layer(result):
    """Their sum alone, where one threshold decides over all layers."""
    zeros = {name: int((~mask).sum()) for name, mask in result.masks.items()}
    return sum(zeros.values()) if _shared(result) else zeros


def expected(result, wanted):
    sizes = {name: mask.numel() for name, mask in result.masks.items()}
    if _shared(result):
        return round(result.sparsity * sum(sizes.values()))
    return {name: zeros_of(size, wanted[name], name in result.left_out) for name, size in sizes.items()}


def _shared(result):
    return result.allocation == "global" and isinstance(result.sparsity, float)


def zeros_of(size, wanted, left_out):
    if left_out:
        return 0
    if ":" in str(wanted):
        keep, of = map(int, wanted.split(":"))
        return size // of * (of - keep)
    return round(wanted * size)
