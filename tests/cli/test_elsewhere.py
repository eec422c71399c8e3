"""export, compile and bench: a saved model taken elsewhere."""

import json
import shutil

import pytest
import timm
import torch
from conftest import GREY, a_model
from safetensors.torch import load_file

import secateur
from secateur import native
from secateur.benchmark import Runtime
from secateur.cli import bench as bench_command
from secateur.cli import compile as compile_command

KERNELS = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.describe()['reason']}")


@pytest.fixture(scope="session")
def sparse(tmp_path_factory):
    """A run directory of a vision transformer at 90 %, whose head can be packed."""
    from secateur.cli import main

    grey = a_model(tmp_path_factory.mktemp("models") / "grey", **GREY)
    folder = tmp_path_factory.mktemp("runs") / "sparse"
    words = ["--sparsity", "0.9", "--method", "magnitude", "--no-evaluate", "--out", str(folder)]
    assert main(["prune", "--model", str(grey), *words]) == 0
    return folder


# --- export -----------------------------------------------------------------------------------------------------------


def test_export_writes_what_is_asked_for_and_says_how_large_it_is(call, sparse, tmp_path):
    names = {"onnx": tmp_path / "m.onnx", "dense": tmp_path / "d.safetensors", "sparse": tmp_path / "s.safetensors"}
    flags = [word for kind, file in names.items() for word in (f"--{kind}", file)]
    done = call("export", sparse, *flags, "--dataset", "bundled", "--eval-samples", "5", "--json")
    document = json.loads(done.out)
    assert done.code == 0 and set(document["files"]) == set(names)
    model, _ = secateur.load(sparse)
    weights = [tensor for name, tensor in model.state_dict().items() if name.endswith("weight") and tensor.dim() > 1]
    assert document["zeros"] == sum(int((w == 0).sum()) for w in weights) == document["files"]["onnx"]["zeros"]
    assert document["dense_bytes"] == sum(tensor.nbytes for tensor in model.state_dict().values())
    for kind, file in names.items():
        found = document["files"][kind]
        assert found["path"] == str(file) and found["bytes"] == file.stat().st_size
        assert found["ratio"] == found["bytes"] / document["dense_bytes"]
    assert document["files"]["onnx"]["images"] == 4 + 5 and document["files"]["onnx"]["difference"] < 1e-5
    again = secateur.load_sparse(names["sparse"])
    assert all(torch.equal(tensor, again[name]) for name, tensor in load_file(names["dense"]).items())


def test_export_shows_sizes_and_the_check_in_words(call, sparse, tmp_path):
    done = call("export", sparse, "--onnx", tmp_path / "m.onnx", "--sparse-initializers")
    assert done.code == 0 and "zeros of" in done.out and " KiB" in done.out
    assert "ONNX (opset 18): outputs on 4 images differ by at most" in done.out and "are in the file" in done.out


EXPORT_MISTAKES = {
    "nothing": ([], "Nothing to write: give --onnx FILE, --dense FILE or --sparse FILE"),
    "another ending": (["--onnx", "{}/model.pt"], "give a name that ends in .onnx"),
    "a pickle": (["--dense", "{}/model.pt"], "give a name that ends in .safetensors"),
    "a file that is there": (
        ["--dense", "{}/there.safetensors"],
        "exists already; name another one or pass --overwrite",
    ),
    "a folder": (["--dense", "{}"], "is a folder; name a file in it"),
    "no such folder": (["--onnx", "{}/no/model.onnx"], "there is no folder"),
    "the same name twice": (["--dense", "{0}/a.safetensors", "--sparse", "{0}/a.safetensors"], "the same name"),
    "a tolerance below zero": (["--onnx", "{}/m.onnx", "--tolerance", "-1"], "--tolerance is -1.0"),
    "no images there": (["--onnx", "{}/m.onnx", "--data-dir", "{}/none"], "There is no data folder"),
}


@pytest.mark.parametrize("case", EXPORT_MISTAKES)
def test_export_stops_before_the_work_where_it_could_not_end_well(case, call, sparse, tmp_path):
    words, sentence = EXPORT_MISTAKES[case]
    (tmp_path / "there.safetensors").write_bytes(b"mine")
    done = call("export", sparse, *[word.format(tmp_path) for word in words])
    assert done.code == 2 and sentence in done.err and done.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["there.safetensors"]


def test_export_replaces_a_file_only_when_told_to_and_refuses_a_run_that_was_changed(call, sparse, tmp_path):
    file = tmp_path / "there.safetensors"
    file.write_bytes(b"mine")
    assert call("export", sparse, "--dense", file, "--overwrite").code == 0 and len(load_file(file)) > 3
    run = shutil.copytree(sparse, tmp_path / "run")
    manifest = run / "secateur.json"
    manifest.write_text(manifest.read_text().replace("magnitude", "magnitudE"))
    done = call("export", run, "--sparse", tmp_path / "s.safetensors")
    assert done.code == 2 and "is not what was saved: secateur.json was changed" in done.err


# --- compile ----------------------------------------------------------------------------------------------------------


@KERNELS
def test_compile_writes_a_file_that_answers_as_the_model(call, tmp_path):
    grey = a_model(tmp_path / "grey", **GREY)
    done = call("compile", grey, "--out", tmp_path / "m.sct", "--no-measure", "--json")
    document = json.loads(done.out)
    assert done.code == 0 and document["packed"] and document["bytes"] == (tmp_path / "m.sct").stat().st_size
    images = torch.randn(3, 1, 28, 28)
    with torch.no_grad():
        wanted = timm.create_model(f"local-dir:{grey}", pretrained=True).eval()(images)
    torch.testing.assert_close(secateur.load_compiled(tmp_path / "m.sct")(images), wanted, rtol=1e-4, atol=1e-4)
    done = call("compile", grey, "--out", tmp_path / "m.sct", "--no-measure", "--overwrite")
    assert "packed for the encoder; outputs differ by at most" in done.out


@KERNELS
def test_compile_refuses_another_ending_and_takes_back_a_file_that_answers_otherwise(call, grey, tmp_path, monkeypatch):
    done = call("compile", grey, "--out", tmp_path / "model.onnx")
    assert done.code == 2 and "give a name that ends in .sct" in done.err
    monkeypatch.setattr(compile_command, "TOLERANCE", -1.0)
    done = call("compile", grey, "--out", tmp_path / "m.sct", "--no-measure")
    assert done.code == 2 and "was not written: its outputs would differ from the model's" in done.err
    assert not list(tmp_path.iterdir())


# --- bench ------------------------------------------------------------------------------------------------------------


def a_row(**words):
    row = {"architecture": "vit", "model": "dense", "sparsity": 0.0, "runtime": "torch", "batch": 2}
    row |= {"images_per_second": 10.0, "p50_ms": 1.0, "p95_ms": 2.0, "speedup": 1.0, "against": "torch"}
    row |= {"bytes": 10**8, "load_seconds": 1.0, "difference": 0.0, "calls": 1, "rounds": [0.2]}
    return row | words


@pytest.fixture
def measured(monkeypatch):
    """What `bench` would have timed: the candidates, and the words it was asked with."""
    asked = []

    def compare_runtimes(candidates, runtimes, batch_sizes, plan, required, track):
        asked.append((candidates, runtimes, batch_sizes, plan, required))
        own = [a_row(model=c.label, sparsity=c.sparsity, runtime="secateur", speedup=2.5) for c in candidates]
        return {"rows": [a_row(), *own], "versions": {"torch": "9"}, "left_out": {"openvino": "no luck"}}

    monkeypatch.setattr("secateur.benchmark.compare_runtimes", compare_runtimes)
    monkeypatch.setattr(
        "secateur.benchmark.choose", lambda names, deepsparse: ([Runtime("torch")], {"deepsparse": "no"})
    )
    return asked


def test_bench_prints_and_stores_the_rows_with_accuracy_machine_and_figure(call, sparse, tmp_path, measured):
    words = [
        "--dataset",
        "bundled",
        "--eval-samples",
        "20",
        "--batch-sizes",
        "2",
        "2",
        "--threads",
        "1",
        "--rounds",
        "3",
    ]
    done = call("bench", sparse, *words, "--out", tmp_path / "speed", "--json")
    document = json.loads(done.out)
    assert done.code == 0 and document == json.loads((tmp_path / "speed" / "bench.json").read_text())
    ((candidates, _, batch_sizes, plan, required),) = measured
    assert [c.label for c in candidates] == ["dense", str(sparse)] and batch_sizes == [2] and not required
    assert (plan.threads, plan.rounds, plan.spin) == (1, 3, False)
    by_model = {row["model"]: row for row in document["rows"] if row["runtime"] == "secateur"}
    assert by_model["dense"]["top1"] is None and 0 <= by_model[str(sparse)]["top1"] <= 100
    assert by_model[str(sparse)]["sparsity"] == pytest.approx(0.9, abs=0.001)
    assert document["machine"]["processor"] and document["left_out"] == {"openvino": "no luck", "deepsparse": "no"}
    assert (tmp_path / "speed" / "speed.svg").read_text().startswith("<?xml")
    assert call("bench", sparse, *words, "--out", tmp_path / "speed", "--overwrite").code == 0


def test_bench_shows_a_table_for_random_masks_too(call, measured):
    done = call("bench", "--model", "resnet10t", "--random-sparsity", "0.5", "0.9", "--threads", "1")
    assert done.code == 0 and "speedup against torch on the dense model" in done.out
    assert [c.label for c in measured[0][0]] == ["dense", "50 %", "90 %"] and "2.50" in done.out
    assert "Left out openvino: no luck" in done.err and "Left out deepsparse" in done.err


BENCH_MISTAKES = {
    "nothing": ([], "Nothing to time: give folders that secateur wrote, or --model NAME"),
    "masks of nothing": (["bundled", "--random-sparsity", "0.5"], "--random-sparsity needs --model NAME"),
    "too many zeros": (["--model", "resnet10t", "--random-sparsity", "1.5"], "--random-sparsity is 1.5"),
    "no such model": (["--model", "resnet1O"], "timm has no model 'resnet1O'"),
    "no such run": (["nowhere"], "nowhere"),
    "no such runtime": (["bundled", "--runtimes", "tensorflow"], "There is no runtime 'tensorflow'"),
    "no such python": (["bundled", "--deepsparse", "no/python"], "no Python that can be run"),
    "no images there": (["bundled", "--data-dir", "none"], "There is no data folder none"),
    "no batch": (["bundled", "--batch-sizes", "0"], "--batch-sizes is 0"),
}


@pytest.mark.parametrize("case", BENCH_MISTAKES)
def test_bench_stops_before_the_work_where_it_could_not_end_well(case, call, monkeypatch):
    monkeypatch.setattr(bench_command, "_results", lambda *words: pytest.fail("the work began"))
    words, sentence = BENCH_MISTAKES[case]
    done = call("bench", *words)
    assert done.code == 2 and sentence in done.err and done.out == ""
