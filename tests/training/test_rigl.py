"""Sparse from the start: exact counts in every layer, and masks that move as single weights would, one by one."""

import numpy as np
import pytest
import torch

from secateur import InputError, NumericsError
from secateur.training.rigl import (
    RigL,
    erdos_renyi_groups,
    random_masks,
    random_scores,
    starting_groups,
    updated_masks,
)

NETWORKS = {
    "one layer": [(7, 5)],
    "equal layers": [(6, 6)] * 3,
    "a transformer block": [(48, 16), (16, 16), (64, 16), (16, 64)],
    "convolutions": [(8, 3, 3, 3), (16, 8, 3, 3), (16, 1, 5, 5), (10, 16, 1, 1)],
    "one narrow, one wide": [(3, 2), (101, 97)],
    "odd sizes, three axes": [(5, 3, 7), (11, 13), (1, 17), (1, 1)],
}
SPARSITIES = [0.0, 0.1, 1 / 3, 0.5, 0.8, 0.9, 0.99, 1.0]


def shapes_of(name):
    return {f"{i}.weight": torch.Size(shape) for i, shape in enumerate(NETWORKS[name])}


def zeros_of(groups):
    return {name: group.zeros for group in groups for name in group.names}


# --- where it starts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_erk_densities_follow_the_sum_of_dimensions_up_to_one_and_zeros_are_exact(network, sparsity):
    shapes = shapes_of(network)
    zeros = zeros_of(erdos_renyi_groups(shapes, sparsity))
    sizes = np.array([shape.numel() for shape in shapes.values()])
    raw = np.array([sum(shape) / shape.numel() for shape in shapes.values()])
    goal = sizes.sum() - round(sparsity * sizes.sum())
    low, high = 0.0, 2 / raw.min()
    for _ in range(200):  # bisection for ε: the kept weights grow with it
        middle = (low + high) / 2
        low, high = (middle, high) if (np.minimum(1, middle * raw) * sizes).sum() < goal else (low, middle)
    ideal = np.minimum(1, high * raw) * sizes
    kept = sizes - np.array(list(zeros.values()))
    assert list(zeros) == list(shapes)
    assert kept.sum() == goal
    assert (kept >= 0).all() and (kept <= sizes).all()
    assert (abs(kept - ideal) < 1 + 1e-6).all()


def test_erk_keeps_narrow_layers_dense_and_gives_the_rest_to_the_others():
    shapes = {"narrow": torch.Size((2, 2)), "wide": torch.Size((10, 10)), "wider": torch.Size((20, 10))}
    zeros = zeros_of(erdos_renyi_groups(shapes, 0.8))  # of 304 weights 243; 61 stay, of which narrow would get 4.52
    assert zeros == {"narrow": 0, "wide": 100 - 23, "wider": 200 - 34}  # 57 · 20/50 = 22.8, 57 · 30/50 = 34.2


def test_uniform_layers_are_equally_sparse():
    shapes = shapes_of("a transformer block")
    assert zeros_of(starting_groups(shapes, 0.8, "uniform")) == {n: round(0.8 * s.numel()) for n, s in shapes.items()}
    assert starting_groups(shapes, 0.8) == erdos_renyi_groups(shapes, 0.8)


@pytest.mark.parametrize("sparsity", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("network", NETWORKS)
def test_random_masks_have_exactly_their_zeros_and_depend_on_the_seed_alone(network, sparsity):
    shapes = shapes_of(network)
    groups = starting_groups(shapes, sparsity)
    masks = random_masks(shapes, groups, seed=3)
    assert {name: int((~mask).sum()) for name, mask in masks.items()} == zeros_of(groups)
    assert {name: mask.shape for name, mask in masks.items()} == dict(shapes)
    torch.manual_seed(9)
    again = random_masks(shapes, groups, seed=3)
    assert all(torch.equal(masks[name], again[name]) for name in shapes)
    other = random_masks(shapes, groups, seed=4)
    assert sparsity in (0.0, 1.0) or not all(torch.equal(masks[name], other[name]) for name in shapes)


def test_random_places_are_spread_evenly():
    shapes = {"weight": torch.Size((4, 5))}
    groups = starting_groups(shapes, 0.4, "uniform")
    often = sum(random_masks(shapes, groups, seed)["weight"].double() for seed in range(2000)) / 2000
    assert (often - 0.6).abs().max() < 0.05  # four and a half standard deviations


# --- how it moves -----------------------------------------------------------------------------------------------------


def moved_one_by_one(weight, gradient, mask, fraction):
    """The smallest kept weight leaves, again and again; then the largest gradient comes back as often."""
    weight, gradient, kept = weight.ravel(), gradient.ravel(), [*np.flatnonzero(mask)]
    count = round(fraction * len(kept))
    for _ in range(count):
        kept.remove(min(kept, key=lambda i: (abs(weight[i]), i)))
    for _ in range(count):
        free = [i for i in range(mask.size) if i not in kept]
        kept.append(min(free, key=lambda i: (-abs(gradient[i]), i)))
    moved = np.zeros(mask.size, dtype=bool)
    moved[kept] = True
    return moved.reshape(mask.shape)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("sparsity", [0.0, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("ties", [False, True])
def test_masks_move_as_one_weight_after_the_other_would(ties, sparsity, fraction):
    generator = np.random.default_rng(0)
    shapes = [(7, 5), (3, 4, 3, 3), (1, 9), (6, 2, 5)]
    draw = (lambda s: generator.integers(-2, 3, s).astype(float)) if ties else (lambda s: generator.normal(size=s))
    masks = {
        str(i): generator.permutation(np.prod(s)).reshape(s) >= sparsity * np.prod(s) for i, s in enumerate(shapes)
    }
    weights = {n: draw(m.shape) * m for n, m in masks.items()}
    gradients = {n: draw(m.shape) for n, m in masks.items()}
    moved = updated_masks(*({n: torch.tensor(v) for n, v in d.items()} for d in (weights, gradients, masks)), fraction)
    for name, mask in masks.items():
        assert moved[name].sum() == mask.sum()
        np.testing.assert_array_equal(
            moved[name].numpy(), moved_one_by_one(weights[name], gradients[name], mask, fraction), name
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_masks_move_in_any_type(dtype):
    weight = torch.tensor([[3.0, 1, 0, 0]], dtype=dtype)
    gradient = torch.tensor([[0.0, 1, 5, 2]], dtype=dtype)
    moved = updated_masks({"w": weight}, {"w": gradient}, {"w": weight != 0}, 0.5)
    assert moved["w"].tolist() == [[True, False, True, False]]


def test_differences_below_float32_count_in_float64():
    weight = torch.tensor([1 + 1e-12, 1.0, 0], dtype=torch.float64)
    moved = updated_masks({"w": weight}, {"w": torch.tensor([0.0, 0, 1]).double()}, {"w": weight != 0}, 0.5)
    assert moved["w"].tolist() == [True, False, True]


def test_inputs_stay_as_they_were_and_a_layer_the_loss_does_not_see_stays_too():
    weight, mask = torch.tensor([3.0, 1, 0, 0], requires_grad=True), torch.tensor([True, True, False, False])
    before = mask.clone()
    moved = updated_masks({"w": weight}, {"w": None}, {"w": mask}, 0.5)
    assert torch.equal(moved["w"], mask) and moved["w"] is not mask
    updated_masks({"w": weight}, {"w": torch.ones(4)}, {"w": mask}, 0.5)
    assert torch.equal(mask, before) and weight.tolist() == [3, 1, 0, 0]


def test_random_growth_is_another_gradient():
    weight = torch.arange(1.0, 101).view(10, 10)
    mask = weight > 50
    scores = random_scores({"w": weight.shape}, seed=0)
    moved = updated_masks({"w": weight}, scores, {"w": mask}, 0.4)["w"]
    assert moved.sum() == 50 and moved[7:].all() and 5 < moved[:5].sum() <= 20  # 51 … 70 left, 20 of 70 places grew


# --- when it moves ----------------------------------------------------------------------------------------------------


def test_the_share_that_moves_falls_along_a_cosine():
    rigl = RigL(end=400, interval=50, fraction=0.5)
    assert [s for s in range(600) if rigl.updates_at(s)] == [50, 100, 150, 200, 250, 300, 350]
    shares = [rigl.fraction_at(s) for s in (0, 100, 200, 300, 400, 500)]
    assert shares == pytest.approx([0.5, 0.25 * (1 + 0.5**0.5), 0.25, 0.25 * (1 - 0.5**0.5), 0, 0])


WRONG = {
    "no interval": ({"end": 10, "interval": 0}, r"interval is 0; give a whole number from 1"),
    "no end": ({"end": 0}, r"end is 0; give a whole number from 1"),
    "more than all": ({"end": 10, "fraction": 1.5}, r"fraction is 1.5; give a number from 0 to 1"),
    "another growth": ({"end": 10, "growth": "momentum"}, r"no growth 'momentum'; choose gradient or random"),
    "another start": ({"end": 10, "distribution": "ER"}, r"no distribution 'ER'; choose erk or uniform"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_cannot_be_are_refused(case):
    options, said = WRONG[case]
    with pytest.raises(InputError, match=said):
        RigL(**options)


def test_what_cannot_be_moved_is_refused():
    weight, mask = torch.ones(2, 3), torch.ones(2, 3) > 0
    with pytest.raises(InputError, match=r"gradients of \(3, 2\) and a mask of \(2, 3\); give the dense gradient"):
        updated_masks({"w": weight}, {"w": torch.ones(3, 2)}, {"w": mask}, 0.5)
    with pytest.raises(InputError, match=r"w has a mask and no weight or no gradient"):
        updated_masks({"w": weight}, {}, {"w": mask}, 0.5)
    with pytest.raises(InputError, match=r"fraction is 2; give a number from 0 to 1"):
        updated_masks({"w": weight}, {"w": weight}, {"w": mask}, 2)
    for weights, gradients in ((weight * torch.nan, weight), (weight, weight * torch.nan)):
        with pytest.raises(NumericsError, match=r"w holds NaN in its weights or its gradient"):
            updated_masks({"w": weights}, {"w": gradients}, {"w": mask}, 0.5)
    with pytest.raises(InputError, match=r"There is no distribution 'ER'; choose erk or uniform"):
        starting_groups({"w": weight.shape}, 0.5, "ER")
    for distribution in ("erk", "uniform"):
        with pytest.raises(InputError, match=r"sparsity is 90; give a number from 0 to 1"):
            starting_groups({"w": weight.shape}, 90, distribution)
