"""Fast CAP against dense float64: the mean of a layer's blocks, explicit inverses, and the column-by-column update."""

import numpy as np
import pytest
import torch
from cases import cut_into, example
from reference import diagonal_blocks, fisher, lower_triangles, sample_gradients
from torch.testing import assert_close

from secateur import FastCAP, prune_
from secateur.curvature import collect
from secateur.layers import prunable_weights
from secateur.solvers import BlockFishers, SharedFisher, compensate, fast_cap
from secateur.triangles import pack, unpack

SIZES = [1, 2, 5, 12]
DAMPING = 0.05


def problem(size, blocks=6, seed=0):
    """weight, keep and a square Fisher; the first block is whole, the last is empty."""
    rng = np.random.default_rng([seed, size])
    gradients = rng.normal(size=(3 * size, size)) @ rng.normal(size=(size, size))
    keep = rng.random((blocks, size)) < np.linspace(1, 0, blocks)[:, None]
    square = torch.tensor(gradients.T @ gradients / len(gradients))
    return torch.tensor(rng.normal(size=(blocks, size))), torch.tensor(keep), square


# --- what is gathered -------------------------------------------------------------------------------------------------


def shared(model, batches, block):
    statistic = SharedFisher(block)
    return collect(model, batches, prunable_weights(model), [statistic])[statistic]


@pytest.mark.parametrize("name", ["two linear layers", "conv2d", "conv2d, groups", "tied weights"])
@pytest.mark.parametrize("block", [1, 3, 8, 1000])
def test_it_is_the_mean_of_the_dense_fishers_diagonal_blocks(name, block):
    model, batch = example(name)
    found = shared(model, cut_into(batch, 2, 3), block)
    for layer, gradients in sample_gradients(model, batch, list(prunable_weights(model))).items():
        size = found.sizes[layer]
        blocks = diagonal_blocks(fisher(gradients), size)
        whole = gradients[0].numel() / size  # the last block may be a part
        assert_close(found[layer], lower_triangles(blocks.sum(0, keepdim=True) / whole))


def test_the_mean_diagonal_is_that_of_the_whole_fisher():
    model, batch = example("conv2d")
    theirs = collect(model, [batch], prunable_weights(model), [BlockFishers(5)])[BlockFishers(5)]
    assert shared(model, [batch], 5).mean_diagonal == pytest.approx(theirs.mean_diagonal)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((8, 192), 192),  # a row is a block
        ((8, 768), 192),  # several blocks a row
        ((8, 128), 128),  # rows are shorter
        ((8, 512), 128),  # 192 does not divide them, 128 does
        ((8, 769), 192),  # a prime: blocks run over the ends of rows
        ((2, 11), 11),
        ((1, 1), 1),
    ],
)
def test_blocks_are_equal_parts_of_rows_where_that_can_be(shape, size):
    assert SharedFisher(192).size(shape) == size
    assert SharedFisher(192).bytes_needed(shape, torch.float32, None) == 4 * size**2


# --- the method -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_scores_are_of_weights_that_leave_alone_from_the_rows_and_columns_still_there(size):
    weight, keep, square = problem(size)
    scores = fast_cap.scores(weight, pack(square[None]), keep, DAMPING)
    for row, w, kept in zip(scores.numpy(), weight.numpy(), keep.numpy(), strict=True):
        inverse = np.linalg.inv(square.numpy()[np.ix_(kept, kept)] + DAMPING * np.eye(kept.sum()))
        np.testing.assert_allclose(row[kept], w[kept] ** 2 / (2 * inverse.diagonal()), rtol=1e-8)
        assert np.isneginf(row[~kept]).all()


@pytest.mark.parametrize("size", SIZES)
def test_the_update_is_the_joint_one_with_the_same_fisher_for_every_block(size, monkeypatch):
    weight, keep, square = problem(size)
    monkeypatch.setattr(fast_cap, "CHUNK", 100)  # a few blocks at a time
    moved = FastCAP().compensate(weight, keep | True, keep, pack(square[None]), DAMPING)
    assert_close(moved, compensate(weight, keep, square.expand(len(weight), -1, -1), DAMPING))


@pytest.mark.parametrize("size", SIZES)
def test_fed_forward_the_error_of_each_column_is_made_up_for_by_those_after_it(size):
    weight, keep, square = problem(size)
    moved = FastCAP(forward=True).compensate(weight, keep | True, keep, pack(square[None]), DAMPING)
    system = square.numpy() + DAMPING * np.eye(size)
    for row, w, kept in zip(moved.numpy(), weight.numpy().copy(), keep.numpy(), strict=True):
        for j in np.flatnonzero(~kept):
            w[j + 1 :] += np.linalg.solve(system[j + 1 :, j + 1 :], system[j + 1 :, j]) * w[j]
            w[j] = 0
        np.testing.assert_allclose(row, w, rtol=1e-8, atol=1e-12)


def test_the_joint_update_costs_no_more_than_the_one_fed_forward():
    weight, keep, square = problem(12, blocks=50)
    packed, statistic = pack(square[None]), SharedFisher(12)
    losses = [
        statistic.loss_increase(FastCAP(forward=forward).compensate(weight, keep, keep, packed, 0.0) - weight, packed)
        for forward in (False, True)
    ]
    assert (losses[0] <= losses[1] * (1 + 1e-9)).all() and losses[0].sum() < 0.9 * losses[1].sum()


@pytest.mark.parametrize("forward", [False, True])
def test_the_predicted_increase_is_half_delta_fisher_delta_of_the_shared_fisher(forward):
    model, batch = example("two linear layers")
    before = {name: weight.matrix().clone() for name, weight in prunable_weights(model).items()}
    gathered = shared(model, [batch], 7)
    result = prune_(model, [batch], FastCAP(block=7, forward=forward), 0.5, layers="*")
    total = 0.0
    for name, weight in prunable_weights(model).items():
        size = gathered.sizes[name]
        square = unpack(gathered[name])[0]
        for change in (weight.matrix() - before[name]).reshape(-1, size):
            total += 0.5 * float(change @ square @ change)
    assert result.predicted_loss_increase == pytest.approx(total)
