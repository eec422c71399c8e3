"""Exact counts: how many weights leave which layer, and which."""

import itertools

import pytest
import torch
from torch import nn

from secateur import InputError, NumericsError
from secateur.allocate import Group, allocate, groups_for, left_out, patterns_of, smallest, staged
from secateur.layers import PrunableWeight
from secateur.patterns import NM, kept_by_group

SHAPES = {"a": (3, 7), "b": (1, 1), "c": (10, 13), "d": (5, 1)}
SIZES = {name: rows * columns for name, (rows, columns) in SHAPES.items()}
SPARSITIES = [0, 0.0, 0.001, 1 / 3, 0.5, 0.75, 0.9, 0.999, 1.0, 1]


def groups_of(shapes, wanted, allocation="global", gone=()):
    """`groups_for` of layers of these shapes, or of one row of so many weights; `gone` are entries that have left."""
    shapes = {name: (1, shape) if isinstance(shape, int) else shape for name, shape in shapes.items()}
    weights = {name: PrunableWeight(name, nn.Parameter(torch.ones(shape)), ()) for name, shape in shapes.items()}
    keep = {name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()}
    for name, entry in gone:
        keep[name].view(-1)[entry] = False
    return groups_for(weights, keep, wanted, allocation)


def scores_of(kind, seed=0):
    generator = torch.Generator().manual_seed(seed)
    make = {
        "distinct": lambda shape: torch.randn(shape, generator=generator),
        "many ties": lambda shape: torch.randint(3, shape, generator=generator).float(),
        "all equal": torch.zeros,
        "infinite": lambda shape: torch.full(shape, torch.inf),
    }[kind]
    return {name: make(shape) for name, shape in SHAPES.items()}


def zeros_in(masks):
    return {name: int((~mask).sum()) for name, mask in masks.items()}


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("kind", ["distinct", "many ties", "all equal", "infinite"])
def test_exactly_the_rounded_share_leaves(kind, sparsity):
    scores = scores_of(kind)
    everywhere = allocate(scores, groups_of(SIZES, sparsity, "global"))
    each = allocate(scores, groups_of(SIZES, sparsity, "uniform"))
    table = allocate(scores, groups_of(SIZES, {"[ac]": sparsity, "*": 0.5}))
    assert sum(zeros_in(everywhere).values()) == round(sparsity * sum(SIZES.values()))
    assert zeros_in(each) == {name: round(sparsity * size) for name, size in SIZES.items()}
    assert zeros_in(table) == {n: round((sparsity if n in "ac" else 0.5) * size) for n, size in SIZES.items()}
    for masks in (everywhere, each, table):
        assert {name: mask.shape for name, mask in masks.items()} == SHAPES and list(masks) == list(SHAPES)


@pytest.mark.parametrize("size", range(1, 40))
def test_exactly_the_rounded_share_leaves_whatever_the_size(size):
    values = torch.randint(4, (size,), generator=torch.Generator().manual_seed(size)).float()
    for step in range(41):
        (group,) = groups_of({"a": size}, step / 40)
        assert int((~allocate({"a": values}, [group])["a"]).sum()) == round(step / 40 * size)


@pytest.mark.parametrize("kind", ["distinct", "many ties"])
def test_the_smallest_scores_of_a_group_leave_and_ties_in_the_order_of_layers_and_weights(kind):
    scores = scores_of(kind)
    together = torch.cat([s.reshape(-1) for s in scores.values()])
    first = together.argsort(stable=True)[:60]
    masks = allocate(scores, groups_of(SIZES, 60 / sum(SIZES.values())))
    assert (~torch.cat([m.reshape(-1) for m in masks.values()])).nonzero()[:, 0].equal(first.sort().values)


def test_smallest_of_nothing_and_of_everything():
    values = torch.tensor([2.0, 1.0, 1.0, 1.0])
    found = [smallest(values, count).int().tolist() for count in range(5)]
    assert found == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1]]


def test_weights_that_left_before_count_and_stay_out():
    scores = {"a": torch.tensor([-torch.inf, 0.0, 1.0, -torch.inf]), "b": torch.tensor([-5.0, 2.0])}
    masks = allocate(scores, [Group(("a", "b"), 3)])
    assert masks["a"].tolist() == [False, True, True, False] and masks["b"].tolist() == [False, True]


def test_the_first_pattern_of_a_table_that_matches_counts_and_the_others_keep_all():
    groups = groups_of({"x.weight": 10, "y.weight": 10, "z.weight": 10}, {"x": 0.2, "re:^[xy]": 0.5})
    assert groups == [Group(("x.weight",), 2), Group(("y.weight",), 5), Group(("z.weight",), 0)]


# --- the way there in steps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0, 0.3, 0.5, 0.9, 1])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_stages_only_grow_and_end_at_the_goal(steps, sparsity):
    masks = {name: torch.ones(shape, dtype=torch.bool) for name, shape in SHAPES.items()}
    for allocation in ("global", "uniform"):
        groups = groups_of(SIZES, sparsity, allocation)
        stages = staged(groups, masks, steps)
        assert len(stages) == steps and stages[-1] == groups
        for before, after in itertools.pairwise(stages):
            assert all(b.zeros <= a.zeros and b.names == a.names for b, a in zip(before, after, strict=True))


def test_every_stage_takes_the_same_fraction_of_what_is_left():
    masks = {"a": torch.arange(1000) >= 200}  # 800 left on the way to 100
    zeros = [stage[0].zeros for stage in staged([Group(("a",), 900)], masks, 3)]
    assert zeros == [1000 - 400, 1000 - 200, 900]


def test_stages_from_nothing_left_and_to_nothing_left():
    full, empty = {"a": torch.ones(9, dtype=torch.bool)}, {"a": torch.zeros(9, dtype=torch.bool)}
    assert [s[0].zeros for s in staged([Group(("a",), 9)], full, 3)] == [3, 6, 9]
    assert [s[0].zeros for s in staged([Group(("a",), 9)], empty, 3)] == [9, 9, 9]


# --- N:M --------------------------------------------------------------------------------------------------------------

LAYERS = {"a": (3, 8), "odd": (2, 6), "b": (5, 4)}


@pytest.mark.parametrize(
    ("wanted", "allocation", "groups"),
    [
        (NM(2, 4), "global", [Group(("a", "b"), 12 + 10, NM(2, 4))]),
        (NM(1, 4), "uniform", [Group(("a",), 18, NM(1, 4)), Group(("b",), 15, NM(1, 4))]),
        ({"a": NM(2, 8), "b": 0.3}, "global", [Group(("a",), 18, NM(2, 8)), Group(("odd",), 0), Group(("b",), 6)]),
    ],
)
def test_a_pattern_has_as_many_zeros_as_its_groups_give(wanted, allocation, groups):
    found = groups_of(LAYERS, wanted, allocation)
    assert found[: len(groups)] == groups
    assert patterns_of(found) == {name: group.pattern for group in groups for name in group.names if group.pattern}


def test_a_layer_that_cannot_take_the_pattern_stays_with_the_zeros_it_has():
    groups = groups_of(LAYERS, NM(2, 4), gone=[("odd", 3)])
    assert groups[1:] == [Group(("odd",), 1, None, "its 6 input channels are no multiple of 4")]
    assert left_out(groups) == {"odd": "its 6 input channels are no multiple of 4"}


def test_a_group_that_has_given_more_than_it_must_counts_with_what_it_gave():
    (group,) = groups_of({"a": (1, 8)}, NM(2, 4), gone=[("a", entry) for entry in (0, 1, 2, 5)])
    assert group.zeros == 3 + 2


@pytest.mark.parametrize("kind", ["distinct", "many ties", "all equal", "infinite"])
@pytest.mark.parametrize("steps", [1, 3])
def test_every_stage_on_the_way_to_a_pattern_holds_it_and_counts_exactly(kind, steps):
    generator, pattern = torch.Generator().manual_seed(0), NM(1, 4)
    masks = {name: torch.rand(shape, generator=generator) > 0.2 for name, shape in LAYERS.items() if name != "odd"}
    weights = {name: PrunableWeight(name, nn.Parameter(mask.float()), ()) for name, mask in masks.items()}
    for stage in staged(groups_for(weights, masks, pattern), masks, steps):
        scores = {name: scores_like(kind, mask, generator) for name, mask in masks.items()}
        after = allocate(scores, stage)
        assert all((after[name] <= mask).all() for name, mask in masks.items())
        assert sum(zeros_in(after).values()) == stage[0].zeros
        masks = after
    assert all((kept_by_group(mask, pattern) <= 1).all() for mask in masks.values())


def scores_like(kind, mask, generator):
    """Scores of what `mask` keeps, of a kind of `scores_of`."""
    values = {
        "distinct": torch.rand(mask.shape, generator=generator),
        "many ties": torch.randint(3, mask.shape, generator=generator).float(),
        "all equal": torch.zeros(mask.shape),
        "infinite": torch.full(mask.shape, torch.inf),
    }[kind]
    return values.where(mask, -torch.inf)


# --- mistakes ---------------------------------------------------------------------------------------------------------

GONE = torch.tensor([-torch.inf, -torch.inf, 1.0])


def test_an_allocation_that_is_none_is_named():
    with pytest.raises(InputError, match="no allocation 'locl'; choose global or uniform, or give a table"):
        groups_of(SIZES, 0.5, "locl")


def test_a_table_that_names_no_layer_is_told():
    with pytest.raises(InputError, match=r"The pattern 'ax' matches no layer of the model. Did you mean a\?"):
        groups_of(SIZES, {"ax": 0.5})


def test_more_zeros_than_asked_for_are_named_with_a_sparsity_that_would_do():
    for groups, message in {
        (Group(("a",), 1),): r"The layer a holds 2 zeros of 3 already, more than the 1 asked for; .* least 0.6667\.",
        (Group(("a", "b"), 3),): r"The 2 layers hold 4 zeros of 6 already, .* at least 0.6667\.",
        (Group(("a",), 1), Group(("b",), 1)): "at least 0.6667, or use global allocation",
    }.items():
        with pytest.raises(InputError, match=message):
            allocate({"a": GONE, "b": GONE}, groups)
    assert groups_of({"a": 3}, 0.6667) == [Group(("a",), 2)]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (NM(3, 7), r"No layer can take the pattern 3:7\. a cannot because its 8 input channels are no multiple of 7,"
                   " and so with 2 more; choose other layers or another pattern"),
        ({"odd": NM(2, 4), "*": 0.5}, r"the pattern 2:4\. odd cannot because its 6 .* multiple of 4; choose"),
    ],
)  # fmt: skip
def test_a_pattern_that_no_layer_can_take_is_told(wanted, message):
    with pytest.raises(InputError, match=message):
        groups_of(LAYERS, wanted)


def test_a_score_that_is_nan_is_named_with_its_layer():
    scores = {"a": GONE[None], "b": torch.tensor([[1.0, torch.nan]])}
    for pattern in (None, NM(1, 2)):
        with pytest.raises(NumericsError, match="A score of b is NaN"):
            allocate(scores, [Group(("a", "b"), 3, pattern)])
