import pytest
import torch
from cases import cut_into, labels, timm_example
from timm.layers import BatchNormAct2d
from torch import nn
from torch.testing import assert_close

from secateur.batchnorm import batch_norms, enough, recalibrate_


def network():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.BatchNorm2d(3, momentum=0.3), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.9), nn.Flatten()
    )
    with torch.no_grad():
        model.train()(5 + torch.randn(4, 3, 5, 5))  # statistics of something else
    return model


def images(samples=9):
    return 2 * torch.randn(samples, 3, 5, 5, generator=torch.Generator().manual_seed(1)) + 1


def statistics(model):
    return [buffer.clone() for buffer in model.buffers()]


@pytest.mark.parametrize("sizes", [(9,), (3, 3, 3), (4, 2, 3), (5, 4)])
def test_the_statistics_are_the_average_over_samples(sizes):
    model, parts = network(), images().split(list(sizes))
    recalibrate_(model, [(part, labels(len(part))) for part in parts])
    mean = sum(part.mean((0, 2, 3)) * len(part) for part in parts) / 9
    variance = sum(part.var((0, 2, 3)) * len(part) for part in parts) / 9
    assert_close(model[0].running_mean, mean)
    assert_close(model[0].running_var, variance)


def test_deeper_statistics_are_those_of_normalised_inputs():
    model, x = network(), images()
    recalibrate_(model, [(x, labels(9))])
    normalised = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    inside = model[1](normalised)
    assert_close(model[2].running_mean, inside.mean((0, 2, 3)))
    assert_close(model[2].running_var, inside.var((0, 2, 3)))


def test_the_result_does_not_depend_on_what_was_there_before():
    one, other = network(), network()
    other[0].running_mean.fill_(1e6)
    other[0].num_batches_tracked.fill_(99)
    for model in (one, other):
        recalibrate_(model, cut_into((images(), labels(9)), 4, 5))
    assert one[0].running_mean.equal(other[0].running_mean)


@pytest.mark.parametrize("failure", [False, True])
def test_modes_momenta_and_weights_stay(failure):
    model = network()
    model[2].eval()
    modes, weights = [m.training for m in model.modules()], [p.clone() for p in model.parameters()]
    before = statistics(model)
    bad = (torch.zeros(2, 7, 5, 5), labels(2))
    if failure:
        with pytest.raises(RuntimeError, match="running_mean"):
            recalibrate_(model, [(images(), labels(9)), bad])
        assert all(a.equal(b) for a, b in zip(statistics(model), before, strict=True))
    else:
        recalibrate_(model, [(images(), labels(9))])
    assert [m.training for m in model.modules()] == modes
    assert [n.momentum for n in batch_norms(model)] == [0.3, 0.1]
    assert all(p.equal(w) and p.grad is None for p, w in zip(model.parameters(), weights, strict=True))


def test_no_batches_change_nothing():
    model = network()
    before = statistics(model)
    recalibrate_(model, [])
    assert all(a.equal(b) for a, b in zip(statistics(model), before, strict=True))


def test_a_last_batch_of_one_sample_is_left_out():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.BatchNorm1d(3)), torch.randn(5, 3)
    model.append(nn.Linear(3, 2))
    recalibrate_(model, cut_into((x, labels(5)), 4, 1))
    assert_close(model[0].running_mean, x[:4].mean(0))


def test_everything_but_the_batch_norms_is_in_evaluation_mode():
    seen = {}
    model = nn.Sequential(nn.Conv2d(3, 3, 1), BatchNormAct2d(3, drop_layer=nn.Dropout), nn.Dropout())
    for name, module in model.named_modules():
        module.register_forward_hook(lambda m, *_, n=name: seen.__setitem__(n, m.training))
    recalibrate_(model.train(), [images()])
    assert seen.pop("1") is True
    assert "1.drop" in seen and not any(seen.values())


def test_a_layer_without_running_statistics_is_no_concern():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False), nn.LayerNorm(5))
    assert batch_norms(model) == []
    recalibrate_(model, iter(lambda: pytest.fail("no batch is read"), None))


def test_a_mapping_of_keyword_arguments_is_a_batch_too():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)
            self.layer = nn.Conv2d(3, 3, 1)

        def forward(self, pixels):
            return self.layer(self.norm(pixels))

    model = Named()
    recalibrate_(model, [{"pixels": images(), "labels": labels(9)}])
    assert_close(model.norm.running_mean, images().mean((0, 2, 3)))


def test_a_timm_model_gets_its_statistics_back():
    model, (x, y) = timm_example("mobilenetv3_small_050", samples=4, dtype=torch.float32)
    recalibrate_(model, [(x, y)])
    wanted = [norm.running_mean.clone() for norm in batch_norms(model)]
    for norm in batch_norms(model):
        norm.running_mean.add_(3)
    recalibrate_(model, [(x, y)])
    for norm, mean in zip(batch_norms(model), wanted, strict=True):
        assert_close(norm.running_mean, mean)


@pytest.mark.parametrize(("sizes", "read"), [([4, 4, 4], 2), ([8, 4], 1), ([4, 3], 2), ([9, 1], 1), ([], 0)])
def test_so_many_samples_are_enough(sizes, read, monkeypatch):
    monkeypatch.setattr("secateur.batchnorm.SAMPLES", 8)
    batches = iter([(images(size), labels(size)) for size in sizes])
    assert [len(x) for x, _ in enough(batches)] == sizes[:read]
    assert len(list(batches)) == len(sizes) - read


def test_progress_is_shown():
    shown = []

    def track(iterable, description, total=None):
        shown.append((description, total))
        return iterable

    recalibrate_(network(), [(images(), labels(9))], track)
    assert shown == [("batch norm", 1)]
