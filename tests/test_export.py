import re
from types import SimpleNamespace

import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file, save_file
from torch import nn

import secateur
from secateur import export_dense, export_onnx, export_sparse, load_sparse
from secateur.errors import InputError, NumericsError
from secateur.export import onnx as onnx_module
from secateur.export.sparse_onnx import arrays_of


class Images(nn.Sequential):
    """A small convolutional model of 8×8 images that says so."""

    pretrained_cfg = {"input_size": (3, 8, 8)}  # noqa: RUF012 (as timm has it)


def small(sparsity=0.0):
    torch.manual_seed(0)
    model = Images(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 1), nn.GELU(), nn.Flatten(),
        nn.Linear(384, 5),
    )  # fmt: skip
    model[1].running_mean.uniform_(-1, 1)
    if sparsity:
        secateur.prune_(model, None, "magnitude", sparsity, layers="*")
    return model.eval()


# --- safetensors ------------------------------------------------------------------------------------------------------


def test_dense_and_sparse_files_hold_the_same_bits_and_the_sparse_one_is_smaller(tmp_path):
    model = small(0.9)
    dense, sparse = tmp_path / "dense.safetensors", tmp_path / "sparse.safetensors"
    assert export_dense(model, dense) == dense.stat().st_size
    assert export_sparse(model, sparse) == sparse.stat().st_size < 0.6 * dense.stat().st_size
    wanted, found = load_file(dense), load_sparse(sparse)
    assert set(wanted) == set(found) == set(model.state_dict())
    for name, tensor in wanted.items():
        assert torch.equal(tensor, found[name]) and tensor.dtype == found[name].dtype, name
    assert set(load_sparse(dense)) == set(wanted)


def test_the_sparse_file_has_the_names_of_the_bitmask_layout_and_is_no_larger_where_nothing_is_zero(tmp_path):
    export_sparse(small(0.9), tmp_path / "sparse.safetensors")
    names = {name for name in load_file(tmp_path / "sparse.safetensors") if name.startswith("6.weight")}
    assert names == {f"6.weight.{part}" for part in ("shape", "compressed", "bitmask", "row_offsets")}
    export_sparse(small(), tmp_path / "full.safetensors")
    assert not [name for name in load_file(tmp_path / "full.safetensors") if name.endswith("bitmask")]


def test_what_a_model_computes_is_the_same_after_the_sparse_file(tmp_path):
    model, other = small(0.75), small()
    export_sparse(model, tmp_path / "sparse.safetensors")
    other.load_state_dict(load_sparse(tmp_path / "sparse.safetensors"))
    images = torch.randn(4, 3, 8, 8)
    assert torch.equal(model(images), other(images))


def test_a_sparse_file_with_a_part_missing_or_damaged_is_refused_with_its_name(tmp_path):
    file = tmp_path / "sparse.safetensors"
    export_sparse(small(0.9), file)
    parts = load_file(file)
    for damaged, words in (
        ({n: t for n, t in parts.items() if n != "6.weight.bitmask"}, "6.weight: 6.weight.bitmask is missing"),
        ({**parts, "6.weight": torch.ones(2)}, "6.weight: it is stored twice"),
        ({**parts, "6.weight.shape": torch.tensor([5, 376])}, "6.weight: bitmask is torch.uint8"),
    ):
        save_file(damaged, file)
        with pytest.raises(InputError, match=words):
            load_sparse(file)
    file.write_bytes(b"no safetensors")
    with pytest.raises(InputError, match="is damaged"):
        load_sparse(file)
    with pytest.raises(InputError, match="does not exist"):
        load_sparse(tmp_path / "none.safetensors")


def test_a_model_whose_weight_is_named_like_a_part_is_exported_dense_only(tmp_path):
    model = nn.Module()
    model.bitmask = nn.Linear(2, 2)
    model.inner = nn.Module()
    model.inner.register_parameter("shape", nn.Parameter(torch.zeros(2)))
    export_dense(model, tmp_path / "dense.safetensors")
    with pytest.raises(InputError, match=r"inner.shape is named like a part"):
        export_sparse(model, tmp_path / "sparse.safetensors")


# --- ONNX -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse_weights", [False, True], ids=["dense weights", "sparse weights"])
def test_the_onnx_file_computes_what_the_model_does_at_any_batch_size(tmp_path, sparse_weights):
    model, file = small(0.9), tmp_path / "model.onnx"
    done = export_onnx(model, file, sparse_weights=sparse_weights)
    assert done.bytes == file.stat().st_size and done.images == 4 and done.difference < 1e-5
    if sparse_weights:  # the reference evaluator does not know them, onnxruntime does
        import onnxruntime

        session = onnxruntime.InferenceSession(str(file))
        compute = lambda images: session.run(None, {"images": images})[0]  # noqa: E731
    else:
        evaluator = ReferenceEvaluator(str(file))
        compute = lambda images: evaluator.run(None, {"images": images})[0]  # noqa: E731
    for size in (1, 2, 5):
        images = torch.randn(size, 3, 8, 8)
        torch.testing.assert_close(torch.from_numpy(compute(images.numpy())), model(images), rtol=1e-4, atol=1e-5)


def test_every_zero_is_in_the_onnx_file_and_its_opset_is_the_one_asked_for(tmp_path):
    model = small(0.75)
    done = export_onnx(model, tmp_path / "model.onnx")
    traced = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(traced, full_check=True)
    zeros = sum(int((weight == 0).sum()) for name, weight in model.state_dict().items() if weight.dim() > 1)
    assert done.zeros == zeros == sum(int((array == 0).sum()) for array in arrays_of(traced) if array.ndim > 1)
    assert [entry.version for entry in traced.opset_import if not entry.domain] == [done.opset] == [18]


def test_sparse_initializers_make_the_onnx_file_smaller_where_two_thirds_are_zero(tmp_path):
    model = small(0.95)
    plain = export_onnx(model, tmp_path / "plain.onnx").bytes
    sparse = export_onnx(model, tmp_path / "sparse.onnx", sparse_weights=True).bytes
    assert sparse < 0.75 * plain
    assert len(onnx.load(tmp_path / "sparse.onnx").graph.sparse_initializer) >= 1
    export_onnx(small(0.5), tmp_path / "half.onnx", sparse_weights=True)
    assert not onnx.load(tmp_path / "half.onnx").graph.sparse_initializer


def test_images_given_are_checked_too_and_the_models_modes_stay(tmp_path):
    model = small(0.5).train()
    batches = [(torch.randn(2, 3, 8, 8), torch.zeros(2)), {"pixel_values": torch.randn(3, 3, 8, 8)}]
    assert export_onnx(model, tmp_path / "model.onnx", batches).images == 9
    assert all(module.training for module in model.modules())


class Wrapped(nn.Module):
    """Gives its logits inside something else, as transformers' models do."""

    def __init__(self, change=lambda logits: logits):
        super().__init__()
        self.inner, self.pretrained_cfg, self.change = small(), Images.pretrained_cfg, change

    def forward(self, images):
        return self.change(self.inner(images))


def test_a_model_that_wraps_its_logits_is_exported_as_one_that_gives_them(tmp_path):
    model = Wrapped(lambda logits: SimpleNamespace(logits=logits))
    assert export_onnx(model, tmp_path / "model.onnx").difference < 1e-5


def broken(value):
    model = small()
    with torch.no_grad():
        model[6].bias[0] = value
    return model


REFUSED = {
    "half precision": (lambda: small().to(torch.bfloat16), {}, "holds torch.bfloat16; only float32 .* model.float"),
    "another device": (lambda: small().to("meta"), {}, r"not on the CPU.*model.cpu\(\)"),
    "an opset from before": (small, {"opset": 1}, "wrote opset .*, not 1|cannot be written as ONNX"),
    "no opset": (small, {"opset": 0}, "opset is 0; give a whole number from 1"),
    "no tolerance": (small, {"tolerance": -1.0}, "was not written: .* more than the tolerance of -1"),
    "outputs that depend on values": (
        lambda: Wrapped(lambda logits: logits if logits.sum() > 0 else -logits), {},
        "Wrapped cannot be written as ONNX",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_faithfully_is_refused_and_nothing_is_written(case, tmp_path):
    make, options, words = REFUSED[case]
    with pytest.raises(InputError, match=words):
        export_onnx(make(), tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_outputs_that_are_not_finite_stop_the_export(tmp_path):
    with pytest.raises(NumericsError, match="outputs for batch 0 are NaN or infinite"):
        export_onnx(broken(float("nan")), tmp_path / "model.onnx")


def test_a_zero_lost_on_the_way_stops_the_export(tmp_path, monkeypatch):
    def without_zeros(traced):
        return [array + 1 for array in arrays_of(traced)]

    monkeypatch.setattr(onnx_module, "arrays_of", without_zeros)
    with pytest.raises(InputError, match=r"The zeros of 0.weight are not in the ONNX graph"):
        export_onnx(small(0.5), tmp_path / "model.onnx")


def test_weights_too_large_for_one_file_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_module, "LIMIT", 1000)
    with pytest.raises(InputError, match="more than 2 GiB"):
        export_onnx(small(), tmp_path / "model.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_package_that_is_missing_is_asked_for(package, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(
        InputError, match=re.escape(f'needs the package {package}; install it with pip install "secateur[onnx]"')
    ):
        export_onnx(small(), tmp_path / "model.onnx")


def test_a_normalisation_that_takes_channels_along_does_not_count_as_lost_zeros(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2)).eval()
    model(torch.randn(1, 3, 6, 6))
    with torch.no_grad():
        model[0].weight[:, 0] = 0.0
        model[1].weight[1] = 0.0
    model.pretrained_cfg = {"input_size": (3, 6, 6)}
    assert export_onnx(model, tmp_path / "model.onnx").zeros == 36
