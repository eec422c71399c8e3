import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
import timm
import torch
from conftest import COLOUR, SMALL
from safetensors.torch import load_file, save_file

import secateur
from secateur.checkpoint import load_masks, save
from secateur.cli import main
from secateur.cli.console import Console
from secateur.manifest import read_manifest, write_manifest
from secateur.solvers import METHODS
from secateur.tensor_files import describe_file, pack_mask, read_metadata

ROW = ("method", "sparsity", "achieved", "top1", "loss", "predicted_loss_increase", "seconds")


def zeros_of(folder):
    """(zeros, total) of the pruned layers, counted in the file."""
    weights, masks = load_file(folder / "model.safetensors"), load_masks(folder)
    return sum(int((weights[n] == 0).sum()) for n in masks), sum(weights[n].numel() for n in masks)


# --- prune ------------------------------------------------------------------------------------------------------------


def test_the_pruned_model_has_exactly_its_zeros_and_says_how_it_was_made(pruned):
    zeros, total = zeros_of(pruned)
    manifest = read_manifest(pruned)
    assert zeros == manifest["zeros"] == round(0.5 * total)
    assert {"method": "cap", "seed": 0, "sparsity": 0.5, "gradients": 32}.items() <= manifest["run"].items()
    assert manifest["run"]["data"] == {
        "calibration": "bundled", "samples": 32, "augment": "train", "evaluation": "bundled", "images": 20,
        "skipped": [],
    }  # fmt: skip


def test_the_saved_folder_opens_in_plain_timm_with_the_same_logits(pruned):
    script = (
        "import sys, timm, torch\n"
        "model = timm.create_model(f'local-dir:{sys.argv[1]}', pretrained=True).eval()\n"
        "with torch.inference_mode(): torch.save(model(torch.load(sys.argv[2])), sys.argv[2])\n"
        "assert not any(name.startswith('secateur') for name in sys.modules)"
    )
    images, file = torch.randn(2, 1, 28, 28), pruned.parent / "images.pt"
    torch.save(images, file)
    subprocess.run([sys.executable, "-c", script, pruned, file], check=True)
    with torch.inference_mode():
        assert torch.equal(secateur.load(pruned)[0](images), torch.load(file))
        assert torch.equal(secateur.load_model(str(pruned))(images), torch.load(file))


def test_several_sparsities_are_folders_below_the_output_named_after_them(call, grey, tmp_path):
    wanted = ["0", "0.123456789", "0.5", "1"]
    words = ("--method", "magnitude", "--no-evaluate", "--sparsity", *wanted, "0.50")
    found = call("prune", "--model", grey, *words, "--out", tmp_path / "out")
    assert found.code == 0 and sorted(os.listdir(tmp_path / "out")) == wanted
    for name in wanted:
        zeros, total = zeros_of(tmp_path / "out" / name)
        assert zeros == round(float(name) * total)
    assert found.out.count(str(tmp_path / "out")) == 4
    assert call("inspect", tmp_path / "out").code == 0


def test_prune_prints_one_document_with_a_row_for_each_sparsity(call, grey, tmp_path):
    found = call("prune", "--model", grey, "--sparsity", "0.5", "0.9", "--out", tmp_path / "out", *SMALL, "--json")
    document = json.loads(found.out)
    assert found.code == 0 and [row["sparsity"] for row in document["rows"]] == [0.5, 0.9]
    assert all(set(ROW) < set(row) for row in document["rows"]) and document["dense"]["images"] == 20
    assert [row["checkpoint"] for row in document["rows"]] == [str(tmp_path / "out" / s) for s in ("0.5", "0.9")]


def test_pruning_a_run_directory_further_keeps_its_zeros(call, pruned, tmp_path):
    out = tmp_path / "more"
    assert call("prune", "--model", pruned, "--sparsity", "0.75", "--out", out, *SMALL, "--no-evaluate").code == 0
    zeros, total = zeros_of(out)
    before, after = load_masks(pruned), load_masks(out)
    assert zeros == round(0.75 * total) and all(not (after[n] & ~before[n]).any() for n in before)


def test_magnitude_needs_no_images(call, colour, tmp_path):
    out = tmp_path / "out"
    found = call("prune", "--model", colour, "--method", "magnitude", "--no-evaluate", "--out", out, "--json")
    row = json.loads(found.out)["rows"][0]
    assert found.code == 0 and row["predicted_loss_increase"] is None and row["top1"] is None
    weights, masks = load_file(colour / "model.safetensors"), load_masks(out)
    kept = torch.cat([weights[n].abs()[m] for n, m in masks.items()])
    dropped = torch.cat([weights[n].abs()[~m] for n, m in masks.items()])
    assert dropped.max() <= kept.min()


def test_a_table_gives_each_layer_its_own_sparsity(call, grey, tmp_path):
    (tmp_path / "table.yaml").write_text("'blocks.0.*': 0.25\n'*.fc1': 1\n")
    arguments = ("--table", tmp_path / "table.yaml", "--out", tmp_path / "out", "--no-evaluate", *SMALL)
    assert call("prune", "--model", grey, *arguments).code == 0
    kept = {name: mask.float().mean().item() for name, mask in load_masks(tmp_path / "out").items()}
    assert kept["blocks.0.mlp.fc1.weight"] == kept["blocks.0.attn.qkv.weight"] == 0.75
    assert kept["blocks.1.mlp.fc1.weight"] == 0 and kept["blocks.1.mlp.fc2.weight"] == 1


def test_fractions_and_patterns_are_made_in_one_run_each_in_a_folder(call, grey, tmp_path):
    words = ("prune", "--model", grey, "--sparsity", "0.5", "2:4", "4:8", "2:4", "--out", tmp_path / "out", *SMALL)
    found = call(*words)
    assert found.code == 0 and sorted(os.listdir(tmp_path / "out")) == ["0.5", "2of4", "4of8"]
    shown = [line.split()[:2] for line in found.out.splitlines() if str(tmp_path / "out") in line]
    assert shown == [["0.5", "0.5000"], ["2:4", "0.5000"], ["4:8", "0.5000"]]
    for name, pattern in {"0.5": "unstructured", "2of4": "2:4", "4of8": "4:8"}.items():
        zeros, total = zeros_of(tmp_path / "out" / name)
        manifest = read_manifest(tmp_path / "out" / name)
        assert zeros == total / 2 and manifest["pattern"] == pattern
        assert {layer["pattern"] for layer in manifest["layers"]} == {pattern}
    held = call("inspect", tmp_path / "out" / "2of4").out
    assert "2:4 held in 1,536 of 1,536 groups." in held and "(50.0000 %), 2:4: the file" in held
    assert call("inspect", tmp_path / "out").code == 0


def test_a_table_mixes_patterns_fractions_and_dense_layers(call, grey, tmp_path):
    (tmp_path / "table.yaml").write_text("'*.fc1': 2:4\n'*.fc2': 1:4\n'*.qkv': dense\n'*': 0.3\n")
    arguments = ("--table", tmp_path / "table.yaml", "--out", tmp_path / "out", "--no-evaluate", "--json", *SMALL)
    document = json.loads(call("prune", "--model", grey, *arguments).out)
    manifest = read_manifest(tmp_path / "out")
    kept = {name: mask.float().mean().item() for name, mask in load_masks(tmp_path / "out").items()}
    assert [round(kept[f"blocks.0.{name}.weight"], 2) for name in ("mlp.fc1", "mlp.fc2", "attn.qkv")] == [0.5, 0.25, 1]
    assert manifest["pattern"] == "unstructured, 2:4, 1:4" and manifest["run"]["allocation"] == "table"
    row = document["rows"][0]
    assert row["asked"] == {"*.fc1": "2:4", "*.fc2": "1:4", "*.qkv": 0.0, "*": 0.3} == manifest["run"]["sparsity"]
    assert row["sparsity"] == row["achieved"]


def test_layers_that_cannot_take_a_pattern_are_told_stored_and_shown_again(call, grey, tmp_path):
    words = ("--model", grey, "--layers", "patch_embed.proj", "blocks.0.*", "--sparsity", "2:4", "--json", *SMALL)
    told = "patch_embed.proj.weight stays as it is, not 2:4: its 1 input channels are no multiple of 4."
    for command, more in (("prune", ("--out", tmp_path / "out")), ("compare", ("--methods", "magnitude", "cap"))):
        for row in json.loads(call(command, *words, *more, *(["--overwrite"] * (command == "prune"))).out)["rows"]:
            assert row["left_out"] == {"patch_embed.proj.weight": "its 1 input channels are no multiple of 4"}
        shown = call(command, *[w for w in words if w != "--json"], *more, "--overwrite")
        assert shown.out.splitlines().count(told) == 1, shown
    found = call("inspect", tmp_path / "out")
    assert "patch_embed.proj.weight was left out: its 1 input channels are no multiple of 4." in found.out
    assert found.code == 0 and "held in 768 of 768 groups" in found.out


def test_a_configuration_file_does_what_the_flags_do(call, grey, pruned, tmp_path):
    (tmp_path / "run.yaml").write_text(f"model: {grey}\nsparsity: 0.5\nsamples: 32\neval-samples: 20\nblock: 16\n")
    assert call("prune", "--config", tmp_path / "run.yaml", "--out", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (pruned / "model.safetensors").read_bytes()


def test_the_fisher_can_be_made_again_on_the_way(call, grey, tmp_path):
    out = tmp_path / "out"
    assert call("prune", "--model", grey, "--recomputations", "2", "--sparsity", "0.9", "--out", out, *SMALL).code == 0
    zeros, total = zeros_of(out)
    assert zeros == round(0.9 * total) and read_manifest(out)["run"]["recomputations"] == 2


def test_overwrite_replaces_a_run_directory_only(call, grey, run, tmp_path):
    again = ("prune", "--model", grey, "--method", "magnitude", "--no-evaluate", "--overwrite", "--out")
    assert call(*again, run).code == 0 and read_manifest(run)["run"]["method"] == "magnitude"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").touch()
    assert call(*again, tmp_path / "thesis").code == 2 and (tmp_path / "thesis" / "chapter1.txt").exists()


def test_a_folder_of_images_feeds_a_colour_model(call, colour, images, tmp_path):
    arguments = ("--data-dir", images, "--workers", "0", "--samples", "40", "--block", "16")
    found = call("prune", "--model", colour, *arguments, "--out", tmp_path / "out", "--json")
    assert found.code == 0 and json.loads(found.out)["dense"]["images"] == 18
    assert "has 18 images, so they are gone round 2.22 times" in found.err


# --- compare ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(grey, tmp_path_factory):
    """A comparison of two seeds: its folder, the document on standard output, and what stood on standard error."""
    folder, out, err = tmp_path_factory.mktemp("runs") / "compared", io.StringIO(), io.StringIO()
    words = ["compare", "--model", str(grey), "--methods", "magnitude", "cap:block=8", "cap:block=8"]
    words += ["--sparsity", "0.5", "0.75", "0.50", "--seeds", "0", "1", "--out", str(folder), "--json", *SMALL]
    with redirect_stdout(out), redirect_stderr(err):
        assert main(words) == 0
    return folder, json.loads(out.getvalue()), err.getvalue()


def test_compare_prints_one_document_with_a_row_for_every_run(compared):
    _, document, _ = compared
    rows = [(r["label"], r["sparsity"], r["seed"]) for r in document["rows"]]
    assert rows == [(label, s, seed) for seed in (0, 1) for label in ("magnitude", "cap:block=8") for s in (0.5, 0.75)]
    for row in document["rows"]:
        assert set(ROW) < set(row) and row["achieved"] == row["zeros"] / row["total"] == row["sparsity"]
        assert all(isinstance(row[key], float) for key in ROW[1:])


def test_compare_saves_every_model_and_a_report(compared, call):
    folder, document, notes = compared
    assert json.loads((folder / "report.json").read_text()) == document
    assert {row["checkpoint"] for row in document["rows"]} == {
        f"checkpoints/{name}" for name in os.listdir(folder / "checkpoints")
    }
    assert "checkpoints/cap-block=8-0.75-seed1" in {row["checkpoint"] for row in document["rows"]}
    assert (folder / "report.html").stat().st_size > 10_000
    assert notes.count("top-1") == notes.count("\n") == 8  # a line a run where no bars can be seen
    inspected = json.loads(call("inspect", folder, "--json").out)
    assert inspected["ok"] and len(inspected["checkpoints"]) == 8


def test_compare_shows_means_over_the_seeds_at_80_columns(call, grey, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ("--methods", "magnitude:uniform", "cap:uniform:block=8", "--sparsity", "0.5", "0.75", "--seeds")
    found = call("compare", "--model", grey, *arguments, "0", "1", "2", *SMALL)
    lines = found.out.splitlines()
    assert found.code == 0 and max(map(len, lines)) <= 80 and "…" not in found.out
    assert [line.split()[0] for line in lines if "uniform" in line] == ["magnitude:uniform", "cap:uniform:block=8"] * 2
    assert "±" in found.out and "Means over 3 seeds ± standard deviation." in lines
    assert "The gradients of 32 images were collected once for all methods." in lines


def test_compare_makes_patterns_beside_fractions(call, grey, tmp_path):
    words = ("compare", "--model", grey, "--methods", "magnitude", "cap", "--out", tmp_path / "out", *SMALL)
    found = call(*words, "--sparsity", "0.75", "2:4", "0.5", "1:4")
    rows = [line.split()[:2] for line in found.out.splitlines() if line.strip().startswith(("magnitude", "cap"))]
    order = ("0.5", "2:4", "0.75", "1:4")
    assert found.code == 0 and rows == [[method, asked] for asked in order for method in ("magnitude", "cap")]
    assert {"cap-2of4", "magnitude-0.75"} < set(os.listdir(tmp_path / "out" / "checkpoints"))
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {(row["asked"], row["sparsity"]) for row in document["rows"]} == {
        (0.5, 0.5), ("2:4", 0.5), (0.75, 0.75), ("1:4", 0.75)
    }  # fmt: skip
    assert "CAP (2:4)" in (tmp_path / "out" / "report.html").read_text()


def test_all_stands_for_every_method_with_what_follows_it(call, grey):
    words = ("--methods", "all", "cap:block=8", "all:uniform", "cap", "--sparsity", "0.5", "--json")
    rows = json.loads(call("compare", "--model", grey, *words, *SMALL).out)["rows"]
    assert [row["label"] for row in rows] == [*METHODS, "cap:block=8", *(f"{name}:uniform" for name in METHODS)]
    assert {row["allocation"] for row in rows[: len(METHODS)]} == {"global"}
    assert len({row["zeros"] for row in rows}) == 1


def test_without_an_output_folder_compare_writes_nothing(call, grey, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = call("compare", "--model", grey, "--methods", "magnitude", "--sparsity", "0.5", *SMALL)
    assert found.code == 0 and not list(tmp_path.iterdir()) and "gradients" not in found.out


# --- inspect ----------------------------------------------------------------------------------------------------------


def flip_weight(run):
    tensors, masks = load_file(run / "model.safetensors"), load_masks(run)
    name, mask = next(iter(masks.items()))
    tensors[name][tuple((~mask).nonzero()[0])] = 1e-30
    save_file(tensors, run / "model.safetensors", {"format": "pt"})
    reseal(run, "model.safetensors")


def flip_mask(run):
    masks = load_masks(run)
    name = next(iter(masks))
    masks[name].view(-1)[0] ^= True
    header = read_metadata(run / "masks.safetensors")
    save_file({n: pack_mask(m) for n, m in masks.items()}, run / "masks.safetensors", header)
    reseal(run, "masks.safetensors")


def change_count(run):
    manifest = read_manifest(run)
    manifest["layers"][0]["zeros"] += 1
    write_manifest(run, manifest)


def flip_byte(run):
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (run / "model.safetensors").write_bytes(data)


def edit_manifest(run):
    text = (run / "secateur.json").read_text()
    (run / "secateur.json").write_text(text.replace('"method": "cap"', '"method": "cup"'))


def reseal(run, name):
    manifest = read_manifest(run)
    manifest["files"][name] = describe_file(run / name)
    write_manifest(run, manifest)


def test_inspect_certifies_the_zeros_by_layer(call, pruned):
    document = json.loads(call("inspect", "--json", pruned).out)
    weights = load_file(pruned / "model.safetensors")
    assert (document["zeros"], document["total"]) == zeros_of(pruned)
    assert document["sparsity"] == 0.5 and document["pattern"] == "unstructured" and document["ok"] is True
    for layer in document["layers"]:
        assert layer["zeros"] == int((weights[layer["name"]] == 0).sum())
        assert layer["total"] == weights[layer["name"]].numel()
    found = call("inspect", pruned)
    assert found.code == 0 and "(50.0000 %), unstructured: the file, the masks and the manifest agree." in found.out


@pytest.mark.parametrize("tamper", [flip_weight, flip_mask, change_count, flip_byte, edit_manifest])
def test_inspect_exits_with_1_after_any_tampering(call, run, tamper):
    tamper(run)
    found = call("inspect", run, "--json")
    assert found.code == 1 and json.loads(found.out)["ok"] is False
    shown = call("inspect", run)
    assert shown.code == 1 and "NOT what its manifest says" in shown.out
    assert all(f"  {problem}" in shown.out for problem in json.loads(found.out)["problems"])


def test_inspect_finds_the_one_bad_model_among_several(call, pruned, tmp_path):
    for name in ("good", "bad"):
        shutil.copytree(pruned, tmp_path / "both" / name)
    change_count(tmp_path / "both" / "bad")
    found = call("inspect", tmp_path / "both", "--json")
    verdicts = {entry["path"]: entry["ok"] for entry in json.loads(found.out)["checkpoints"]}
    assert found.code == 1 and verdicts == {"bad": False, "good": True}
    assert call("inspect", tmp_path / "both").code == 1


# --- the others -------------------------------------------------------------------------------------------------------


def test_eval_agrees_with_a_loop_over_the_images(call, colour, images):
    found = call("eval", "--model", colour, "--data-dir", images, "--workers", "0", "--json")
    model = secateur.load_model(str(colour))
    source = secateur.DataSource(data_dir=images, workers=0)
    x, y = map(torch.cat, zip(*secateur.evaluation_batches(source, model), strict=True))
    with torch.inference_mode():
        logits = model(x)
    document = json.loads(found.out)
    assert found.code == 0 and document["images"] == 18
    assert document["top1"] == pytest.approx(100 * (logits.argmax(1) == y).float().mean().item())
    assert document["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item())
    assert "18 images" in call("eval", "--model", colour, "--data-dir", images, "--workers", "0").out


def test_methods_lists_every_method_with_its_options(call):
    rows = json.loads(call("methods", "--json").out)
    assert [row["name"] for row in rows] == list(METHODS)
    assert all(row["options"]["block"] == METHODS[row["name"]]().block for row in rows)
    assert all(row[key] for row in rows for key in ("summary", "paper", "cost", "memory"))
    assert [row["name"] for row in rows if not row["needs_gradients"]] == ["magnitude"]
    assert all(row["patterns"] == ["unstructured", "N:M"] for row in rows)
    table = call("methods").out
    assert all(name in table for name in METHODS) and f"block={METHODS['cap']().block}" in table


def test_doctor_reports_versions_and_faults(call, monkeypatch):
    found = call("doctor", "--json")
    document = json.loads(found.out)
    assert found.code == 0 and document["ok"] and document["facts"]["timm"] == timm.__version__
    assert torch.__version__.startswith(document["facts"]["torch"])
    assert call("doctor").code == 0
    monkeypatch.setattr("secateur.bundled.MODEL_FOLDER", secateur.bundled.FOLDER / "nowhere")
    found = call("doctor")
    assert found.code == 1 and "fault: the package lacks its bundled model." in found.out


def test_a_core_that_was_not_built_is_said_in_words(call, monkeypatch):
    absent = {"present": False, "isa": None, "isas": [], "reason": "it was not built"}
    monkeypatch.setattr("secateur.native.describe", lambda: absent)
    assert "absent (it was not built)" in " ".join(call("doctor").out.split())


# --- what all of them print -------------------------------------------------------------------------------------------


def test_a_table_never_cuts_a_number_nor_reads_names_as_markup(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    Console().table("runs[1]", ["name", "zeros", "part"], [("[red]a", 123456789012, 1e-5), ("b", None, 0.25)] * 2)
    out = capsys.readouterr().out
    assert "runs[1]" in out and "[red]a  123,456,789,012  1.0e-05" in out and "…" not in out
    assert "b                     –   0.2500" in out


def test_a_title_is_broken_between_words_and_never_inside_a_path(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    Console().table("a/path/that/is/longer/than/the/window on 20 images", ["zeros"], [(1,)])
    assert capsys.readouterr().out.startswith("a/path/that/is/longer/than/the/window\non 20 images\n")


def test_accuracies_have_two_digits_however_large_they_are(call, grey, tmp_path):
    found = call("prune", "--model", grey, "--sparsity", "1", "--method", "magnitude", "--out", tmp_path / "o", *SMALL)
    assert re.search(r"^ +1 +1\.0000 +[\d,]+ +\d+\.\d\d ", found.out, re.MULTILINE)
    found = call("eval", "--model", grey, "--eval-samples", "20")
    assert re.search(r"^ +\d+\.\d\d +\d+\.\d\d +\d\.\d{4} +\d+\.\d$", found.out, re.MULTILINE)


def test_a_reader_that_leaves_is_no_failure(pruned):
    script = "import sys; from secateur.cli import main; sys.exit(main())"
    for arguments in (["inspect", pruned, "--json"], ["prune", "--help"]):
        words = " ".join(map(str, [sys.executable, "-c", f"'{script}'", *arguments]))
        found = subprocess.run(
            ["bash", "-c", f"{words} | true; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True
        )
        assert (found.stdout, found.stderr) == ("0\n", "")


def test_a_locale_without_our_characters_is_no_failure():
    script = "import sys; from secateur.cli import main; sys.exit(main())"
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    found = subprocess.run([sys.executable, "-c", script, "prune", "--help"], env=ascii_only, capture_output=True)
    assert (found.returncode, found.stderr) == (0, b"") and rb"hf-hub:\u2026" in found.stdout


@pytest.mark.parametrize(
    ("command", "own", "saved"),
    [
        ("prune", ("--method", "magnitude", "--sparsity", "0.5", "--no-evaluate"), ""),
        ("compare", ("--methods", "magnitude", "--sparsity", "0.5"), "checkpoints/magnitude-0.5"),
    ],
)
def test_a_model_with_batch_normalisation_is_measured_again(call, images, tmp_path, command, own, saved):
    torch.manual_seed(0)
    dense = tmp_path / "dense"
    save(timm.create_model("test_resnet", num_classes=COLOUR["num_classes"]), {}, dense)
    data = ("--data-dir", images, "--workers", "0", "--image-size", "32", "--samples", "8", "--augment", "validation")
    for flag, changed in (("--recalibrate", True), ("--no-recalibrate", False)):
        out = tmp_path / flag
        assert call(command, "--model", dense, *own, *data, "--out", out, flag).code == 0
        before, after = (load_file(f / "model.safetensors") for f in (dense, out / saved))
        assert any(not torch.equal(before[n], after[n]) for n in before if "running" in n) == changed
