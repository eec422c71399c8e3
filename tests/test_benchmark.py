"""Runtimes side by side: who is there, what is timed, in which order, and what the figures are made of."""

import itertools
import json
import sys

import numpy as np
import pytest
import torch

from secateur import load_model
from secateur.benchmark import Plan, choose, compare_runtimes, describe_machine, random_candidates, saved_candidates
from secateur.benchmark import runtimes as runtimes_module
from secateur.benchmark import turns as turns_module
from secateur.benchmark.comparison import rows_of
from secateur.benchmark.models import Candidate, Prepared, prepare, random_images, sparsity_of
from secateur.benchmark.process import Worker, environment
from secateur.benchmark.runtimes import Runtime, known
from secateur.benchmark.turns import Timed, difference_of, entries, fastest_dense, order_of, time_in_turns
from secateur.checkpoint import save
from secateur.errors import InputError
from secateur.layers import select_layers

TORCH, ORT, OWN = (
    Runtime("torch", reads="folder"),
    Runtime("onnxruntime"),
    Runtime("secateur", reads="folder", sparse=True),
)


# --- the runtimes -----------------------------------------------------------------------------------------------------


def test_all_runtimes_that_are_there_are_chosen_and_the_others_have_a_reason(monkeypatch):
    monkeypatch.setattr(runtimes_module.importlib.util, "find_spec", lambda name: None if name == "openvino" else 1)
    monkeypatch.setattr(runtimes_module.shutil, "which", lambda name: None)
    chosen, left_out = choose([])
    assert [runtime.name for runtime in chosen] == ["secateur", "torch", "onnxruntime"]
    assert "pip install openvino" in left_out["openvino"] and "C++ compiler" in left_out["torch.compile"]
    for name, words in (("openvino", "cannot be used: openvino is not installed"), ("torchh", "Did you mean torch"),
                        ("deepsparse", "give its Python with --deepsparse")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            choose([name])


def test_deepsparse_runs_in_the_python_it_is_given():
    (runtime,), left_out = choose(["deepsparse"], sys.executable)
    assert (runtime.python, runtime.sparse, runtime.reads, left_out) == (sys.executable, True, "older onnx", {})
    assert "deepsparse" not in known()
    with pytest.raises(InputError, match="--deepsparse is nowhere/python, no Python that can be run"):
        choose([], "nowhere/python")


def test_idle_threads_sleep_unless_they_may_spin():
    assert environment(3, False)["OMP_WAIT_POLICY"] == "passive" and environment(3, True)["OMP_WAIT_POLICY"] == "active"
    assert {environment(3, False)[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"3"}


# --- the models -------------------------------------------------------------------------------------------------------


def test_random_masks_have_the_sparsity_asked_for_in_every_layer():
    dense, half = random_candidates("resnet10t", [0.5])
    assert (dense.label, dense.sparsity, half.label, half.sparsity) == ("dense", 0.0, "50 %", 0.5)
    model = half.make()
    for weight in select_layers(model).values():
        assert int((weight.parameter == 0).sum()) == round(0.5 * weight.size)
    assert sparsity_of(model) == pytest.approx(0.5, abs=1e-4) and sparsity_of(dense.make()) == 0
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), half.make().parameters(), strict=True))
    with pytest.raises(InputError, match=r"timm has no model 'resnet1O'\. Did you mean"):
        random_candidates("resnet1O", [])


def test_saved_models_are_grouped_with_a_dense_twin_that_differs_only_where_zeros_were(tmp_path):
    model = load_model("bundled")
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight[:, ::2] = 0
    save(model, {}, tmp_path / "run")
    ((twin, run),) = saved_candidates([str(tmp_path / "run"), str(tmp_path / "run")])
    assert twin.label == "dense" and run.label == str(tmp_path / "run") and run.sparsity == sparsity_of(model) > 0
    filled, saved = (candidate.make().state_dict() for candidate in (twin, run))
    for name, tensor in saved.items():
        assert torch.equal(filled[name][tensor != 0], tensor[tensor != 0]), name
    assert int((filled["blocks.0.mlp.fc1.weight"] == 0).sum()) == 0


# --- turns ------------------------------------------------------------------------------------------------------------


def a_model(label, sparsity=0.0):
    return Prepared(Candidate(label, "net", sparsity, lambda: None), {}, np.zeros((1, 2)))


def test_dense_runtimes_are_timed_on_the_dense_model_and_sparse_ones_on_all():
    models = [a_model("dense"), a_model("a", 0.5), a_model("b", 0.9)]
    found = [(runtime.name, model.candidate.label) for runtime, model in entries([OWN, TORCH], models)]
    assert found == [("secateur", "dense"), ("secateur", "a"), ("secateur", "b"), ("torch", "dense")]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_every_round_has_everybody_once_and_nobody_always_follows_the_same(count):
    orders = [order_of(list(range(count)), number) for number in range(2 * count)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    before = {(a, b) for order in orders for a, b in itertools.pairwise(order)}
    assert count < 3 or len({a for a, b in before if b == 0}) > 1


def timed(runtime, label, *rounds, sparsity=0.0):
    return Timed(runtime, a_model(label, sparsity), "1", 0.1, 0.0, 100, rounds=[list(times) for times in rounds])


def test_speedups_are_medians_of_ratios_inside_a_round_against_the_fastest_dense_runtime():
    slow, fast = timed(TORCH, "dense", (4.0, 4.0), (8.0,), (4.0,)), timed(ORT, "dense", (2.0,), (2.0, 4.0), (2.0,))
    own = timed(OWN, "a", (1.0,), (3.0,), (0.5, 0.5), sparsity=0.9)
    own_dense = timed(OWN, "dense", (1.0,), (1.0,), (1.0,))  # not a rival
    rows = {(row["runtime"], row["model"]): row for row in rows_of([slow, fast, own, own_dense], 8)}
    assert fastest_dense([slow, fast, own, own_dense]) is fast
    assert {row["against"] for row in rows.values()} == {"onnxruntime"}
    assert rows["secateur", "a"]["speedup"] == 2.0  # of 2/1, 3/3, 2/0.5
    assert rows["torch", "dense"]["speedup"] == 0.5 and rows["onnxruntime", "dense"]["speedup"] == 1.0
    assert rows["secateur", "a"]["images_per_second"] == 8 / 1.0  # median of 1, 3, 0.5
    assert rows["secateur", "a"]["p50_ms"] == 1e3 * np.percentile([1, 3, 0.5, 0.5], 50)
    assert rows["secateur", "a"]["rounds"] == [1.0, 3.0, 0.5] and rows["secateur", "a"]["sparsity"] == 0.9
    with pytest.raises(InputError, match="No runtime but secateur's own could run the dense model"):
        fastest_dense([own, own_dense])


def test_the_difference_is_that_of_the_images_both_have_and_infinite_for_other_shapes():
    reference = np.array([[1.0, -4.0]])
    assert difference_of(np.array([[1.0, -3.0], [9.0, 9.0]]), reference) == 0.25
    assert difference_of(np.array([[1.0, -3.0, 0.0]]), reference) == float("inf")
    assert np.isnan(difference_of(np.array([[np.nan, 0.0]]), reference))


@pytest.mark.parametrize("words", [{"threads": 0}, {"threads": 1, "rounds": 0}])
def test_a_plan_without_threads_or_rounds_is_refused(words):
    with pytest.raises(InputError, match="is 0; give a whole number from 1"):
        Plan(**words)


class Echo:
    """A worker that counts what it is asked, and takes twice as long each time it is timed."""

    def __init__(self, runtime, threads, spin):
        self.runtime, self.asked, self.seconds = runtime, [], 0.05

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.asked.append("end")

    def ask(self, do, **words):
        self.asked.append(do)
        if do == "load" and self.runtime.name == "torch.compile":
            raise InputError("The runtime torch.compile failed: no luck.")
        if do == "outputs":
            np.save(words["file"], np.zeros((1, 2)) if self.runtime.name != "openvino" else np.ones((1, 2)))
        return {"version": "1", "seconds": 0.1, "bytes": 5, "times": [self.seconds] * words.get("calls", 1)}


@pytest.fixture
def workers(monkeypatch):
    made = []
    monkeypatch.setattr(turns_module, "Worker", lambda *words: made.append(Echo(*words)) or made[-1])
    return made


def on_disk(folder):
    return Prepared(Candidate("dense", "net", 0.0, lambda: None), {"folder": folder, "onnx": folder}, np.zeros((1, 2)))


def test_each_turn_takes_as_many_calls_as_fill_it_and_every_worker_is_ended(workers, tmp_path):
    found, failed = time_in_turns([(TORCH, on_disk(tmp_path)), (ORT, on_disk(tmp_path))], tmp_path, Plan(1, 3, 0.2))
    assert failed == {} and [one.calls for one in found] == [4, 4]
    assert [one.rounds for one in found] == [[[0.05] * 4] * 3] * 2
    assert [worker.asked for worker in workers] == [["load", "outputs", "memory", *["time"] * 4, "end"]] * 2


def test_a_runtime_that_fails_or_computes_something_else_is_left_out_unless_it_was_asked_for(workers, tmp_path):
    failing = [(Runtime(name), on_disk(tmp_path)) for name in ("torch.compile", "openvino")]
    pairs = [(TORCH, on_disk(tmp_path)), *failing]
    found, failed = time_in_turns(pairs, tmp_path, Plan(1, 1))
    assert [one.runtime.name for one in found] == ["torch"] and "no luck" in failed["torch.compile"]
    assert "openvino computes something else than torch" in failed["openvino"]
    with pytest.raises(InputError, match=r"torch\.compile failed: no luck"):
        time_in_turns(pairs, tmp_path, Plan(1, 1), frozenset(["torch.compile"]))
    assert all(worker.asked[-1] == "end" for worker in workers)


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundled_files(tmp_path_factory):
    """The bundled model prepared for every kind of runtime, and a batch of three."""
    folder = tmp_path_factory.mktemp("bench")
    images = random_images((1, 28, 28), 3)
    np.save(folder / "images.npy", images)
    candidate = Candidate("dense", "bundled", 0.0, lambda: load_model("bundled"))
    return prepare(candidate, images, folder / "model", {"folder", "onnx"}), folder / "images.npy"


def test_runtimes_in_processes_of_their_own_answer_what_torch_answers(bundled_files, tmp_path):
    model, images = bundled_files
    for runtime in (TORCH, ORT):
        with Worker(runtime, 1, False) as worker:
            source = model.files[runtime.reads]
            loaded = worker.ask(
                "load", runtime=runtime.name, model=str(source), images=str(images), threads=1, spin=False
            )
            assert loaded["version"] and loaded["seconds"] > 0
            worker.ask("outputs", file=str(tmp_path / "outputs.npy"))
            assert difference_of(np.load(tmp_path / "outputs.npy"), model.reference) < 1e-5
            times = worker.ask("time", calls=3)["times"]
            assert len(times) == 3 and all(0 < seconds < 60 for seconds in times)
            assert 10e6 < worker.ask("memory")["bytes"] < 10e9


def test_what_goes_wrong_in_a_process_is_told_with_its_words(tmp_path):
    with Worker(ORT, 1, False) as worker:
        with pytest.raises(InputError, match="The runtime onnxruntime failed: AssertionError: nothing is loaded"):
            worker.ask("time", calls=1)
        with pytest.raises(InputError, match="onnxruntime failed: FileNotFoundError"):
            worker.ask(
                "load", runtime="onnxruntime", model="none", images=str(tmp_path / "none.npy"), threads=1, spin=False
            )


def test_a_process_that_ends_or_does_not_answer_is_told(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    monkeypatch.setattr("secateur.benchmark.process.WORKER", script)
    script.write_text("import sys\nsys.exit('no such engine')\n")
    with Worker(ORT, 1, False) as worker, pytest.raises(InputError, match=r"ended with code 1: no such engine\."):
        worker.ask("time", calls=1)
    script.write_text("import time\ntime.sleep(60)\n")
    with Worker(ORT, 1, False, patience=0.2, grace=0.1) as worker, pytest.raises(InputError, match="has not answered"):
        worker.ask("time", calls=1)


def test_the_worker_prints_nothing_between_its_answers_and_asks_for_no_package_but_the_runtimes(tmp_path):
    engine = tmp_path / "deepsparse.py"
    engine.write_text(
        "import sys\n"
        "__version__ = '1.8.0'\n"
        "class Engine:\n"
        "    def run(self, inputs, val_inp): print('noise'); return [inputs[0].reshape(len(inputs[0]), -1)[:, :2]]\n"
        "def compile_model(path, batch_size, num_cores):\n"
        "    assert not {'torch', 'secateur'} & set(sys.modules) and (batch_size, num_cores) == (3, 2)\n"
        "    return Engine()\n"
    )
    images = random_images((1, 2, 2), 3)
    np.save(tmp_path / "images.npy", images)
    runtime = Runtime("deepsparse")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with Worker(runtime, 2, False) as worker:
            words = {"model": "m.onnx", "images": str(tmp_path / "images.npy"), "threads": 2, "spin": False}
            assert worker.ask("load", runtime="deepsparse", **words)["version"] == "1.8.0"
            worker.ask("outputs", file=str(tmp_path / "outputs.npy"))
            assert np.array_equal(np.load(tmp_path / "outputs.npy"), images.reshape(3, -1)[:, :2])


# --- all together -----------------------------------------------------------------------------------------------------


def test_a_benchmark_has_a_row_for_every_runtime_and_model_and_they_agree():
    dense = Candidate("dense", "bundled", 0.0, lambda: load_model("bundled"))
    found = compare_runtimes([dense], [ORT, OWN], [2], Plan(1, 2, 0.01), frozenset(["onnxruntime"]))
    places = [(row["batch"], row["runtime"], row["model"]) for row in found["rows"]]
    assert places == [(2, "onnxruntime", "dense"), (2, "secateur", "dense")] and found["left_out"] == {}
    assert set(found["versions"]) == {"onnxruntime", "secateur"}
    for row in found["rows"]:
        assert row["difference"] < 1e-4 and len(row["rounds"]) == 2 and row["p50_ms"] <= row["p95_ms"]
        assert row["images_per_second"] == pytest.approx(row["batch"] / np.median(row["rounds"]))
    json.dumps(found, allow_nan=False)


def test_the_machine_is_described():
    found = describe_machine(2)
    assert found["threads"] == 2 and found["processor"] and found["cores"] >= 1 and found["free_bytes"] > 0
