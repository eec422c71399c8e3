"""N:M: groups and their bounds against loops, and pruning to a pattern against a dense greedy choice in float64."""

import itertools

import numpy as np
import pytest
import torch
from cases import images, mlp
from reference import as_matrix
from test_prune import dense_fisher, same_bits, state
from torch import nn

from secateur import (
    CAP,
    InputError,
    WoodFisher,
    calibration_batches,
    compare,
    contender,
    evaluate,
    evaluation_batches,
    load_model,
    prune_,
)
from secateur.patterns import NM, bounded, kept_by_group, place_of, summary, why_not, zeros_within
from secateur.solvers import METHODS

PATTERNS = [NM(2, 4), NM(1, 4), NM(4, 8), NM(1, 2), NM(5, 6)]
SHAPES = [(3, 24), (5, 24, 3), (2, 24, 2, 3), (1, 24, 1, 1)]


def groups_of(weight, pattern):
    """{where the first of a group stands: its numbers}, by loops over outputs, kernel positions and channels."""
    places = itertools.product(*(range(size) for size in weight.shape[2:]))
    return {
        (out, first, *place): [weight[(out, first + i, *place)].item() for i in range(pattern.of)]
        for place in places
        for out in range(weight.shape[0])
        for first in range(0, weight.shape[1], pattern.of)
    }


def broken(weight, pattern):
    return {place: group for place, group in groups_of(weight != 0, pattern).items() if sum(group) > pattern.keep}


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_groups_run_along_the_input_channels_of_one_place_of_the_kernel(shape, pattern):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.4
    groups, counts = groups_of(mask, pattern), kept_by_group(mask, pattern)
    assert counts.numel() == len(groups)
    for index in itertools.product(*(range(size) for size in counts.shape)):
        place = place_of(torch.tensor(index), pattern)
        assert counts[index] == eval(f"mask{place}.sum()")  # as one would look at it
        out, *kernel, number = index
        assert counts[index] == sum(groups[(out, number * pattern.of, *kernel)])
    zeros = sum(max(pattern.of - sum(group), pattern.of - pattern.keep) for group in groups.values())
    assert zeros_within(as_matrix(mask), pattern) == zeros


def test_the_place_of_a_group_is_written_as_an_index():
    assert place_of(torch.tensor([5, 2]), NM(2, 4)) == "[5, 8:12]"
    assert place_of(torch.tensor([5, 0, 1, 2]), NM(2, 4)) == "[5, 8:12, 0, 1]"


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_after_any_count_of_the_smallest_bounded_scores_the_pattern_holds(pattern, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(6, (2, 24), generator=generator).float()
    scores[torch.rand(2, 24, generator=generator) < 0.3] = -torch.inf
    before, found = scores.clone(), bounded(scores, pattern)
    assert scores.equal(before) and found.isneginf().equal(scores.isneginf())
    assert found[found < torch.inf].equal(scores[found < torch.inf])
    for (row, first), group in groups_of(scores, pattern).items():
        stay = sorted(range(pattern.of), key=lambda i: (group[i], i))[-pattern.keep :]
        stay = {i for i in stay if group[i] > -np.inf}
        assert {i for i in range(pattern.of) if found[row, first + i] == torch.inf} == stay


def test_infinite_scores_may_still_leave_and_nan_is_left_to_be_found():
    assert bounded(torch.full((1, 4), torch.inf), NM(1, 4)).isinf().tolist() == [[False, False, False, True]]
    assert bounded(torch.tensor([[torch.nan, 1.0, 2.0, 3.0]]), NM(2, 4)).isnan().tolist() == [[True] + [False] * 3]


def test_a_layer_takes_a_pattern_of_which_its_channels_are_whole_groups():
    assert [why_not(NM(2, 4), channels) == "" for channels in (1, 2, 4, 6, 8, 384)] == [0, 0, 1, 0, 1, 1]
    assert why_not(NM(2, 4), 6) == "its 6 input channels are no multiple of 4"


def test_a_summary_names_every_pattern_once_and_unstructured_only_where_it_has_zeros():
    def of(*rows):
        return summary({"pattern": pattern, "zeros": zeros} for pattern, zeros in rows)

    assert of() == of(("unstructured", 0)) == of(("unstructured", 5)) == "unstructured"
    assert of(("unstructured", 0), ("2:4", 8), ("4:8", 8), ("2:4", 2)) == "2:4, 4:8"
    assert of(("unstructured", 1), ("2:4", 8)) == "unstructured, 2:4"


# --- the bundled model --------------------------------------------------------------------------------------------


def test_two_of_four_costs_the_bundled_model_least_by_cap_and_most_by_magnitude():
    model = load_model("bundled")
    batches = list(calibration_batches("bundled", model, samples=128))
    tests = list(evaluation_batches("bundled", model, 500, batch_size=250))
    chosen = [contender(method) for method in ("cap", "woodfisher", "magnitude")]
    rows = list(compare(model, batches, chosen, ["2:4"], lambda pruned: evaluate(pruned, tests)))
    cap, woodfisher, magnitude = (row.evaluation.top1 for row in rows)
    assert cap > woodfisher + 2 > magnitude + 4, (cap, woodfisher, magnitude)
    assert all(row.result.achieved == 0.5 and not row.result.left_out for row in rows)


# --- pruning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["1:3", "2:3"])
def test_cap_to_a_pattern_is_the_greedy_choice_among_groups_with_room_and_the_joint_update(pattern):
    model, batches = mlp(torch.float64), images(torch.float64)
    weight, fisher = model[3].weight.detach().numpy().reshape(-1).copy(), dense_fisher(model, "3.weight", batches)
    system, leave = fisher + 1e-3 * np.eye(63), 3 - int(pattern[0])
    result = prune_(model, batches, CAP(block=21, damping=1e-3, relative=False), pattern, layers="3")
    for block in (slice(0, 21), slice(21, 42), slice(42, 63)):
        kept, own = np.ones(21, bool), system[block, block]
        while (room := np.repeat((~kept).reshape(-1, 3).sum(1) < leave, 3) & kept).any():
            inverse = np.zeros((21, 21))
            inverse[np.ix_(kept, kept)] = np.linalg.inv(own[np.ix_(kept, kept)])
            current = inverse @ (own @ weight[block])
            costs = np.divide(current**2, 2 * inverse.diagonal(), out=np.full(21, np.inf), where=room)
            kept[costs.argmin()] = False
        truth = np.zeros(21)
        truth[kept] = np.linalg.solve(own[np.ix_(kept, kept)], (own @ weight[block])[kept])
        assert result.masks["3.weight"].reshape(-1)[block].tolist() == kept.tolist()
        np.testing.assert_allclose(model[3].weight.detach().reshape(-1)[block], truth, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    "shape", [nn.Linear(12, 5), nn.Conv1d(12, 5, 3), nn.Conv2d(12, 5, 3), nn.Conv2d(24, 6, 2, groups=2)]
)
def test_magnitude_keeps_the_largest_of_every_group(shape):
    before = shape.weight.detach().clone()
    prune_(shape, None, "magnitude", "2:4", layers="*")
    for place, group in groups_of(before.abs(), NM(2, 4)).items():
        largest = sorted(group)[2:]
        assert sorted(v for v in groups_of(shape.weight.abs(), NM(2, 4))[place] if v) == largest


@pytest.mark.parametrize("method", METHODS)
def test_global_and_uniform_are_the_same_in_one_stage(method):
    runs = []
    for allocation in ("global", "uniform"):
        model = mlp()
        result = prune_(model, images(), method, "1:3", layers=["1", "3"], allocation=allocation)
        runs.append((state(model), result.masks))
    assert same_bits(runs[0][0], runs[1][0]) and same_bits(runs[0][1], runs[1][1])


@pytest.mark.parametrize("method", METHODS)
def test_zeros_that_are_there_stay_and_count_whatever_pattern_comes_next(method):
    model = mlp()
    first = prune_(model, images(), method, 0.7, layers=["1", "3"])
    gone = {name: (mask.unflatten(1, (-1, 3)).sum(2)) for name, mask in first.masks.items()}
    second = prune_(model, images(), method, "2:3", layers=["1", "3"])
    assert all((second.masks[name] <= mask).all() for name, mask in first.masks.items())
    assert second.zeros == sum(int((3 - kept).clamp(min=1).sum()) for kept in gone.values())
    third = prune_(model, images(), method, "1:3", layers=["1", "3"])
    assert all(not broken(model.get_parameter(name), NM(1, 3)) for name in third.masks)


def test_layers_that_cannot_take_the_pattern_stay_to_the_bit_and_are_told():
    model = mlp()
    before = state(model)
    result = prune_(model, images(), "cap", "2:4", layers=["1", "3"])  # of 12 and 9 input channels
    assert result.left_out == {"3.weight": "its 9 input channels are no multiple of 4"}
    assert result.patterns == {"1.weight": NM(2, 4)} and result.masks["3.weight"].all()
    assert [n for n, v in state(model).items() if not v.equal(before[n])] == ["1.weight"]
    assert (result.zeros, result.allocation, result.sparsity) == (54, "global", NM(2, 4))


def test_one_table_mixes_patterns_fractions_and_dense_layers():
    model = mlp()
    result = prune_(model, images(), "cap", {"1": "3:4", "3": 0.4, "*": "dense"}, layers="*")
    assert {n: int((~m).sum()) for n, m in result.masks.items()} == {"1.weight": 27, "3.weight": 25, "5.weight": 0}
    assert result.allocation == "table" and result.patterns == {"1.weight": NM(3, 4)} and not result.left_out
    assert result.manifest()["sparsity"] == {"1": "3:4", "3": 0.4, "*": 0.0}


def test_blocks_that_would_cut_a_group_are_told_with_the_nearest_that_would_not():
    model = mlp()
    before = state(model)
    for block, near in ((10, 8), (11, 12), (1, 4)):
        message = rf"cap needs blocks of whole groups: those of 1.weight have {block} .* 2:4 4; try block={near}\."
        with pytest.raises(InputError, match=message):
            prune_(model, iter([]), CAP(block=block), "2:4")
    assert same_bits(before, state(model))


def test_blocks_may_cut_groups_where_weights_are_scored_alone_or_are_longer_than_the_layer():
    for solver in (WoodFisher(block=10), CAP(block=1001)):
        model = mlp()
        prune_(model, images(), solver, "2:4", layers="1")
        assert not broken(model[1].weight, NM(2, 4)) and int((model[1].weight == 0).sum()) == 54
