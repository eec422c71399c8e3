"""Streamed gradients against every sample alone through the model."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from cases import ALONE, CASES, EVEN_KERNELS, HOOKED, TIMM, cut_into, example, labels, timm_example
from reference import as_matrix, grouped, sample_gradients
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.testing import assert_close

from secateur.errors import InputError, NumericsError
from secateur.gradients import gradients_by_hooks, gradients_one_by_one, stream_gradients
from secateur.gradients.groups import Groups
from secateur.gradients.rules import unfolded
from secateur.gradients.stream import choose_rule
from secateur.layers import prunable_weights, select_layers

pytestmark = EVEN_KERNELS


def streamed(model, batches, weights=None, **options):
    """({layer: gradients of all batches}, how many there are)."""
    weights = weights or prunable_weights(model)
    found = {name: [] for name in weights}
    count = stream_gradients(model, batches, weights, lambda name, g: found[name].append(g.clone()), **options)
    return {name: torch.cat(parts) for name, parts in found.items() if parts}, count


def by_rule(rule, model, batch):
    weights, seen = prunable_weights(model), {}
    rule(model.eval().requires_grad_(False), batch, weights, None, Groups(seen.__setitem__, 1), 0)
    return seen


def assert_gradients(found, truth, **tolerance):
    for name, gradients in truth.items():
        assert_close(found.get(name, torch.zeros_like(gradients)), gradients, **tolerance)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("samples", [1, 2, 5])
def test_every_kind_of_layer_gives_the_gradients_each_sample_has_alone(name, samples):
    model, batch = example(name, samples)
    found, count = streamed(model, [batch])
    assert count == samples
    assert_gradients(found, sample_gradients(model, batch, list(prunable_weights(model))))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [2, 3, 13])
def test_groups_of_samples_run_on_across_the_borders_of_batches(name, size):
    model, batch = example(name, 13)
    found, count = streamed(model, cut_into(batch, 4, 1, 3, 5), samples_per_gradient=size)
    truth = sample_gradients(model, batch, list(prunable_weights(model)))
    assert count == 13 // size
    assert_gradients(found, {n: grouped(g, size) for n, g in truth.items()})


@pytest.mark.parametrize("name", HOOKED)
def test_hooks_one_by_one_and_torch_func_agree(name):
    model, batch = example(name)
    truth = by_rule(gradients_one_by_one, model, batch)
    assert_gradients(by_rule(gradients_by_hooks, model, batch), truth)
    if name != "several views a sample":  # its shapes keep vmap out
        assert_gradients(by_torch_func(model, batch, truth), truth)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_1x1_convolution_copies_nothing(groups):
    inputs, gradient = torch.randn(3, 4, 5, 6), torch.randn(3, 8, 5, 6)
    x, y = unfolded(nn.Conv2d(4, 8, 1, groups=groups), inputs, gradient)
    assert (x.shape, y.shape) == ((3, groups, 30, 4 // groups), (3, groups, 30, 8 // groups))
    assert (x.data_ptr(), y.data_ptr()) == (inputs.data_ptr(), gradient.data_ptr())


def by_torch_func(model, batch, names):
    def loss(parameters, inputs, target):
        return F.cross_entropy(functional_call(model, parameters, (inputs[None],)), target[None])

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradients = vmap(grad(loss), (None, 0, 0))(parameters, *batch)
    return {name: torch.stack([as_matrix(g) for g in gradients[name]]) for name in names}


@pytest.mark.parametrize("name", CASES)
def test_hooks_are_chosen_where_they_can_tell_the_samples_apart(name):
    model, batch = example(name)
    rule = choose_rule(model.eval().requires_grad_(False), batch, prunable_weights(model), None)
    assert rule is (gradients_one_by_one if name in ALONE else gradients_by_hooks)


class Tokens(nn.Module):
    """A convolution and its batch normalisation, then tokens, as in EfficientFormer."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.last = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.LayerNorm(4)

    def forward(self, x):
        return self.last(self.norm(self.stem(x)).flatten(2).transpose(1, 2)).square().mean(1)


@pytest.mark.parametrize("sizes", [(3,), (1, 1, 1), (2, 1)])
def test_one_sample_alone_has_its_gradient_where_batch_normalisation_is_followed_by_tokens(sizes):
    torch.manual_seed(0)
    model, batch = Tokens().double().eval(), (torch.randn(3, 3, 5, 5).double(), labels(3))
    found, _ = streamed(model, cut_into(batch, *sizes))
    for sample, gradient in enumerate(found["stem.weight"]):
        inputs, targets = (part[[sample, sample]] for part in batch)  # a pair has none of torch's trouble with one
        truth = torch.autograd.grad(F.cross_entropy(model(inputs), targets), model.stem.weight)[0]
        assert_close(gradient, as_matrix(truth))


def test_a_first_batch_of_one_sample_decides_nothing():
    model, batch = example("tokens first", 6)
    found, _ = streamed(model, cut_into(batch, 1, 3, 2))
    assert_gradients(found, sample_gradients(model, batch, ["layer.weight"]))


def test_a_first_pair_without_a_gradient_decides_nothing():
    model, (inputs, targets) = example("tokens first", 6)
    inputs[:2] = 0  # the weight's gradient is exactly zero

    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none") * (outputs - outputs[:, :1]).abs().sum(1)

    model.layer.bias.data.zero_()
    found, _ = streamed(model, [(inputs, targets)], loss=loss)
    assert_gradients(found, sample_gradients(model, (inputs, targets), ["layer.weight"], loss=loss))


@pytest.mark.parametrize("name", TIMM)
def test_timm_models_give_the_gradients_each_sample_has_alone(name):
    model, batch = timm_example(name)
    weights = prunable_weights(model)
    assert choose_rule(model.eval(), batch, weights, None) is gradients_by_hooks
    model.requires_grad_(True)
    assert_gradients(streamed(model, [batch])[0], sample_gradients(model, batch, list(weights)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precisions_keep_the_hooks_and_their_own_type(dtype):
    model, (images, targets) = timm_example("vit_tiny_patch16_224", dtype=torch.float32)
    truth = sample_gradients(model, (images, targets), list(select_layers(model)))
    model, batch = model.to(dtype), (images.to(dtype), targets)
    assert choose_rule(model, batch, select_layers(model), None) is gradients_by_hooks
    model.requires_grad_(True)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    for name, gradients in streamed(model, [batch], select_layers(model))[0].items():
        assert gradients.dtype == dtype
        assert (gradients - truth[name]).norm() < tolerance * truth[name].norm()


def test_only_a_few_samples_are_held_when_they_run_alone(monkeypatch):
    monkeypatch.setattr("secateur.gradients.alone.AT_ONCE", 30)  # two of 15 weights
    model, batch = example("tokens first", 5)
    sizes = []
    stream_gradients(model, [batch], prunable_weights(model), lambda name, g: sizes.append(len(g)))
    assert sizes == [2, 2, 1]


class Sometimes(nn.Module):
    """The second layer is used when the first feature of the batch says so."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x):
        inside = self.first(x)
        return self.second(inside.tanh()) if x[0, 0] > 0 else inside


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_layer_that_some_batches_do_not_reach_stays_in_step(size):
    torch.manual_seed(0)
    model, inputs = Sometimes().double(), torch.randn(10, 4).double()
    inputs[:, 0] = torch.tensor([1.0, 1, 1, -1, -1, 1, 1, 1, -1, -1])
    truth = sample_gradients(model, (inputs, labels(10)), ["second.weight"])["second.weight"]
    found, count = streamed(model, cut_into((inputs, labels(10)), 3, 2, 3, 2), samples_per_gradient=size)
    found, wanted = found["second.weight"], grouped(truth, size)
    assert count == len(wanted)
    assert_close(found[found.flatten(1).any(1)], wanted[wanted.flatten(1).any(1)])


# --- losses and batches of any form ----------------------------------------------------------------------------------

LOSSES = {
    "mean": F.cross_entropy,
    "one a sample": lambda o, t: F.cross_entropy(o, t, reduction="none"),
    "one a sample and class": lambda o, t: (o - F.one_hot(t, 3)) ** 2,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_mean_or_one_value_a_sample(name):
    model, batch = example("two linear layers")

    def alone(outputs, targets):
        return LOSSES[name](outputs, targets).sum()

    found, _ = streamed(model, [batch], loss=LOSSES[name])
    assert_gradients(found, sample_gradients(model, batch, list(prunable_weights(model)), loss=alone))


def test_a_loss_that_is_no_mean_over_samples_is_taken_sample_by_sample():
    model, batch = example("two linear layers")
    found, _ = streamed(model, [batch], loss=lambda o, t: F.cross_entropy(o, t, reduction="sum"))
    assert_gradients(found, sample_gradients(model, batch, list(prunable_weights(model))))


class Documented(nn.Module):
    """Keyword arguments in, an object with `.loss` or `.logits` out."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, pixels, labels=None, scale=1.0):
        logits = self.layer(pixels) * scale
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


Pair = namedtuple("Pair", "inputs targets")
FORMS = {
    "mapping with its own loss": (lambda x, y: {"pixels": x, "labels": y, "scale": 1.0}, None),
    "mapping and a loss": (lambda x, y: {"pixels": x, "labels": y}, lambda o, t: F.cross_entropy(o.logits, t)),
    "pair, logits in an object": (lambda x, y: (x, y), None),
    "named tuple": (Pair, None),
    "list with file names": (lambda x, y: [x, y, [f"{i}.png" for i in range(len(y))], {"shared": None}], None),
}


@pytest.mark.parametrize("form", FORMS)
def test_batches_come_in_many_forms(form):
    torch.manual_seed(0)
    model, inputs = Documented().double(), torch.randn(4, 5).double()
    make, loss = FORMS[form]
    found, count = streamed(model, [make(inputs, labels(4))], loss=loss)
    truth = sample_gradients(model, (inputs, labels(4)), ["layer.weight"], lambda o, t: F.cross_entropy(o.logits, t))
    assert count == 4
    assert_gradients(found, truth)


def test_the_form_of_a_batch_is_kept_when_one_sample_is_taken():
    class Recorder(Documented):
        def forward(self, pixels, extra=None, **others):
            seen.append((len(pixels), extra))
            return super().forward(pixels.flatten(0, 1) if pixels.dim() > 2 else pixels, **others)

    seen, mask = [], torch.ones(7, 7)
    batch = {"pixels": torch.randn(3, 5), "labels": labels(3), "extra": {"mask": mask, "ids": ["a", "b", "c"]}}
    streamed(Recorder(), [batch])
    singles = [extra["ids"] for count, extra in seen if count == 1]
    assert singles and all(len(ids) == 1 for ids in singles)
    assert all(extra["mask"] is mask or extra["mask"].shape == (7, 7) for _, extra in seen)


# --- nothing stays behind --------------------------------------------------------------------------------------------


def state(model):
    return (
        [m.training for m in model.modules()],
        [p.requires_grad for p in model.parameters()],
        [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()],
        [p.grad for p in model.parameters()],
    )


def failing_sink(name, gradients):
    raise OSError("disk full")


@pytest.mark.parametrize("name", ["two linear layers", "tokens first", "standardised conv2d"])
@pytest.mark.parametrize("failure", ["none", "sink", "loss", "batches"])
def test_the_model_is_left_as_it_was_even_after_a_failure(name, failure):
    model, batch = example(name)
    model.train()
    next(model.modules()).eval()
    next(model.parameters()).requires_grad_(False)
    before, values = state(model), [p.clone() for p in model.parameters()]
    nan = (batch[0] * torch.nan, batch[1])
    batches = {"loss": [batch, nan], "batches": failing_batches(batch)}.get(failure, [batch])
    sink = failing_sink if failure == "sink" else lambda *_: None
    if failure == "none":
        stream_gradients(model, batches, prunable_weights(model), sink)
    else:
        with pytest.raises((OSError, NumericsError)):
            stream_gradients(model, batches, prunable_weights(model), sink)
    assert state(model) == before
    assert all(p.equal(v) for p, v in zip(model.parameters(), values, strict=True))


def failing_batches(batch):
    yield batch
    raise OSError("no such image")


def test_the_callers_no_grad_and_the_models_own_hooks_do_not_matter():
    model, batch = example("two linear layers")
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        found, _ = streamed(model, [batch])
    assert calls and len(model._forward_hooks) == 1
    assert_gradients(found, sample_gradients(model, batch, list(found)))


# --- what goes wrong, named ------------------------------------------------------------------------------------------


class Overflow(torch.autograd.Function):
    """Finite forwards, NaN backwards where an input is large."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(context, gradient):
        return gradient + torch.where(context.saved_tensors[0].abs() > 100, torch.nan, 0.0)


class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.second(Overflow.apply(self.first(x)))


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("rule", ["hooks", "alone"])
def test_a_gradient_that_is_not_finite_names_layer_and_batch(bad, rule):
    torch.manual_seed(0)
    model = Fragile()
    sizes = [1, 1, 1] if rule == "alone" else [2, 2, 2]
    batches = [(torch.randn(n, 5), labels(n)) for n in sizes]
    batches[bad][0].mul_(1e4)
    with pytest.raises(NumericsError, match=rf"gradient of first\.weight is not finite in batch {bad}"):
        streamed(model, batches)


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("samples", [1, 3])
def test_a_loss_that_is_not_finite_names_the_batch(bad, samples):
    model, batch = example("two linear layers", samples)
    batches = [batch, batch]
    batches[bad] = (batch[0] * torch.inf, batch[1])
    with pytest.raises(NumericsError, match=rf"loss of batch {bad} is nan"):
        streamed(model, batches)


X, Y = torch.ones(2, 5), torch.tensor([0, 1])
MISTAKES = {
    "Labels of batch 0 run from 0 to 3, but the model has 3 classes": ([(X, torch.tensor([0, 3]))], {}),
    "Labels of batch 0 run from -1 to 0": ([(X, torch.tensor([-1, 0]))], {}),
    "batch of type Tensor holds no targets": ([X], {}),
    "batch of type tuple holds no targets": ([(X,)], {}),
    "batch of type dict holds no targets": ([{"input": X}], {"loss": F.cross_entropy}),
    "gives a Tensor without a loss for a batch of input": ([{"input": X}], {}),
    "type int holds no tensor": ([3], {}),
    "type list holds no tensor": ([["a", "b"]], {}),
    "loss of batch 0 is a float; it must be a tensor": ([(X, Y)], {"loss": lambda o, t: 1.0}),
    "samples_per_gradient is 0": ([(X, Y)], {"samples_per_gradient": 0}),
    "takes 3 samples but the batches hold 2": ([(X, Y)], {"samples_per_gradient": 3}),
    "the batches hold 0": ([], {}),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_named(message):
    batches, options = MISTAKES[message]
    with pytest.raises(InputError, match=message):
        streamed(nn.Linear(5, 3), batches, **options)


def test_a_model_with_two_outputs_asks_for_a_loss():
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(InputError, match="gives a tuple, not logits; give a loss function"):
        streamed(Two(5, 3), [(X, Y)])


# --- progress --------------------------------------------------------------------------------------------------------


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(X[0], Y[0]), (X[1], Y[1])])


@pytest.mark.parametrize(
    ("batches", "total"),
    [([(X, Y)] * 3, 3), (iter([(X, Y)]), None), (torch.utils.data.DataLoader(Endless(), 2), None)],
)
def test_progress_wraps_the_batches_and_knows_their_number_where_there_is_one(batches, total):
    shown = []

    def track(iterable, description, total=None):
        shown.append((description, total))
        return iterable

    streamed(nn.Linear(5, 3), batches, track=track)
    assert shown == [("gradients", total)]
