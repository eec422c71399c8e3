"""M-FAC against explicit inverses in float64, and against WoodFisher on the Fisher that its gradients stand for."""

import numpy as np
import pytest
import torch
from cases import cut_into, example
from reference import diagonal_blocks, fisher, sample_gradients
from torch.testing import assert_close

from secateur import MFAC, InputError, NumericsError, Resources, WoodFisher, curvature, prune_
from secateur.curvature import collect
from secateur.layers import prunable_weights
from secateur.solvers import BlockFishers, StoredGradients, mfac

KEPT = (1.0, 0.6, 0.3, 0.0)  # of the weights of each block
GRADIENTS = {  # what makes them difficult, and λ
    "random": (lambda g: g, 0.1),
    "little damping": (lambda g: g, 1e-6),
    "of very different size": (lambda g: g * np.geomspace(1, 1e-6, g.shape[1]), 1e-9),
    "nearly the same": (lambda g: g[:1] + 1e-4 * g, 1e-6),
    "all the same": (lambda g: g * 0 + g[:1], 1e-3),
    "zero": (lambda g: 0 * g, 1e-3),
    "dead inputs": (lambda g: g * (np.arange(g.shape[1]) % 3 > 0), 1e-3),
}
SHAPES = [(1, 1), (1, 7), (3, 12), (11, 12), (12, 12), (40, 12), (5, 1)]  # (N, B)
everywhere = pytest.mark.parametrize(("kind", "shape"), [(kind, shape) for kind in GRADIENTS for shape in SHAPES])


def problem(kind, shape, dtype=torch.float64):
    """weight, keep, gradients, damping: four blocks, partly pruned, every second one to zeros."""
    change, damping = GRADIENTS[kind]
    rng = np.random.default_rng(shape)
    weight, keep = rng.normal(size=(4, shape[1])), rng.random((4, shape[1])) < np.array(KEPT)[:, None]
    weight[1::2] *= keep[1::2]
    gradients = np.stack([change(rng.normal(size=shape)) for _ in range(4)]) / np.sqrt(shape[0])
    return torch.tensor(weight, dtype=dtype), torch.tensor(keep), torch.tensor(gradients, dtype=dtype), damping


def inverses(keep, gradients, damping):
    """(4, B, B): of λI + GᵀG over the kept rows and columns, zeros elsewhere."""
    made = np.zeros((*keep.shape, keep.shape[1]))
    for out, kept, g in zip(made, keep.numpy(), gradients.double().numpy(), strict=True):
        out[np.ix_(kept, kept)] = np.linalg.inv(g[:, kept].T @ g[:, kept] + damping * np.eye(kept.sum()))
    return torch.tensor(made)


def near(found, truth, rtol=1e-6):
    assert_close(found, truth, rtol=rtol, atol=rtol * float(truth[truth.isfinite()].abs().max()) if len(truth) else 0.0)


@everywhere
def test_products_and_diagonals_are_those_of_the_explicit_inverse(kind, shape):
    weight, keep, gradients, damping = problem(kind, shape)
    diagonal, times = mfac.inverse(gradients, keep, damping)
    truth = inverses(keep, gradients, damping)
    assert_close(diagonal, truth.diagonal(dim1=1, dim2=2), rtol=1e-6, atol=0)
    near(times(weight), (truth @ weight[..., None])[..., 0])


@everywhere
def test_scores_and_updates_are_woodfishers_on_the_explicit_inverse(kind, shape):
    weight, keep, gradients, damping = problem(kind, shape)
    after = keep & (torch.arange(shape[1]) % 2 == 1)
    truth = inverses(keep, gradients, damping)
    diagonal = torch.where(keep, truth.diagonal(dim1=1, dim2=2), 1.0)
    scores = mfac.scores(weight, gradients, keep, damping)
    assert_close(scores, torch.where(keep, weight**2 / (2 * diagonal), -torch.inf), rtol=1e-6, atol=0)
    alone = torch.where(keep & ~after, weight / diagonal, 0.0)
    moved = torch.where(after, weight - (truth @ alone[..., None])[..., 0], 0.0)
    near(mfac.compensate(weight, keep, after, gradients, damping), moved)


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_agrees_with_float64(shape):
    weight, keep, gradients, damping = problem("random", shape, torch.float32)
    found = mfac.scores(weight, gradients, keep, damping)
    assert found.dtype == torch.float32
    assert_close(found, mfac.scores(weight.double(), gradients.double(), keep, damping).float())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_few_blocks_at_a_time_give_the_same(shape, monkeypatch):
    weight, keep, gradients, damping = problem("random", shape)
    whole = mfac.scores(weight, gradients, keep, damping)
    monkeypatch.setitem(mfac.CHUNK, "cpu", 1)
    assert_close(mfac.scores(weight, gradients, keep, damping), whole)


@pytest.mark.parametrize("shape", [(3, 12), (40, 12)])
def test_fewer_gradients_than_weights_and_no_damping_take_a_part_of_the_mean_diagonal(shape, caplog):
    weight, keep, gradients, _ = problem("random", shape)
    found = mfac.scores(weight[:1], gradients[:1], keep[:1], 0.0)
    used = 1e-8 * float(gradients[0].square().sum() / shape[1]) if shape[0] < shape[1] else 0.0
    near(found, mfac.scores(weight[:1], gradients[:1], keep[:1], used), rtol=1e-5)
    assert found.isfinite().all() and ("took up to" in caplog.text) == (shape[0] < shape[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("shape", [(3, 12), (40, 12)])
def test_gradients_that_are_not_finite_are_an_error(shape, bad):
    weight, keep, gradients, _ = problem("random", shape)
    gradients[0, 1, 2] = bad
    with pytest.raises(NumericsError, match="The Fisher holds NaN or infinity"):
        mfac.scores(weight, gradients, keep, 0.1)


# --- what is stored ---------------------------------------------------------------------------------------------------


def stored(model, batches, block=7, most=1024, **options):
    statistic = StoredGradients(block, most)
    return collect(model, batches, prunable_weights(model), [statistic], **options)[statistic]


@pytest.mark.parametrize("block", [1, 4, 7, 1000, None])
@pytest.mark.parametrize("most", [1, 3, 5, 9])
def test_the_first_gradients_are_kept_in_blocks_and_their_squares_are_the_fisher(block, most):
    model, batch = example("conv2d")
    found = stored(model, cut_into(batch, 2, 3), block, most)
    assert found.gradients == min(most, 5)
    for layer, gradients in sample_gradients(model, batch, list(prunable_weights(model))).items():
        size = min(block or gradients[0].numel(), gradients[0].numel())
        assert found.sizes[layer] == size and found[layer].shape[1:] == (found.gradients, size)
        assert_close(found[layer].mT @ found[layer], diagonal_blocks(fisher(gradients[:most]), size))


def test_the_mean_diagonal_is_that_of_the_stored_gradients():
    model, batch = example("two linear layers")
    diagonals = [fisher(g[:3]).diagonal() for g in sample_gradients(model, batch, ["0.weight", "2.weight"]).values()]
    assert stored(model, [batch], 4, 3).mean_diagonal == pytest.approx(float(torch.cat(diagonals).mean()))


def test_a_layer_the_loss_does_not_see_has_gradients_of_zero():
    model, batch = example("a layer the loss does not see")
    assert not stored(model, [batch])["dead.weight"].any()


def test_the_room_follows_the_gradients_that_can_come():
    statistic = StoredGradients(8, 100)
    needs = [statistic.bytes_needed((3, 5), torch.float32, gradients) for gradients in (None, 1000, 30)]
    assert needs == [100 * 16 * 4, 100 * 16 * 4, 30 * 16 * 4]
    assert statistic.start((3, 5), torch.float32, 30).values.shape == (2, 30, 8)


@pytest.mark.parametrize("once", [False, True])
def test_with_little_memory_layers_take_turns_and_wait_on_the_disk(once, tmp_path, monkeypatch):
    model, batch = example("two linear layers", 6, torch.float32)
    truth = stored(model, [batch])
    for name in ("held_bytes", "most_held_bytes"):
        monkeypatch.setattr(curvature, name, lambda device: 0)
    batches = cut_into(batch, 2, 4)
    tight = Resources(memory=7 * 42 * 4, spill=tmp_path)  # the larger layer's seven, and nothing else
    found = stored(model, iter(batches) if once else batches, most=7, resources=tight)
    assert len(list(tmp_path.rglob("*.bin"))) == 2
    assert all(found[name].equal(truth[name]) for name in prunable_weights(model))


def test_a_layer_without_room_says_that_fewer_gradients_would_do(tmp_path, monkeypatch):
    model, batch = example("two linear layers", 6, torch.float32)
    for name in ("held_bytes", "most_held_bytes"):
        monkeypatch.setattr(curvature, name, lambda device: 0)
    with pytest.raises(InputError, match=r"try smaller batches or fewer stored gradients\."):
        stored(model, [batch], resources=Resources(memory=100, spill=tmp_path))


# --- the method -------------------------------------------------------------------------------------------------------


def test_the_predicted_increase_is_half_delta_fisher_delta():
    model, batch = example("two linear layers")
    mine, theirs = StoredGradients(7, 100), BlockFishers(7)
    found = collect(model, [batch], prunable_weights(model), [mine, theirs])
    for name in prunable_weights(model):
        change = torch.randn(len(found[mine][name]), 7, dtype=torch.float64)
        truth = theirs.loss_increase(change, found[theirs][name])
        assert_close(mine.loss_increase(change, found[mine][name]), truth)


@pytest.mark.parametrize("samples", [5, 40])
@pytest.mark.parametrize("recomputations", [1, 2])
def test_with_all_gradients_it_prunes_as_woodfisher_does(samples, recomputations):
    results, states = [], []
    for method in (MFAC(block=12, damping=0.1), WoodFisher(block=12, damping=0.1)):
        model, batch = example("two linear layers", samples)
        results.append(prune_(model, [batch], method, 0.6, layers="*", recomputations=recomputations))
        states.append(model.state_dict())
    ours, theirs = results
    assert all(mask.equal(theirs.masks[name]) for name, mask in ours.masks.items())
    assert_close(*states)
    assert ours.predicted_loss_increase == pytest.approx(theirs.predicted_loss_increase)


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "many"])
def test_a_count_of_gradients_that_is_none_is_named(count):
    with pytest.raises(InputError, match=r"The gradients of mfac are .*; give a whole number from 1, such as 512"):
        MFAC(gradients=count)
