"""Compiled models as files, and files that were spoiled on the way."""

import hashlib
import json
import random
import struct
import subprocess
import sys
from functools import partial

import fuzz
import numpy as np
import pytest
import timm
import torch
from torch import nn

import secateur
from secateur import load_compiled, native, save_compiled
from secateur.errors import InputError
from secateur.runtime.container import MAGIC, container_bytes, parse_container, read_container, write_container

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.describe()['reason']}")

SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
VISION = {
    "class token": ("vit_tiny_patch16_224", SMALL),
    "distilled": ("deit_tiny_distilled_patch16_224", SMALL),
    "mean of the tokens": ("vit_tiny_patch16_224", SMALL | {"global_pool": "avg", "class_token": False}),
    "no classifier": ("vit_tiny_patch16_224", SMALL | {"num_classes": 0}),
    "ReLU": ("vit_tiny_patch16_224", SMALL | {"act_layer": nn.ReLU}),
}


def sparse_model(name, arguments, sparsity=0.8):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
            if parameter.dim() >= 2:
                parameter.masked_fill_(torch.rand_like(parameter) < sparsity, 0.0)
    return model


@pytest.fixture
def vision(tmp_path):
    """A small vision transformer, and its file."""
    model = sparse_model(*VISION["class token"])
    save_compiled(model, tmp_path / "model.sct", measure=False)
    return model, tmp_path / "model.sct"


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VISION)
def test_a_compiled_transformer_answers_the_same_to_the_last_bit_after_its_file(case, tmp_path):
    model = sparse_model(*VISION[case])
    compiled, images = secateur.compile_sparse(model, measure=False), torch.randn(3, 3, 16, 16)
    save_compiled(compiled, tmp_path / "model.sct")
    loaded = load_compiled(tmp_path / "model.sct")
    assert torch.equal(loaded(images), compiled(images)) and not loaded.training
    torch.testing.assert_close(loaded(images), model(images), rtol=1e-4, atol=1e-4)
    assert save_compiled(loaded, tmp_path / "again.sct") == (tmp_path / "model.sct").stat().st_size
    assert (tmp_path / "again.sct").read_bytes() == (tmp_path / "model.sct").read_bytes()


def test_a_compiled_transformer_is_loaded_without_the_class_it_came_from(vision):
    model, file = vision
    images = torch.randn(2, 3, 16, 16)
    np.save(file.with_suffix(".npy"), images.numpy())
    script = (
        "import sys, numpy, torch, timm.models.vision_transformer as vit, secateur\n"
        "def refuse(*arguments, **keywords): raise AssertionError('the model was made')\n"
        "vit.VisionTransformer.__init__ = refuse\n"
        "print(secateur.load_compiled(sys.argv[1])(torch.from_numpy(numpy.load(sys.argv[2]))).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, file, file.with_suffix(".npy")], capture_output=True, text=True, check=True
    )
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), model(images), rtol=1e-4, atol=1e-4)


def test_another_model_of_timm_is_stored_without_its_zeros_and_built_again(tmp_path, monkeypatch):
    quickly = partial(secateur.compile_sparse, example=torch.rand(1, 3, 64, 64), measure=False)
    monkeypatch.setattr("secateur.compiled.compile_sparse", lambda model, measure=True: quickly(model))
    model = sparse_model("resnet10t", {"num_classes": 4}, 0.95)
    size = save_compiled(model, tmp_path / "model.sct")
    assert size < 0.25 * sum(tensor.nbytes for tensor in model.state_dict().values())
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(load_compiled(tmp_path / "model.sct")(images), model(images), rtol=1e-4, atol=1e-4)


def test_arrays_of_every_type_come_back_bit_for_bit_and_aligned(tmp_path):
    arrays = {
        "a": np.array([[1.5, -0.0], [np.nan, 3]], np.float32), "b": np.arange(5, dtype=np.uint16),
        "none": np.empty((0, 3), np.int32), "c": np.array(7, np.int64), "ü": np.arange(3, dtype=np.uint8),
    }  # fmt: skip
    size = write_container(tmp_path / "file", {"text": "ü", "list": [1, 2.5]}, arrays)
    description, found = read_container(tmp_path / "file")
    data = (tmp_path / "file").read_bytes()
    assert size == len(data) and description == {"text": "ü", "list": [1, 2.5]} and list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes() and not found[name].flags.writeable
        assert not array.size or data.index(array.tobytes()) % 64 == 0


def test_the_start_of_a_file_is_as_the_documentation_lays_it_out(vision):
    data = vision[1].read_bytes()
    magic, version, zero, header, size, digest = struct.unpack("<8sIIQQ32s", data[:64])
    assert (magic, version, zero, size) == (MAGIC, 1, 0, len(data))
    assert set(json.loads(data[64 : 64 + header])) == {"description", "arrays"}
    assert digest == hashlib.sha256(data[:32] + data[64:]).digest()


# --- what is refused --------------------------------------------------------------------------------------------------


def spoiled_start(data, at, new):
    return data[:at] + new + data[at + len(new) :]


START = {
    "nothing": (lambda data: b"", "has 0 bytes, less than the 64"),
    "another format": (lambda data: b"PK" + data[2:], "magic: it is no compiled model"),
    "a later version": (lambda data: spoiled_start(data, 8, b"\x02"), "version is 2, this secateur reads 1"),
    "a flag of the future": (lambda data: spoiled_start(data, 12, b"\x01"), "byte 12 is part of 1"),
    "cut short": (lambda data: data[:-1], "file size: it has"),
    "longer": (lambda data: data + b"\0", "file size: it has"),
    "a header beyond the end": (
        lambda data: spoiled_start(data, 16, b"\xff" * 8),
        "header size is 1844674407370955",
    ),
    "a flipped bit": (lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:], "SHA-256: the file was damaged"),
}


@pytest.mark.parametrize("case", START)
def test_a_file_damaged_on_the_way_is_refused_with_its_name(case, vision):
    spoil, words = START[case]
    vision[1].write_bytes(spoil(vision[1].read_bytes()))
    with pytest.raises(InputError, match=rf"model\.sct: .*{words}"):
        load_compiled(vision[1])


def changed(header, *path, to):
    for key in path[:-1]:
        header = header[key]
    header[path[-1]] = to


def dropped(header, *path):
    for key in path[:-1]:
        header = header[key]
    del header[path[-1]]


HEADERS = {  # what is done to the header, and what is said
    "no description": (lambda h: h.pop("description"), "should hold description and arrays"),
    "more than that": (lambda h: h.update(more=1), "should hold description and arrays"),
    "a description that is a list": (lambda h: changed(h, "description", to=[]), "description should be an object"),
    "arrays that are none": (lambda h: changed(h, "arrays", to={}), "arrays should be a list"),
    "an array of text": (lambda h: changed(h, "arrays", 0, to="x"), r"arrays\[0\] should hold name, type"),
    "an array without a name": (lambda h: changed(h, "arrays", 0, "name", to=""), r"arrays\[0\].name is no short"),
    "an array of objects": (lambda h: changed(h, "arrays", 1, "type", to="object"), r"arrays\[1\].type is 'object'"),
    "a type that is a list": (lambda h: changed(h, "arrays", 1, "type", to=[]), r"arrays\[1\].type is \[\]"),
    "a negative size": (lambda h: changed(h, "arrays", 0, "shape", to=[-1]), r"arrays\[0\].shape is \[-1\]"),
    "a size that is true": (lambda h: changed(h, "arrays", 0, "shape", to=[True]), r"arrays\[0\].shape is \[True\]"),
    "a size beyond the end": (lambda h: changed(h, "arrays", -1, "shape", to=[2**40]), "reaches beyond the end"),
    "sizes that overflow": (lambda h: changed(h, "arrays", 0, "shape", to=[2**47] * 8), "reaches beyond the end"),
    "a place of text": (lambda h: changed(h, "arrays", 0, "begin", to="0"), r"arrays\[0\].begin is '0'"),
    "a place elsewhere": (lambda h: changed(h, "arrays", 1, "begin", to=0), "begin is 0, not"),
    "an array twice": (lambda h: changed(h, "arrays", 1, "name", to=h["arrays"][0]["name"]), "is there twice"),
    "an array too few": (lambda h: h["arrays"].pop(), "bytes stand after the last array"),
    "another kind": (lambda h: changed(h, "description", "kind", to="model"), "kind is 'model', neither encoder nor"),
    "a kind that is missing": (lambda h: dropped(h, "description", "kind"), "kind is None"),
    "an image of four sizes": (lambda h: h["description"]["image"].pop(), "image is no list of five"),
    "an image of nothing": (lambda h: changed(h, "description", "image", 0, to=0), "image is no list of five"),
    "heads of text": (lambda h: changed(h, "description", "heads", to="3"), "heads should be of type int"),
    "a prefix below zero": (lambda h: changed(h, "description", "prefix", to=-1), "prefix is -1, not from 0"),
    "heads that do not fit": (lambda h: changed(h, "description", "heads", to=4), "blocks.0: a matrix has another"),
    "patches that do not fit": (lambda h: changed(h, "description", "image", 3, to=5), "image, heads or start: pat"),
    "an odd head": (lambda h: changed(h, "description", "head_size", to=7), "image, heads or start: .* size of a head"),
    "no such activation": (lambda h: changed(h, "description", "activation", to="tanh"), "an activation is none, relu"),
    "a block too few": (lambda h: h["description"]["epsilons"].pop(), "matrices are not those of the blocks"),
    "an epsilon of zero": (lambda h: changed(h, "description", "epsilons", 1, 0, to=0.0), r"epsilons\[1\] are no two"),
    "a matrix without a width": (
        lambda h: h["description"]["matrices"]["patches"].pop(), "matrices.patches is no list of rows",
    ),
    "a matrix with more rows": (
        lambda h: changed(h, "description", "matrices", "blocks.1.up", 0, to=98), "blocks.1.up: the bias does not fit",
    ),
    "a wider block": (
        lambda h: changed(h, "description", "matrices", "blocks.1.up", 2, to=4096), "blocks.1.up: a block is wider",
    ),
    "a head that pools otherwise": (
        lambda h: changed(h, "description", "head", "pool", to="max"), "head.pool is 'max', neither",
    ),
    "a head with a prefix of its own": (
        lambda h: changed(h, "description", "head", "prefix", to=9), "head.prefix or head.from_token is out of range",
    ),
    "a head without a classifier": (
        lambda h: dropped(h, "description", "head", "modules", "classifiers.0"), "head.modules are not two norms",
    ),
    "more classifiers than tokens before the patches": (
        lambda h: changed(h, "description", "head", "modules", "classifiers.1", to={"kind": "identity"}),
        "head.prefix is less than there are classifiers",
    ),
    "a norm that is linear": (
        lambda h: changed(h, "description", "head", "modules", "norm", to={"kind": "linear"}), "head.norm.weight is",
    ),
    "a norm without an epsilon": (
        lambda h: changed(h, "description", "head", "modules", "norm", to={"kind": "norm"}), "head.norm.epsilon is no",
    ),
    "a classifier of another kind": (
        lambda h: changed(h, "description", "head", "modules", "classifiers.0", to="x"), "classifiers.0.kind is none",
    ),
    "a classifier that is not there": (
        lambda h: changed(h, "description", "head", "modules", "classifiers.0", to={"kind": "identity"}),
        "array head.classifiers.0.(bias|weight) belongs to nothing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_is_sealed_but_wrong_is_refused_with_its_field(case, vision):
    spoil, words = HEADERS[case]
    header, rest = fuzz.split(vision[1].read_bytes())
    spoil(header)
    vision[1].write_bytes(fuzz.join(header, rest))
    with pytest.raises(InputError, match=rf"model\.sct: .*{words}"):
        load_compiled(vision[1])


def test_a_header_that_is_no_strict_json_is_refused(vision):
    data = vision[1].read_bytes()
    for spoiled, words in ((data.replace(b'"kind"', b'"kind\xff', 1), "no strict JSON"),
                           (data.replace(b"1e-06", b"  NaN", 1), "NaN is not JSON")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            parse_container(fuzz.seal(spoiled))
    filled = bytearray(data)
    filled[64 + struct.unpack("<Q", data[16:24])[0]] = 1
    with pytest.raises(InputError, match="what fills up to header is not zero"):
        parse_container(fuzz.seal(bytes(filled)))


def set_to(at, value):
    return lambda array: array.put(at, value)


ARRAYS = {  # array, what is done to it, and what is said
    "an offset outside its block": (
        "blocks.0.qkv.offsets",
        set_to(0, 65535 // 64 * 64),
        "an offset is outside its block",
    ),
    "an offset between two": ("blocks.0.qkv.offsets", set_to(0, 1), "an offset is outside its block"),
    "a row beyond the last": ("blocks.0.up.tiles", set_to(0, 10**6), "a row is missing or named twice"),
    "a row before the first": ("blocks.0.up.tiles", set_to(0, -1), "a row is missing or named twice"),
    "more entries than columns": ("blocks.0.up.tiles", set_to(2, 2**31 - 1), "a row has more entries than columns"),
    "fewer than no entries": ("blocks.0.up.tiles", set_to(3, -5), "a row has more entries than columns"),
    "entries that are missing": ("blocks.1.down.tiles", set_to(3, 90), "entries are missing"),
    "a weight that is NaN": ("blocks.1.down.values", set_to(0, np.nan), "down.values holds NaN or infinity"),
    "a norm that is infinite": ("head.norm.weight", set_to(0, np.inf), "head.norm.weight holds NaN or infinity"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_numbers_that_would_lead_native_code_astray_are_refused_with_their_matrix(case, vision):
    name, spoil, words = ARRAYS[case]
    description, arrays = read_container(vision[1])
    arrays[name] = arrays[name].copy()
    spoil(arrays[name])
    write_container(vision[1], description, arrays)
    with pytest.raises(InputError, match=rf"model\.sct: .*{words}"):
        load_compiled(vision[1])


RESHAPED = {
    "an array that is missing": ("start", None, "array start is missing"),
    "an array of another type": ("start", lambda a: a.astype(np.int32), r"array start is int32 .* not 1-d float32"),
    "an array in a square": ("start", lambda a: a.reshape(-1, 2), "not 1-d float32"),
    "a start that is too short": ("start", lambda a: a[:-1], "start does not fit the rows"),
    "a start with a token too few": ("start", lambda a: a[:-24], "the start does not fit the tokens"),
    "values that are missing": ("blocks.0.qkv.values", lambda a: a[:-4], "blocks.0.qkv: entries are missing"),
    "values too many": (
        "blocks.0.qkv.values",
        lambda a: np.append(a, a[:4]),
        "blocks.0.qkv: there are entries too many",
    ),
    "tiles that are missing": ("blocks.0.qkv.tiles", lambda a: a[:-4], "qkv: the tiles do not fit rows and columns"),
    "a norm with a bias alone": ("head.norm.weight", None, "head.norm has a bias and no weight"),
    "a norm of another size": ("head.norm.bias", lambda a: a[:-1], "head.norm does not fit the features"),
    "a classifier of another size": ("head.classifiers.0.bias", lambda a: a[:-1], "classifiers.0 does not fit"),
    "an array too many": ("more", lambda a: np.zeros(1, np.float32), "array more belongs to nothing"),
}


@pytest.mark.parametrize("case", RESHAPED)
def test_arrays_that_do_not_fit_one_another_are_refused_with_their_name(case, vision):
    name, spoil, words = RESHAPED[case]
    description, arrays = read_container(vision[1])
    if spoil is None:
        del arrays[name]
    else:
        arrays[name] = spoil(arrays.get(name))
    write_container(vision[1], description, arrays)
    with pytest.raises(InputError, match=rf"model\.sct: .*{words}"):
        load_compiled(vision[1])


def test_a_file_that_is_not_there_and_kernels_that_are_not_there_are_told(vision, monkeypatch):
    with pytest.raises(InputError, match=r"There is no compiled model nowhere\.sct"):
        load_compiled("nowhere.sct")
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setattr(native, "describe", lambda: {"reason": "switched off"})
    with pytest.raises(InputError, match="needs the compiled kernels: switched off"):
        load_compiled(vision[1])


def test_a_model_that_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(InputError, match="timm cannot build a Linear again"):
        save_compiled(nn.Linear(2, 2), tmp_path / "model.sct")
    with pytest.raises(InputError, match=r"is torch\.bfloat16, which a compiled file cannot hold"):
        save_compiled(timm.create_model("resnet10t").to(torch.bfloat16), tmp_path / "model.sct")
    odd = secateur.compile_sparse(sparse_model(*VISION["class token"]), measure=False)
    odd.head.norm = nn.Tanh()
    with pytest.raises(InputError, match="norm is a Tanh, which a compiled file cannot hold"):
        save_compiled(odd, tmp_path / "model.sct")
    assert not list(tmp_path.iterdir())


def test_weights_of_another_model_than_the_configuration_says_are_refused(tmp_path):
    save_compiled(timm.create_model("resnet10t", num_classes=4), tmp_path / "model.sct")
    description, arrays = read_container(tmp_path / "model.sct")
    for change, words in (
        ({"config": 1}, "config should be an object"),
        ({"config": description["config"] | {"architecture": "resnet14t"}}, "does not fit ResNet"),
        ({"config": description["config"] | {"architecture": "none"}}, "timm has no model 'none'"),
    ):
        write_container(tmp_path / "model.sct", description | change, arrays)
        with pytest.raises(InputError, match=rf"model\.sct: .*{words}"):
            load_compiled(tmp_path / "model.sct")


# --- fuzzing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(fuzz.CORPUS.iterdir()), ids=lambda path: path.stem)
def test_every_file_of_the_corpus_does_what_its_name_says(path):
    found = fuzz.attempt(path.read_bytes())
    assert (found == "runs") == path.name.startswith("valid-")


@pytest.mark.parametrize("seed", range(4))
def test_spoiled_files_are_refused_or_run_and_nothing_else(seed):
    chance, files = random.Random(seed), list(fuzz.seeds().values())
    found = [fuzz.attempt(fuzz.mutate(chance, chance.choice(files))) for _ in range(150)]
    assert 0 < found.count("runs") < 75 and len(set(found)) > 20


def test_noise_is_refused():
    chance = random.Random(0)
    for size in (0, 1, 63, 64, 65, 1000):
        assert fuzz.attempt(chance.randbytes(size)) != "runs"
        assert fuzz.attempt(fuzz.seal(MAGIC + (1).to_bytes(8, "little") + chance.randbytes(size))) != "runs"


def test_an_array_of_a_kind_that_the_container_does_not_know_is_an_error_of_ours():
    with pytest.raises(KeyError, match="float64"):
        container_bytes({}, {"a": np.zeros(1)})
