"""`prune_` on small models: the counts, what stays, and the whole path against the same path in dense float64."""

import weakref

import numpy as np
import pytest
import torch
from cases import convolutional, images, mlp
from torch import nn

from secateur import CAP, Magnitude, WoodFisher, prune_, steps
from secateur.batchnorm import recalibrate_
from secateur.curvature import collect
from secateur.solvers import METHODS

WITHOUT_A_FISHER = ("magnitude", "grw")
every_method = pytest.mark.parametrize("method", METHODS)


def zeros_in(model, names):
    weights = dict(model.named_parameters())
    return {name: int((weights[name] == 0).sum()) for name in names}


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_bits(one, other):
    return one.keys() == other.keys() and all(a.equal(other[name]) for name, a in one.items())


def assert_describes(result, model):
    """The masks are the zeros of the model's weights, and the numbers count them."""
    weights = dict(model.named_parameters())
    assert all(mask.equal(weights[name] != 0) for name, mask in result.masks.items())
    assert result.zeros == sum(zeros_in(model, result.masks).values())
    assert result.achieved == result.zeros / result.total


# --- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("build", [mlp, convolutional])
@every_method
def test_exactly_the_rounded_share_of_the_weights_becomes_zero(method, build, dtype):
    for sparsity, allocation in [(0.37, "global"), (0.9, "uniform"), ({"*": 0.25}, "global")]:
        model = build(dtype)
        result = prune_(model, images(dtype), method, sparsity, allocation=allocation)
        assert_describes(result, model)
        if allocation == "global" and sparsity == 0.37:
            assert result.zeros == round(0.37 * result.total)
        else:
            share = 0.9 if allocation == "uniform" else 0.25
            sizes = {name: mask.numel() for name, mask in result.masks.items()}
            assert zeros_in(model, sizes) == {name: round(share * size) for name, size in sizes.items()}
        assert all(p.dtype == dtype and p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("allocation", ["global", "uniform"])
@every_method
def test_a_second_pruning_keeps_the_first_ones_zeros_and_ends_exactly_at_its_own_sparsity(method, allocation):
    model = convolutional()
    first = prune_(model, images(), method, 0.5, allocation=allocation)
    second = prune_(model, images(), method, 0.75, allocation=allocation)
    assert_describes(second, model)
    assert all((second.masks[name] <= mask).all() for name, mask in first.masks.items())
    sizes = {name: mask.numel() for name, mask in first.masks.items()}
    goals = {name: round(0.75 * size) for name, size in sizes.items()}
    assert second.zeros == round(0.75 * second.total) if allocation == "global" else zeros_in(model, sizes) == goals


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("build", [mlp, convolutional])
@every_method
def test_no_sparsity_changes_nothing_to_the_bit(method, build, dtype):
    model = build(dtype)
    before = state(model)
    result = prune_(model, images(dtype), method, 0.0, recomputations=2)
    assert same_bits(before, state(model)) and result.zeros == 0
    assert result.predicted_loss_increase == (None if method in WITHOUT_A_FISHER else 0.0)


@pytest.mark.parametrize("recomputations", [1, 3])
@pytest.mark.parametrize("build", [mlp, convolutional])
@every_method
def test_full_sparsity_zeroes_every_chosen_weight_and_the_model_still_runs(method, build, recomputations):
    model = build()
    result = prune_(model, images(), method, 1.0, layers="*", recomputations=recomputations)
    assert result.zeros == result.total == sum(zeros_in(model, result.masks).values())
    assert model(images()[0][0]).isfinite().all()


def test_a_kept_weight_that_lands_on_zero_is_no_zero():
    model = mlp(torch.bfloat16)
    result = prune_(model, None, Zeroing(), 0.5)
    assert_describes(result, model)
    assert result.zeros == 96


class Zeroing(Magnitude):
    """Every weight lands on zero, kept or not."""

    def compensate(self, weight, before, keep, fisher, damping):
        return torch.zeros_like(weight)


# --- the path ---------------------------------------------------------------------------------------------------------


def dense_fisher(model, name, batches, samples_per_gradient=1):
    """1/N Σ g gᵀ of one weight, by ordinary differentiation of each sample's loss."""
    weight, each = dict(model.named_parameters())[name], []
    for inputs, targets in batches:
        for x, y in zip(inputs, targets, strict=True):
            loss = nn.functional.cross_entropy(model(x[None]), y[None])
            each.append(torch.autograd.grad(loss, weight)[0].reshape(-1))
    gradients = torch.stack(each).unflatten(0, (-1, samples_per_gradient)).mean(1)
    return (gradients.T @ gradients / len(gradients)).numpy()


@pytest.mark.parametrize("samples_per_gradient", [1, 3, 12])
@pytest.mark.parametrize(("relative", "damping"), [(True, 0.01), (False, 0.003)])
def test_cap_on_one_layer_is_the_greedy_choice_and_the_joint_update_on_its_dense_fisher(
    relative, damping, samples_per_gradient
):
    model, batches = mlp(torch.float64), images(torch.float64)
    weight = model[3].weight.detach().numpy().reshape(-1).copy()
    fisher = dense_fisher(model, "3.weight", batches, samples_per_gradient)
    system = fisher + damping * (fisher.diagonal().mean() if relative else 1.0) * np.eye(63)
    solver = CAP(block=1000, damping=damping, relative=relative)
    result = prune_(model, batches, solver, 0.4, layers="3", samples_per_gradient=samples_per_gradient)

    kept, current = np.ones(63, bool), weight.copy()
    for _ in range(round(0.4 * 63)):
        inverse = np.linalg.inv(system[np.ix_(kept, kept)])
        costs = current[kept] ** 2 / (2 * inverse.diagonal())
        kept[np.flatnonzero(kept)[costs.argmin()]] = False
        current = np.zeros(63)
        current[kept] = np.linalg.solve(system[np.ix_(kept, kept)], (system @ weight)[kept])
    assert result.masks["3.weight"].reshape(-1).tolist() == kept.tolist()
    np.testing.assert_allclose(model[3].weight.detach().reshape(-1), current, rtol=1e-6, atol=1e-9)
    change = current - weight
    assert result.predicted_loss_increase == pytest.approx(0.5 * change @ fisher @ change, rel=1e-6)
    assert result.gradients == 24 // samples_per_gradient


def test_relative_damping_is_in_units_of_the_mean_diagonal_over_all_layers():
    one, other = mlp(torch.float64), mlp(torch.float64)
    fishers = [dense_fisher(one, name, images(torch.float64)) for name in ("1.weight", "3.weight")]
    scale = sum(f.trace() for f in fishers) / sum(len(f) for f in fishers)
    for model, solver in [(one, CAP(damping=0.1)), (other, CAP(damping=0.1 * scale, relative=False))]:
        prune_(model, images(torch.float64), solver, 0.5, layers=["1", "3"])
    assert all(torch.allclose(a, b, rtol=1e-8) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_each_recomputation_starts_from_the_weights_of_the_one_before():
    at_once, stepwise = mlp(), mlp()
    result = prune_(at_once, images(), "cap", 0.75, recomputations=2)
    first = prune_(stepwise, images(), "cap", round(0.5 * result.total) / result.total)
    second = prune_(stepwise, images(), "cap", 0.75)
    assert same_bits(state(at_once), state(stepwise)) and same_bits(result.masks, second.masks)
    total = first.predicted_loss_increase + second.predicted_loss_increase
    assert result.predicted_loss_increase == pytest.approx(total)


def test_one_fisher_is_in_memory_at_a_time(monkeypatch):
    made = []

    def collecting(*args, **options):
        assert all(earlier() is None for earlier in made)
        curvatures = collect(*args, **options)
        made.extend(weakref.ref(curvature) for curvature in curvatures.values())
        return curvatures

    monkeypatch.setattr("secateur.prune.collect", collecting)
    prune_(mlp(), images(), "cap", 0.75, recomputations=3)
    assert len(made) == 3


@every_method
def test_the_same_seed_gives_the_same_bits(method):
    runs = []
    for _ in range(2):
        model = convolutional()
        result = prune_(model, images(), method, 0.6, recomputations=2)
        runs.append((state(model), result.masks, result.predicted_loss_increase))
    assert same_bits(runs[0][0], runs[1][0]) and same_bits(runs[0][1], runs[1][1]) and runs[0][2] == runs[1][2]


def test_layers_that_lose_nothing_stay_to_the_bit_while_others_move():
    model = mlp()
    before = state(model)
    prune_(model, images(), "cap", {"1": 0.5}, layers=["1", "3"])
    changed = [name for name, value in state(model).items() if not value.equal(before[name])]
    assert changed == ["1.weight"]


# --- masks ------------------------------------------------------------------------------------------------------------


@every_method
def test_weights_that_a_given_mask_drops_are_zeroed_and_counted(method):
    model, mask = mlp(), torch.arange(108).view(9, 12) % 3 > 0
    result = prune_(model, images(), method, 0.5, masks={"1.weight": mask})
    assert_describes(result, model)
    assert result.zeros == round(0.5 * result.total) and (result.masks["1.weight"] <= mask).all()


def test_a_mask_alone_is_compensated_like_any_other_loss():
    model, batches = mlp(torch.float64), images(torch.float64)
    weight, fisher = model[3].weight.detach().numpy().reshape(-1).copy(), dense_fisher(model, "3.weight", batches)
    mask = torch.arange(63).view(7, 9) % 3 > 0
    prune_(model, batches, CAP(damping=1e-3, relative=False), 21 / 63, layers="3", masks={"3.weight": mask})
    kept, system = mask.reshape(-1).numpy(), fisher + 1e-3 * np.eye(63)
    truth = np.linalg.solve(system[np.ix_(kept, kept)], (system @ weight)[kept])
    np.testing.assert_allclose(model[3].weight.detach().reshape(-1)[mask.reshape(-1)], truth, rtol=1e-7)


def test_a_mask_that_keeps_a_zero_lets_it_move_again():
    model = mlp()
    prune_(model, None, "magnitude", 0.5, layers=["1", "3"])
    all_kept = {"1.weight": torch.ones(9, 12, dtype=torch.bool)}
    result = prune_(model, images(), "cap", {"1": 0.2, "3": 0.9}, layers=["1", "3"], masks=all_kept)
    assert zeros_in(model, ["3.weight"]) == {"3.weight": round(0.9 * 63)} and result.masks["1.weight"].sum() == 86


# --- models, losses, batches ------------------------------------------------------------------------------------------


class Named(nn.Module):
    """Takes keyword arguments and returns an output with its own loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.shared = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, pixels, labels=None):
        logits = self.shared(torch.tanh(self.inner(torch.tanh(self.inner(pixels)))))
        return Output(logits, None if labels is None else nn.functional.cross_entropy(logits, labels))


class Output:
    def __init__(self, logits, loss):
        self.logits, self.loss = logits, loss


def mean_square(outputs, targets):
    return (getattr(outputs, "logits", outputs) - nn.functional.one_hot(targets, 3)).square().mean()


def named_batches():
    generator = torch.Generator().manual_seed(0)
    return [{"pixels": torch.randn(5, 6, generator=generator), "labels": torch.arange(5) % 3} for _ in range(3)]


@pytest.mark.parametrize("loss", [None, mean_square])
@every_method
def test_batches_may_be_mappings_and_the_loss_any_function(method, loss):
    model = Named()
    result = prune_(model, named_batches(), method, 0.5, layers="*", loss=loss)
    assert_describes(result, model)
    assert result.zeros == round(0.5 * 54) and result.gradients == (0 if method == "magnitude" else 15)


def test_the_loss_given_is_the_one_whose_fisher_is_made():
    by_default, by_square = mlp(), mlp()
    prune_(by_default, images(), "cap", 0.5)
    prune_(by_square, images(), "cap", 0.5, loss=mean_square)
    assert not same_bits(state(by_default), state(by_square))


@pytest.mark.parametrize("recomputations", [1, 2])
@pytest.mark.parametrize("build", [mlp, convolutional])
@every_method
def test_a_generator_of_batches_does_as_well_as_a_list(method, build, recomputations):
    from_list, from_generator = build(), build()
    prune_(from_list, images(), method, 0.5, recomputations=recomputations)
    prune_(from_generator, (batch for batch in images()), method, 0.5, recomputations=recomputations)
    assert same_bits(state(from_list), state(from_generator))


def test_a_generator_is_not_held_in_memory_when_one_pass_is_enough():
    batches = (batch for batch in images())
    assert steps.repeatable(batches, [CAP()], passes=1) is batches
    assert len(steps.repeatable(batches, [CAP()], passes=2)) == 3


@pytest.mark.parametrize("training", [True, False])
@every_method
def test_modes_gradients_and_frozen_parameters_are_left_as_they_were(method, training):
    model = convolutional().train(training)
    model[3].weight.requires_grad_(False)
    prune_(model, images(), method, 0.5)
    assert all(module.training == training for module in model.modules())
    assert all(p.grad is None and p.requires_grad != (p is model[3].weight) for p in model.parameters())


@every_method
def test_batch_normalisation_is_measured_again_on_the_pruned_model(method):
    model = convolutional()
    prune_(model, images(), method, 0.5)
    mean, variance = model[4].running_mean.clone(), model[4].running_var.clone()
    assert mean.any() and not variance.equal(torch.ones(6))
    recalibrate_(model, images())
    assert mean.equal(model[4].running_mean) and variance.equal(model[4].running_var)


def test_batch_normalisation_is_measured_on_the_first_samples_alone(monkeypatch):
    monkeypatch.setattr("secateur.batchnorm.SAMPLES", len(images()[0][1]))
    model = convolutional()
    prune_(model, images(), "cap", 0.5)
    mean = model[4].running_mean.clone()
    recalibrate_(model, images()[:1])
    assert mean.equal(model[4].running_mean)


@pytest.mark.parametrize("given", [{"recalibrate": False}, {"batches": None, "method": "magnitude"}])
def test_batch_normalisation_stays_without_data_or_when_told_so(given):
    model = convolutional()
    before = state(model[1])
    prune_(model, **({"batches": images(), "method": "cap", "sparsity": 0.5} | given))
    assert same_bits(before, state(model[1]))


def test_the_result_says_how_it_was_made():
    solver = WoodFisher(block=5, damping=0.3)
    result = prune_(mlp(), images(), solver, 0.5, allocation="uniform", samples_per_gradient=2, recomputations=2)
    made = result.manifest()
    assert made.pop("seconds") > 0 and made.pop("predicted_loss_increase") > 0
    assert made == {
        "method": "woodfisher",
        "options": {"block": 5, "damping": 0.3, "relative": True},
        "allocation": "uniform",
        "sparsity": 0.5,
        "achieved": result.zeros / result.total,
        "gradients": 12,
        "samples_per_gradient": 2,
        "recomputations": 2,
    }
    table = prune_(mlp(), None, "magnitude", {"1": 0.5}).manifest()
    assert (table["allocation"], table["sparsity"]) == ("table", {"1": 0.5})
    assert table["predicted_loss_increase"] is None and table["gradients"] == 0


def test_progress_passes_every_layer_and_batch():
    seen = {}

    def track(iterable, description, total=None):
        items = list(iterable)
        seen[description] = (len(items), total)
        return items

    prune_(convolutional(), images(), "cap", 0.5, track=track)
    assert seen == {"gradients": (3, 3), "cap scores": (3, 3), "cap weights": (3, 3), "batch norm": (3, None)}
