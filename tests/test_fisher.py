"""The Fisher that `collect` streams, against the dense one of gradients made sample by sample."""

import pytest
import torch
import torch.nn.functional as F
from cases import CASES, EVEN_KERNELS, TIMM, cut_into, example, timm_example
from reference import diagonal_blocks, fisher, grouped, lower_triangles, sample_gradients
from torch import nn
from torch.testing import assert_close

from secateur.curvature import collect
from secateur.fisher import from_blocks, to_blocks
from secateur.layers import prunable_weights, select_layers
from secateur.solvers import BlockFishers

pytestmark = EVEN_KERNELS
BLOCKS = [1, 4, 7, 15, 1000]  # 1000 is more than any layer here holds


def fisher_of(model, batches, block, **options):
    statistic = BlockFishers(block)
    return collect(model, batches, prunable_weights(model), [statistic], **options)[statistic]


def truth_of(gradients, block):
    return lower_triangles(diagonal_blocks(fisher(gradients), block))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("block", BLOCKS)
def test_the_blocks_lie_on_the_diagonal_of_the_dense_fisher(name, block):
    model, batch = example(name)
    found = fisher_of(model, cut_into(batch, 2, 3), block)
    for layer, gradients in sample_gradients(model, batch, list(prunable_weights(model))).items():
        assert_close(found[layer], truth_of(gradients, min(block, gradients[0].numel())))


@pytest.mark.parametrize("samples_per_gradient", [1, 2, 3, 4, 13])
@pytest.mark.parametrize("name", ["linear over tokens", "conv2d", "tied weights", "tokens first"])
def test_gradients_are_means_of_consecutive_samples_whatever_the_batches(name, samples_per_gradient):
    model, batch = example(name, 13)
    truth = sample_gradients(model, batch, list(prunable_weights(model)))
    for sizes in ((13,), (4, 1, 3, 5), (1,) * 13):
        found = fisher_of(model, cut_into(batch, *sizes), 6, samples_per_gradient=samples_per_gradient)
        assert found.gradients == 13 // samples_per_gradient
        for layer, gradients in truth.items():
            assert_close(found[layer], truth_of(grouped(gradients, samples_per_gradient), 6))


def test_several_block_sizes_come_out_of_one_pass():
    model, batch = example("conv2d")
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    together = collect(model, [batch], prunable_weights(model), map(BlockFishers, BLOCKS))
    once = len(calls)
    for block in BLOCKS:
        alone = fisher_of(model, [batch], block)
        for layer in prunable_weights(model):
            assert_close(together[BlockFishers(block)][layer], alone[layer])
    assert once and len(calls) == once * (1 + len(BLOCKS))


@pytest.mark.parametrize("block", BLOCKS)
def test_the_mean_diagonal_is_over_the_weights_and_not_the_padding(block):
    model, batch = example("two linear layers")
    diagonals = [fisher(g).diagonal() for g in sample_gradients(model, batch, ["0.weight", "2.weight"]).values()]
    assert fisher_of(model, [batch], block).mean_diagonal == pytest.approx(float(torch.cat(diagonals).mean()))


@pytest.mark.parametrize("name", TIMM)
def test_single_precision_stays_close_to_the_dense_fisher_of_timm_models(name):
    model, batch = timm_example(name, dtype=torch.float32)
    weights = dict(list(select_layers(model).items())[-3:])
    found = collect(model, [batch], weights, [BlockFishers(48)])[BlockFishers(48)]
    for layer, gradients in sample_gradients(model, batch, list(weights)).items():
        truth = lower_triangles(blocks_of(gradients.double(), 48))
        assert found[layer].dtype == torch.float32
        assert (found[layer] - truth).norm() < 1e-4 * truth.norm()


def blocks_of(gradients, size):
    """As `diagonal_blocks(fisher(gradients), size)`, for layers whose dense Fisher is too large."""
    flat = gradients.flatten(1)
    split = F.pad(flat, (0, -flat.shape[1] % size)).unflatten(1, (-1, size))
    return torch.einsum("nbi,nbj->bij", split, split) / len(flat)


def test_a_layer_the_loss_does_not_see_has_a_fisher_of_zeros():
    model, batch = example("a layer the loss does not see")
    found = fisher_of(model, [batch], 8)
    assert not found["dead.weight"].any() and found["alive.weight"].any()


def test_a_loss_of_ones_own_is_used():
    model, batch = example("two linear layers")

    def loss(outputs, targets):
        return outputs.square().mean()

    found = fisher_of(model, [batch], 5, loss=loss)
    truth = sample_gradients(model, batch, ["2.weight"], loss=loss)["2.weight"]
    assert_close(found["2.weight"], truth_of(truth, 5))


def test_reading_twice_gives_the_same():
    model, batch = example("linear")
    found = fisher_of(model, [batch], 4)
    assert found["weight"].clone().equal(found["weight"])
    assert found.mean_diagonal == found.mean_diagonal


@pytest.mark.parametrize("count", [1, 5, 6, 7, 12])
@pytest.mark.parametrize("block", [1, 6, 100])
def test_blocks_are_filled_up_with_zeros_and_never_regrouped(count, block):
    values = torch.arange(1.0, count + 1)
    blocks = to_blocks(values, block)
    size = min(block, count)
    assert blocks.shape == (-(-count // size), size)
    assert blocks.flatten()[:count].equal(values) and not blocks.flatten()[count:].any()
    assert from_blocks(blocks, count).equal(values)
    assert to_blocks(values.expand(2, 3, -1), block)[1, 2].equal(blocks)


def test_blocks_of_a_mask_stay_a_mask():
    keep = torch.tensor([True, False, True, True, True])
    assert to_blocks(keep, 2).dtype == torch.bool and from_blocks(to_blocks(keep, 2), 5).equal(keep)


def test_one_linear_layer_by_hand():
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[2.0, -1.0]])
    inputs, targets = torch.tensor([[1.0, 3.0], [2.0, 0.0]]), torch.tensor([[0.0], [1.0]])
    found = fisher_of(model, [(inputs, targets)], 2, loss=lambda o, t: ((o - t) ** 2 / 2).sum(1))
    g = torch.tensor([[-1.0, -3.0], [6.0, 0.0]])  # (w·x − t) x
    assert_close(found["weight"], torch.stack([g[:, 0] @ g[:, 0], g[:, 1] @ g[:, 0], g[:, 1] @ g[:, 1]])[None] / 2)
