"""`compare`: the same weights as `prune_`, from gradients collected once, and a model that ends as it was."""

import contextlib

import pytest
import torch
from torch import nn

from secateur import CAP, MFAC, OBD, GrW, InputError, NumericsError, WoodFisher, compare, contender, prune_
from secateur.comparison import Contender
from secateur.patterns import NM

CONTENDERS = ["magnitude", "magnitude:uniform", "woodfisher:block=1", "cap:block=6", "cap:uniform:block=6", "cap"]
CONTENDERS += ["grw", "obd", "mfac:gradients=7", "fast_cap"]
SPARSITIES = [0.9, 0.0, 0.5, 1.0, {"re:^[36]": 0.7}, NM(1, 3), {"3": 0.3, "6": NM(1, 2)}]


class Model(nn.Sequential):
    """A stem, batch normalisation, a head, and a count of its passes."""

    def __init__(self, dtype=torch.float32):
        torch.manual_seed(0)
        first, second = (nn.Conv2d(2, 5, 1), nn.BatchNorm2d(5), nn.ReLU()), (nn.Conv2d(5, 6, 2), nn.BatchNorm2d(6))
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(6, 7), nn.Linear(7, 3))
        self.passes = 0
        self.to(dtype)

    def forward(self, inputs):
        self.passes += 1
        return super().forward(inputs)

    def get_extra_state(self):
        return {"note": "no tensor"}

    def set_extra_state(self, extra):
        assert extra == {"note": "no tensor"}


def images(dtype=torch.float32, batches=4):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 2, 2, 2, generator=generator).to(dtype), torch.arange(6) % 3) for _ in range(batches)]


def state(model):
    return {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(
        a.equal(other[n]) if isinstance(a, torch.Tensor) else a == other[n] for n, a in one.items()
    )


def rows_of(model, contenders=CONTENDERS, sparsities=SPARSITIES, batches=None, **options):
    chosen = [contender(c) if isinstance(c, str) else c for c in contenders]
    return compare(model, images() if batches is None else batches, chosen, sparsities, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_comes_with_the_model_that_prune_would_give(dtype):
    model, seen = Model(dtype), []
    for row in rows_of(model, batches=images(dtype)):
        alone = Model(dtype)
        solver, result = row.contender.solver, row.result
        truth = prune_(alone, images(dtype), solver, result.sparsity, allocation=row.contender.allocation)
        assert same(state(model), state(alone)) and same(result.masks, truth.masks)
        ours, theirs = result.manifest(), truth.manifest()
        for made in (ours, theirs):
            made.pop("seconds"), made.pop("predicted_loss_increase")
        if solver.statistic is None:  # here it is compared with those that have gradients
            assert (ours.pop("gradients"), theirs.pop("gradients")) == (24, 0)
        assert ours == theirs
        seen.append((row.contender.label, result.sparsity))
    assert seen == [(label, sparsity) for label in CONTENDERS for sparsity in SPARSITIES]


def test_a_comparison_of_one_method_predicts_what_pruning_does():
    (row,) = rows_of(Model(), ["cap:block=6"], [0.6])
    truth = prune_(Model(), images(), CAP(block=6), 0.6)
    assert row.result.predicted_loss_increase == truth.predicted_loss_increase > 0
    assert row.result.gradients == truth.gradients == 24


def test_every_prediction_is_made_with_the_largest_blocks_and_rises_with_sparsity():
    found = {}
    for row in rows_of(Model(), ["magnitude", "woodfisher:block=1", "cap"], [0.3, 0.6, 0.9]):
        found.setdefault(row.contender.label, []).append(row.result.predicted_loss_increase)
    assert all(0 < a < b < c for a, b, c in found.values())
    assert all(c < m and c < w for c, m, w in zip(found["cap"], *list(found.values())[:2], strict=True))


def test_a_whole_fisher_predicts_before_stored_gradients_and_those_before_a_shared_one():
    labels = ["magnitude", "grw", "fast_cap", "mfac", "cap:block=6"]
    for count, block in ((5, "cap:block=6"), (4, "mfac"), (3, "fast_cap")):
        rows = {row.contender.label: row.result for row in rows_of(Model(), labels[:count], [0.5])}
        (alone,) = rows_of(Model(), [block], [0.5])
        assert rows[block].predicted_loss_increase == alone.result.predicted_loss_increase > 0
        assert all(result.predicted_loss_increase > 0 for result in rows.values())
    assert all(row.result.predicted_loss_increase is None for row in rows_of(Model(), labels[:2], [0.5]))


def test_methods_that_ask_for_the_same_share_it():
    asked = [contender(text).solver.statistic for text in ("obd", "woodfisher:block=1", "obd:damping=3", "mfac", "grw")]
    assert len(set(asked)) == 3


def test_without_a_fisher_nothing_is_predicted_and_no_data_needed():
    model = Model()
    chosen = [contender("magnitude")]
    (row,) = compare(model, None, chosen, [0.5])
    assert row.result.predicted_loss_increase is None and row.result.gradients == 0 and model.passes == 0


def test_rows_carry_what_evaluate_said_of_the_pruned_model():
    model = Model()
    rows = rows_of(model, ["cap"], [0.5, 0.9], evaluate=lambda pruned: int((pruned[6].weight == 0).sum()))
    for row in rows:
        assert row.evaluation == int((~row.result.masks["6.weight"]).sum())
        assert row.evaluation == int((model[6].weight == 0).sum())


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_the_gradients_are_collected_once_however_many_methods_and_sparsities_there_are():
    one, many = Model(), Model()
    list(rows_of(one, ["cap"], [0.5], recalibrate=False))
    list(rows_of(many, recalibrate=False))
    assert 0 < one.passes == many.passes


def test_what_batch_normalisation_is_measured_on_is_read_once_for_all_rows():
    class Counted(list):
        reads = 0

        def __iter__(self):
            self.reads += 1
            return super().__iter__()

    one, many = Counted(images()), Counted(images())
    list(rows_of(Model(), ["magnitude"], [0.3], one))
    list(rows_of(Model(), ["magnitude", "magnitude:uniform"], [0.3, 0.5], many))
    assert one.reads == many.reads


def test_each_method_scores_once_for_its_allocations_and_sparsities():
    steps = []

    def track(iterable, description, total=None):
        steps.append(description)
        return iterable

    list(rows_of(Model(), ["cap", "cap:uniform", "magnitude"], [0.3, 0.6], track=track))
    assert [s for s in steps if "scores" in s] == ["cap scores", "magnitude scores"]
    assert steps.count("cap weights") == 4 and steps.count("gradients") == 1


def test_only_a_greedy_method_scores_again_for_a_pattern():
    steps = []

    def track(iterable, description, total=None):
        steps.append(description)
        return iterable

    contenders = ["cap:block=6", "cap:uniform:block=6", "woodfisher", "woodfisher:uniform"]
    list(rows_of(Model(), contenders, [0.3, "1:3", 0.6, "1:2", "1:3"], track=track))
    assert [s for s in steps if "scores" in s] == ["cap scores"] * 3 + ["woodfisher scores"]


def test_a_generator_of_batches_is_gone_through_once():
    from_list, from_generator = Model(), Model()
    for a, b in zip(rows_of(from_list), rows_of(from_generator, batches=(b for b in images())), strict=True):
        assert same(state(from_list), state(from_generator)) and same(a.result.masks, b.result.masks)


# --- the model afterwards ---------------------------------------------------------------------------------------------


def interrupt(model):
    raise KeyboardInterrupt


def close_after_two(rows):
    next(rows), next(rows)
    rows.close()


def fail_after_two(rows):
    next(rows), next(rows)
    rows.throw(KeyError("of whoever asked"))


ENDINGS = {"all rows": list, "closed early": close_after_two, "an exception outside": fail_after_two}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("evaluate", [lambda model: None, interrupt])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_model_ends_as_it_was(ending, evaluate, training):
    model = Model().train(training)
    before = state(model)
    rows = rows_of(model, evaluate=evaluate)
    with contextlib.suppress(KeyError, KeyboardInterrupt):
        ENDINGS[ending](rows)
    assert same(before, state(model))
    assert all(module.training == training for module in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_the_model_is_the_pruned_one_while_its_row_is_looked_at():
    model = Model()
    before = state(model)
    for row in rows_of(model, ["cap"], [0.5, 0.8]):
        assert all(mask.equal(model.get_parameter(name) != 0) for name, mask in row.result.masks.items())
        assert not same(before, state(model))


def test_what_is_done_to_the_model_between_rows_does_not_reach_the_next():
    model, clean = Model(), Model()
    for row, truth in zip(rows_of(model), rows_of(clean), strict=True):
        assert same(state(model), state(clean)) and same(row.result.masks, truth.result.masks)
        nn.init.constant_(model[6].weight, 3.0)
        model.train()


# --- naming contenders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "solver", "allocation"),
    [
        ("cap", CAP(block=7), "global"),
        ("cap:uniform:block=96", CAP(block=96), "uniform"),
        ("woodfisher:damping=1e-3:relative=false", WoodFisher(block=7, damping=1e-3, relative=False), "global"),
        ("mfac:block=none:gradients=9", MFAC(block=None, gradients=9), "global"),
        ("grw:product=true", GrW(product=True), "global"),
        ("obd", OBD(), "global"),
        ("cap:global:damping=2", CAP(block=7, damping=2), "global"),
    ],
)
def test_a_contender_is_a_method_then_its_allocation_and_options(text, solver, allocation):
    assert contender(text, block=7) == Contender(solver, allocation, text)


def test_options_of_the_fisher_pass_by_a_method_without():
    assert contender("magnitude", "uniform", block=7).solver.block is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wodfisher", r"no method 'wodfisher'. Did you mean woodfisher\?"),
        (
            "cap:unifrm",
            r"'unifrm' in the method 'cap:unifrm' is neither .*\(global, uniform\) nor an option such as block=96. "
            r"Did you mean uniform\?",
        ),
        ("cap:block=many", "block=many in the method 'cap:block=many' is no number"),
        ("cap:blok=3", "cap has no option 'blok'"),
        ("cap:block=0", "The block of cap is 0"),
        ("magnitude:block=3", "magnitude has no option 'block'. It has none"),
    ],
)
def test_a_contender_that_is_none_is_named(text, message):
    with pytest.raises(InputError, match=message):
        contender(text)


# --- mistakes before the first gradient -------------------------------------------------------------------------------


def explode():
    raise AssertionError("a batch was asked for")
    yield


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (InputError, "The sparsity 75 is no fraction", {"sparsities": [0.5, 75]}),
        (InputError, "matches no layer", {"layers": "nowhere"}),
        (InputError, "No layer can take the pattern 2:8", {"sparsities": [0.5, "2:8"]}),
        (InputError, "cap needs blocks of whole groups", {"contenders": ["cap:block=8"], "sparsities": ["1:3"]}),
        (InputError, "samples_per_gradient is 0; give a whole number", {"samples_per_gradient": 0}),
        (InputError, "no allocation 'here'", {"contenders": [Contender(CAP(), "here", "cap:here")]}),
        (
            InputError,
            "6.weight holds 2 zeros of 42 already, more than the 1 asked for",
            {"contenders": ["cap:uniform"], "sparsities": [0.5, 0.02]},
        ),
    ],
)
def test_a_mistake_is_named_before_the_first_gradient(error, message, arguments):
    model = Model()
    model[6].weight.data[0, :2] = 0
    with pytest.raises(error, match=message):
        list(rows_of(model, **({"sparsities": [0.5], "batches": explode(), "recalibrate": False} | arguments)))


def test_a_weight_that_is_not_finite_is_named_before_the_first_gradient():
    model = Model()
    model[6].weight.data[0, 0] = float("nan")
    with pytest.raises(NumericsError, match=r"6\.weight holds 1 weights of 42 that are NaN"):
        list(rows_of(model, batches=explode()))


def test_a_method_with_a_fisher_asks_for_batches():
    with pytest.raises(InputError, match="woodfisher works from batches of images and labels"):
        list(compare(Model(), None, [contender("magnitude"), contender("woodfisher")], [0.5]))
