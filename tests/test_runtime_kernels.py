"""The sparse kernels against plain torch, on every instruction set, and packed matrices that are not what they say."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from secateur import native
from secateur.runtime.modules import NativeMaxPool2d, SparseConv2d, SparseLinear
from secateur.runtime.packing import PANEL, pack, unpack

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.describe()['reason']}")

SHAPES = [
    (1, 1),
    (2, 1),
    (1, 130),
    (3, 5),
    (7, 128),
    (8, 129),
    (33, 300),
    (64, 384),
]  # rows, columns; blocks are of 128
DENSITIES = [0.0, 0.02, 0.1, 0.5, 1.0]
ACTIVATIONS = {"none": lambda x: x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def sparse_weight(rows, columns, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    return weight * (torch.rand(rows, columns, generator=generator) < density)


def multiply(packed, x, groups=4, start=None, activation="none"):
    """f(Wx + b), or f(Wx + b + start), through panels (panels, features, tokens)."""
    y = torch.full((len(x), len(packed.bias), PANEL), 7.0)
    if start is not None:
        y[:, : packed.rows] = start
    packed.multiply_panels(x.numpy(), y.numpy(), groups, start is not None, activation)
    return y[:, : packed.rows]


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_unpacking_gives_the_weight_back(rows, columns, density):
    weight, bias = sparse_weight(rows, columns, density), torch.randn(rows)
    packed = pack(weight, bias)
    assert torch.equal(unpack(packed), weight)
    assert packed.bias[:rows].tolist() == bias.tolist()


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_a_product_is_that_of_the_weight(rows, columns, density):
    weight, bias, x = sparse_weight(rows, columns, density), torch.randn(rows), torch.randn(2, columns, PANEL)
    wanted = (weight.double() @ x.double() + bias.double()[:, None]).float()
    torch.testing.assert_close(multiply(pack(weight, bias), x), wanted, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_added_and_the_activation_are_part_of_the_product(activation, groups):
    weight, bias, x = sparse_weight(31, 200, 0.2), torch.randn(31), torch.randn(1, 200, PANEL)
    start, tokens = torch.randn(1, 31, PANEL), groups * 16
    found = multiply(pack(weight, bias), x, groups, start, activation)
    wanted = ACTIVATIONS[activation](weight @ x + bias[:, None] + start)
    torch.testing.assert_close(found[..., :tokens], wanted[..., :tokens], rtol=1e-5, atol=2e-5)
    assert torch.equal(found[..., tokens:], start[..., tokens:])  # the other tokens stay untouched


def test_activations_are_exact_enough_everywhere():
    x = torch.linspace(-40, 40, 16 * PANEL).view(16, 1, PANEL)
    packed = pack(torch.ones(1, 1), None)
    for name, function in ACTIVATIONS.items():
        torch.testing.assert_close(multiply(packed, x, activation=name), function(x), rtol=2e-6, atol=5e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan(activation):
    x = torch.zeros(1, 1, PANEL)
    x[0, 0, 5] = torch.nan
    found = multiply(pack(torch.ones(3, 1), None), x, activation=activation)
    assert found.isnan().nonzero()[:, 2].tolist() == [5, 5, 5]


@pytest.mark.parametrize("tokens", [0, 1, 2, 15, 64, 65, 200])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_a_sparse_linear_layer_is_the_layer(rows, columns, tokens):
    layer, x = nn.Linear(columns, rows), torch.randn(2, tokens, columns)
    with torch.no_grad():
        layer.weight.mul_(sparse_weight(rows, columns, 0.2) != 0)
        torch.testing.assert_close(SparseLinear(layer)(x), layer(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(SparseLinear(layer, "gelu")(x), F.gelu(layer(x)), rtol=1e-5, atol=1e-5)


CONVOLUTIONS = {  # arguments of Conv2d, height and width
    "1×1": ((8, 6, 1), (7, 7)),
    "1×1, wide": ((8, 6, 1), (16, 24)),
    "1×1, stride": ((8, 6, 1, 2), (9, 8)),
    "3×3": ((5, 7, 3, 1, 1), (14, 14)),
    "3×3, one pixel": ((5, 7, 3, 1, 1), (1, 1)),
    "3×3, stride": ((5, 7, 3, 2, 1), (14, 13)),
    "3×3, stride 3 and 2": ((5, 7, 3, (3, 2), (0, 2)), (14, 13)),
    "dilation": ((3, 4, 3, 1, (2, 4), (2, 4)), (9, 10)),
    "dilation and stride": ((3, 4, 3, 2, 2, 2), (9, 10)),
    "7×7, stride": ((3, 4, 7, 2, 3), (20, 20)),
    "rectangle": ((3, 4, (1, 5), 1, (0, 2)), (5, 30)),
    "even kernel": ((3, 4, (2, 4), 1, 0), (5, 12)),
    "one output": ((30, 1, 3), (3, 3)),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_sparse_convolution_is_the_layer(case, batch):
    arguments, size = CONVOLUTIONS[case]
    torch.manual_seed(0)
    layer, x = nn.Conv2d(*arguments), torch.randn(batch, arguments[0], *size)
    with torch.no_grad():
        layer.weight.mul_(torch.rand_like(layer.weight) < 0.4)
        wanted = layer(x)
        added = torch.randn_like(wanted)
        torch.testing.assert_close(SparseConv2d(layer)(x), wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(SparseConv2d(layer, "relu")(x, added), F.relu(wanted + added), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arguments", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (1, 3, 0), (5, 3, 2)])
def test_native_pooling_is_the_layer(arguments):
    layer = nn.MaxPool2d(*arguments)
    x = torch.randn(2, 3, 11, 14)
    x[0, 0, 3, 3] = torch.nan
    assert torch.equal(NativeMaxPool2d(*arguments)(x).nan_to_num(9.0), layer(x).nan_to_num(9.0))


def test_channels_last_and_strided_inputs_are_taken():
    layer, x = nn.Conv2d(4, 4, 3, padding=1), torch.randn(2, 4, 12, 12).to(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(SparseConv2d(layer)(x), layer(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(SparseConv2d(layer)(x[..., ::2]), layer(x[..., ::2]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", [isa for isa in native.describe()["isas"] if not isa.startswith("avx512")])
def test_every_instruction_set_gives_the_same(isa):
    tests = [__file__, __file__.replace("kernels", "compile")]
    run = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    run += ["-k", "product or linear_layer or convolution_is or exact or nan or one_encoder"]
    done = subprocess.run(run, env=os.environ | {"SECATEUR_ISA": isa}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# --- arrays from outside ----------------------------------------------------------------------------------------------


def arrays(rows=5, columns=150, density=0.3):
    packed = pack(sparse_weight(rows, columns, density), torch.randn(rows))
    numbers = {name: np.array(getattr(packed, name)) for name in ("tiles", "values", "offsets", "bias")}
    return {"rows": rows, "columns": columns, "width": packed.width} | numbers


def changed(numbers, at, value):
    numbers = numbers.copy()
    numbers[at] = value
    return numbers


UNSOUND = {
    "no rows": (lambda a: a | {"rows": 0}, "empty or too large"),
    "huge": (lambda a: a | {"columns": 1 << 40}, "empty or too large"),
    "wide blocks": (lambda a: a | {"width": 1025}, "wider than an offset reaches"),
    "no width": (lambda a: a | {"width": 0}, "wider than an offset reaches"),
    "short bias": (lambda a: a | {"bias": a["bias"][:-1]}, "bias does not fit"),
    "other rows": (lambda a: a | {"rows": 7, "bias": np.zeros(8, np.float32)}, "tiles do not fit"),
    "a tile cut off": (lambda a: a | {"tiles": a["tiles"][:-1]}, "tiles do not fit"),
    "a row outside": (lambda a: a | {"tiles": changed(a["tiles"], 0, 6)}, "missing or named twice"),
    "a negative row": (lambda a: a | {"tiles": changed(a["tiles"], 1, -1)}, "missing or named twice"),
    "a row twice": (lambda a: a | {"tiles": changed(a["tiles"], 0, a["tiles"][1])}, "missing or named twice"),
    "too many entries": (lambda a: a | {"tiles": changed(a["tiles"], 3, 129)}, "more entries than columns"),
    "a negative number": (lambda a: a | {"tiles": changed(a["tiles"], 2, -1)}, "more entries than columns"),
    "values cut off": (lambda a: a | {"values": a["values"][:-4]}, "entries are missing"),
    "offsets cut off": (lambda a: a | {"offsets": a["offsets"][:-4]}, "entries are missing"),
    "an offset between columns": (lambda a: a | {"offsets": changed(a["offsets"], 0, 3)}, "outside its block"),
    "an offset in the last block": (lambda a: a | {"offsets": changed(a["offsets"], -1, 64 * 22)}, "outside its block"),
    "values left over": (lambda a: a | {"values": np.append(a["values"], a["values"][:4])}, "too many"),
}


def test_sound_arrays_make_the_same_matrix():
    given = arrays()
    packed = native.core().PackedMatrix.from_arrays(**given)
    assert all(np.array_equal(getattr(packed, name), value) for name, value in given.items())


@pytest.mark.parametrize("case", UNSOUND)
def test_unsound_arrays_are_refused(case):
    change, message = UNSOUND[case]
    with pytest.raises(ValueError, match=message):
        native.core().PackedMatrix.from_arrays(**change(arrays()))


def test_shapes_that_do_not_agree_are_refused():
    packed = pack(torch.eye(4), None)
    calls = {
        "linear": (np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32), "none", 1),
        "multiply_panels": (np.zeros((1, 4, 64), np.float32), np.zeros((1, 4, 64), np.float32), 5, False, "none"),
    }
    for name, arguments in calls.items():
        with pytest.raises(ValueError, match="shapes of the arrays do not agree"):
            getattr(packed, name)(*arguments)
    with pytest.raises(ValueError, match="none, relu, gelu or silu"):
        packed.linear(np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32), "tanh", 1)


def test_the_kernels_are_asked_for_where_they_are_missing(monkeypatch):
    monkeypatch.setattr(native, "_load", lambda: (None, "not built"))
    with pytest.raises(RuntimeError, match="not available: not built"):
        native.core()
