"""Small models that tests share, one row for every kind of layer: how to make it, and the shape of one sample."""

from dataclasses import dataclass

import pytest
import timm
import torch
from timm.layers import Conv2dSame, ScaledStdConv2d
from torch import nn

EVEN_KERNELS = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's, of its speed


class Twice(nn.Module):
    """One module, called twice."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Tied(nn.Module):
    """Two modules, one weight; `lost` uses it a third time, for nothing."""

    def __init__(self, lost=False, width=4):
        super().__init__()
        self.first, self.second, self.lost = nn.Linear(width, width), nn.Linear(width, width), lost
        self.second.weight = self.first.weight

    def forward(self, x):
        if self.lost:
            self.second(x)
        return self.second(torch.tanh(self.first(x)))


class Unreached(nn.Module):
    """The loss does not see `dead`."""

    def __init__(self):
        super().__init__()
        self.alive, self.dead, self.head = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.alive(x))
        self.dead(x)
        return self.head(x)


class Views(nn.Module):
    """Several images a sample, side by side on the first axis while inside."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3, groups=2), nn.Linear(4, 3)

    def forward(self, x):
        inside = self.conv(x.flatten(0, 1)).tanh().mean((2, 3))
        return self.head(inside.unflatten(0, x.shape[:2])).mean(1)


class TokensFirst(nn.Module):
    """The first axis inside is the tokens'."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1).tanh().flatten(1)


class NotCalled(nn.Module):
    """A weight is used, its module is not."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(nn.functional.linear(x, self.layer.weight)))


class ByKeyword(nn.Module):
    """A layer that is given its input by name."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(input=x)


class Scaled(nn.Linear):
    """A linear layer that does something else with its weight."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight / self.weight.norm(), self.bias)


def after(*layers):
    """`layers`, then an activation that writes over its input, and a linear layer over the channels."""
    return nn.Sequential(*layers, nn.ReLU(inplace=True), Pool(), nn.LazyLinear(3))


class Pool(nn.Module):
    def forward(self, x):
        return x.flatten(2).mean(2)


@dataclass(frozen=True)
class Case:
    make: object
    shape: tuple  # of one sample


HOOKED = {
    "linear": Case(lambda: nn.Linear(5, 3), (5,)),
    "linear without bias": Case(lambda: nn.Linear(7, 3, bias=False), (7,)),
    "linear over tokens": Case(lambda: nn.Sequential(nn.Linear(5, 3), nn.Flatten()), (4, 5)),
    "linear over a grid": Case(lambda: nn.Sequential(nn.Linear(5, 3), nn.Flatten()), (2, 3, 5)),
    "two linear layers": Case(lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (5,)),
    "conv1d": Case(lambda: after(nn.Conv1d(3, 4, 3)), (3, 9)),
    "conv1d, stride and dilation": Case(lambda: after(nn.Conv1d(4, 6, 3, 2, 2, 2, groups=2)), (4, 11)),
    "conv1d, even kernel, same": Case(lambda: after(nn.Conv1d(2, 3, 4, padding="same")), (2, 7)),
    "conv1d, circular": Case(lambda: after(nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular")), (2, 7)),
    "conv2d": Case(lambda: after(nn.Conv2d(3, 4, 3)), (3, 6, 5)),
    "conv2d 1×1": Case(lambda: after(nn.Conv2d(5, 4, 1)), (5, 3, 3)),
    "conv2d 1×1, stride": Case(lambda: after(nn.Conv2d(5, 4, 1, stride=(2, 3))), (5, 4, 7)),
    "conv2d 1×1, groups": Case(lambda: after(nn.Conv2d(6, 4, 1, groups=2)), (6, 3, 2)),
    "conv2d, groups": Case(lambda: after(nn.Conv2d(6, 4, 3, padding=1, groups=2)), (6, 4, 5)),
    "conv2d, depthwise": Case(lambda: after(nn.Conv2d(4, 4, 3, padding=1, groups=4)), (4, 5, 4)),
    "conv2d, depthwise twice as wide": Case(lambda: after(nn.Conv2d(3, 6, 3, groups=3)), (3, 5, 4)),
    "conv2d, stride leaves pixels": Case(lambda: after(nn.Conv2d(3, 4, 3, stride=(2, 3))), (3, 8, 7)),
    "conv2d, dilation": Case(lambda: after(nn.Conv2d(2, 4, 3, padding=2, dilation=(2, 1))), (2, 7, 6)),
    "conv2d, rectangle": Case(lambda: after(nn.Conv2d(2, 4, (1, 5), padding=(0, 2))), (2, 4, 6)),
    "conv2d, even kernel": Case(lambda: after(nn.Conv2d(2, 4, (2, 4), padding=1)), (2, 5, 6)),
    "conv2d, even kernel, same": Case(lambda: after(nn.Conv2d(2, 4, (2, 4), padding="same")), (2, 5, 6)),
    "conv2d, valid": Case(lambda: after(nn.Conv2d(2, 4, 3, padding="valid")), (2, 5, 6)),
    "conv2d, reflect": Case(lambda: after(nn.Conv2d(2, 4, 3, padding=(1, 2), padding_mode="reflect")), (2, 5, 6)),
    "conv2d, replicate": Case(lambda: after(nn.Conv2d(2, 4, 3, padding=1, padding_mode="replicate")), (2, 5, 6)),
    "conv2d, circular": Case(lambda: after(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")), (2, 5, 6)),
    "Conv2dSame": Case(lambda: after(Conv2dSame(3, 4, 3, stride=2, groups=1)), (3, 7, 6)),
    "standardised conv2d": Case(lambda: after(ScaledStdConv2d(3, 4, 3, padding=1)), (3, 5, 5)),
    "a linear layer of its own": Case(lambda: nn.Sequential(nn.Linear(5, 6), Scaled(6, 3), nn.Flatten()), (4, 5)),
    "a module used twice": Case(lambda: Twice(nn.Linear(4, 4)), (4,)),
    "a convolution used twice": Case(lambda: nn.Sequential(Twice(nn.Conv2d(3, 3, 3, padding=1)), Pool()), (3, 4, 4)),
    "tied weights": Case(Tied, (4,)),
    "tied weights, one use lost": Case(lambda: Tied(lost=True), (4,)),
    "a layer the loss does not see": Case(Unreached, (4,)),
    "several views a sample": Case(Views, (3, 2, 5, 4)),
}
ALONE = {  # what hooks cannot take apart
    "tokens first": Case(TokensFirst, (2, 5)),
    "a weight whose module is not called": Case(NotCalled, (5,)),
    "an input by keyword": Case(ByKeyword, (5,)),
    "a transformer's own attention": Case(
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten()), (3, 4)
    ),
}
CASES = HOOKED | ALONE

KINDS = {  # what can be pruned to a pattern: the first weight of each has groups of 4 and of 8
    "linear": Case(lambda: nn.Linear(24, 3), (24,)),
    "odd sizes": Case(lambda: nn.Sequential(nn.Linear(8, 13), nn.Tanh(), nn.Linear(13, 7), nn.Linear(7, 3)), (8,)),
    "layers that cannot take it": Case(
        lambda: nn.Sequential(nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 4), nn.Linear(4, 3)), (16,)
    ),
    "conv1d": Case(lambda: after(nn.Conv1d(8, 5, 3)), (8, 7)),
    "conv2d 3×3": Case(lambda: after(nn.Conv2d(8, 4, 3), nn.Conv2d(4, 5, 2)), (8, 5, 4)),
    "conv2d 1×1": Case(lambda: after(nn.Conv2d(16, 5, 1)), (16, 2, 3)),
    "conv2d, groups": Case(lambda: after(nn.Conv2d(16, 6, (1, 3), groups=2)), (16, 2, 4)),
    "with batch normalisation": Case(lambda: after(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)), (8, 3, 3)),
    "tied weights": Case(lambda: Tied(width=8), (8,)),
}

TIMM = {  # name: arguments, image size
    "vit_tiny_patch16_224": ({"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}, 16),
    "convnext_atto": ({"depths": [1, 1, 1, 1], "dims": [4, 8, 12, 16]}, 32),
    "mobilenetv3_small_050": ({}, 32),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": (2, 1), "num_heads": (2, 2)},
        32,
    ),
}


def example(name, samples=5, dtype=torch.float64, seed=0):
    """(model, (inputs, labels)) of a row of `CASES`."""
    case = CASES[name]
    torch.manual_seed(seed)
    inputs = torch.randn(samples, *case.shape)
    model = case.make()
    with torch.no_grad():
        model(inputs)  # lazy layers take their size
    return model.to(dtype), (inputs.to(dtype), labels(samples))


def kind_example(name, samples=6):
    """(model, (inputs, labels)) of a row of `KINDS`, in float32."""
    case = KINDS[name]
    torch.manual_seed(0)
    inputs, model = torch.randn(samples, *case.shape), case.make()
    with torch.no_grad():
        model.train()(inputs)  # lazy layers take their size, batch normalisation its statistics
    return model.eval(), (inputs, labels(samples))


def timm_example(name, samples=3, dtype=torch.float64):
    """(model, (images, labels)) of a row of `TIMM`, with statistics of batch normalisation that are not 0 and 1."""
    arguments, size = TIMM[name]
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=3, **arguments).to(dtype)
    images = torch.randn(samples, 3, size, size, dtype=dtype)
    with torch.no_grad():
        model.train()(images)
    return model, (images, labels(samples))


def mlp(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 7), nn.GELU(), nn.Linear(7, 3)).to(
        dtype
    )


def convolutional(dtype=torch.float32):
    torch.manual_seed(0)
    stages = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 2, groups=2), nn.BatchNorm2d(6)
    return nn.Sequential(*stages, nn.ReLU(), nn.Conv2d(6, 5, 1), nn.Flatten(), nn.Linear(5, 3)).to(dtype)


def images(dtype=torch.float32, batches=3, samples=8):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(samples, 3, 2, 2, generator=generator).to(dtype), torch.arange(samples) % 3)
        for _ in range(batches)
    ]


def labels(samples):
    return torch.arange(samples) % 3


def cut_into(batch, *sizes):
    """The samples of a batch, in batches of these sizes."""
    return list(zip(*(part.split(list(sizes)) for part in batch), strict=True))
