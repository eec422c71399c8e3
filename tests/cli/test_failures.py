import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections import namedtuple

import pytest
from conftest import GREY, SMALL, a_model
from PIL import Image
from safetensors.torch import load_file, save_file

from secateur.manifest import read_manifest

PRUNE = ["prune", "--out", "OUT"]
COMPARE = ["compare", "--out", "OUT"]
PROGRAM = "import sys; from secateur.cli import main; sys.exit(main())"
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def refused(call, tmp_path):
    """Run a command that must fail: one sentence on standard error, nothing else, nothing left beside the output."""

    def run(message, *arguments, out="out", left=()):
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        found = call(*(str(home / out) if word == "OUT" else word for word in arguments))
        assert found.code == 2 and found.out == ""
        *lines, sentence = found.err.splitlines()
        assert re.search(message, sentence) and re.fullmatch(r"secateur: .*[.?]", sentence), sentence
        assert all(re.search("top-1|gone round|are numbered", line) for line in lines)  # told before it failed
        assert sorted(p.name for p in home.iterdir()) == sorted(left)

    return run


@pytest.fixture
def no_model(monkeypatch):
    """No command may load a model here: what is wrong is to be told before that."""
    monkeypatch.setattr("secateur.cli.sources.load_model", lambda *a, **k: pytest.fail("a model was loaded"))


def files(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- told before a model is loaded ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PRUNE, "--method", "capp"], r"There is no method 'capp'\. Did you mean cap or fast_cap\? The methods are "),
        ([*COMPARE, "--methods", "cap", "obs"], r"There is no method 'obs'"),
        ([*PRUNE, "--method", "cap:blok=4"], r"cap has no option 'blok'\. Did you mean block\?"),
        ([*PRUNE, "--method", "cap:globl"], r"'globl' in the method 'cap:globl' is neither .* Did you mean global\?"),
        ([*PRUNE, "--method", "cap:block=many"], r"block=many in the method .* is no number\."),
        ([*PRUNE, "--method", "cap:block=0"], r"The block of cap is 0; give a whole number"),
        ([*PRUNE, "--block", "0"], r"--block is 0; give 1 or more\."),
        ([*PRUNE, "--damping", "-1"], r"--damping is -1\.0; give 0 or more\."),
        ([*PRUNE, "--damping", "inf"], r"The damping of cap is inf; give a number"),
        ([*PRUNE, "--sparsity", "75"], r"The sparsity 75\.0 is no fraction from 0 to 1; did you mean 0\.75\?"),
        ([*COMPARE, "--sparsity", "0.5", "-0.1"], r"The sparsity -0\.1 is no fraction from 0 to 1\."),
        ([*PRUNE, "--sparsity", "nan"], r"The sparsity nan is no fraction from 0 to 1\."),
        ([*PRUNE, "--sparsity", "half"], r"The sparsity 'half' is no fraction from 0 to 1, no pattern such as 2:4,"),
        ([*COMPARE, "--sparsity", "0.5", "4:2"], r"The pattern 4:2 must keep .* did you mean 2:4\?"),
        ([*PRUNE, "--table", "nowhere.yaml"], r"The table nowhere\.yaml cannot be read: No such file or directory\."),
        ([*PRUNE, "--config", "nowhere.yaml"], r"The configuration nowhere\.yaml cannot be read: No such file"),
        ([*PRUNE, "--samples", "0"], r"--samples is 0; give 1 or more\."),
        ([*PRUNE, "--seed", "-1"], r"--seed is -1; give 0 or more\."),
        ([*COMPARE, "--seeds", "0", "-1"], r"--seeds is -1; give 0 or more\."),
        ([*PRUNE, "--reprob", "2"], r"--reprob is 2\.0; give a number from 0 to 1\."),
        ([*PRUNE, "--eval-samples", "0"], r"--eval-samples is 0; give 1 or more\."),
        ([*PRUNE, "--recomputations", "0"], r"--recomputations is 0; give 1 or more\."),
        ([*PRUNE, "--threads", "0"], r"--threads is 0; give 1 or more\."),
        ([*PRUNE, "--samples", "64", "--samples-per-gradient", "128"], r"128, more than the 64 images of --samples"),
        ([*PRUNE, "--device", "gpu"], r"The device 'gpu' cannot be used \(.*\); try cpu\."),
        ([*PRUNE, "--device", "meta"], r"The device 'meta' cannot be used"),
        ([*PRUNE, "--data-dir", "nowhere"], r"There is no data folder nowhere; give one that exists\."),
        ([*COMPARE, "--data-dir", "nowhere"], r"There is no data folder nowhere"),
        (["eval", "--data-dir", "nowhere"], r"There is no data folder nowhere"),
        ([*PRUNE, "--dataset", "imagenet"], r"There is no dataset 'imagenet'\."),
        (["prune"], r"`secateur prune` needs --out: folder to write\."),
        (["inspect", "nowhere"], r"There is no folder nowhere; give one that secateur wrote\."),
        (["inspect"], r"`secateur inspect` needs FOLDER: "),
    ],
)
def test_a_bad_argument_is_told_before_any_work(refused, no_model, arguments, message):
    refused(message, *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"should hold lines of `layer pattern: sparsity`\."),
        ("0.5", r"should hold lines of"),
        ("1: 0.5", r"should hold lines of"),
        ("'*.fc1': 75", r"The sparsity 75 of '\*\.fc1' in .*table\.yaml is no fraction .* did you mean 0\.75\?"),
        ("'*.fc1': half", r"The sparsity 'half' of '\*\.fc1' in .* is no fraction"),
        ("'*.fc1': 4:4", r"The pattern 4:4 of '\*\.fc1' in .*table\.yaml must keep"),
    ],
)
def test_a_bad_table_is_told_before_any_work(refused, no_model, tmp_path, text, message):
    (tmp_path / "table.yaml").write_text(text)
    refused(message, *PRUNE, "--table", tmp_path / "table.yaml")


def test_an_empty_data_folder_is_told_before_any_work(refused, no_model, tmp_path):
    (tmp_path / "data").mkdir()
    refused(
        r"The data folder .*data is empty; give one that holds class folders", *PRUNE, "--data-dir", tmp_path / "data"
    )


@pytest.mark.parametrize("command", [PRUNE, COMPARE])
def test_an_output_that_exists_stays_as_it_is(refused, no_model, tmp_path, command):
    (tmp_path / "home" / "out").mkdir(parents=True)
    (tmp_path / "home" / "out" / "notes.txt").write_text("mine")
    refused(r"out exists already; name another one or pass --overwrite\.", *command, left=["out"])
    refused(r"out was not written by secateur, so --overwrite leaves it", *command, "--overwrite", left=["out"])
    refused(r"cannot be made: .*notes\.txt is a file", *command, out="out/notes.txt/new", left=["out"])
    assert files(tmp_path / "home") == {tmp_path / "home" / "out" / "notes.txt": b"mine"}


@pytest.mark.parametrize("command", [PRUNE, COMPARE])
def test_a_parent_that_cannot_be_written_is_told_before_any_work(refused, no_model, monkeypatch, command):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write anywhere
    refused(r"out cannot be made: no permission to write in .*home\.", *command)


# --- told once the model is there, before the first gradient ----------------------------------------------------------


@pytest.fixture
def no_work(monkeypatch):
    """No command may measure a model or collect gradients here."""
    for work in ("evaluation.evaluate", "comparison.compare"):
        monkeypatch.setattr(f"secateur.{work}", lambda *a, **k: pytest.fail("work had begun"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "vit_tinny_patch16_224"],
            r"timm has no model 'vit_tinny_patch16_224'\. Did you mean vit_tiny_patch16",
        ),
        (["--model", "no/such/folder"], r"There is no model folder 'no/such/folder'"),
        (
            ["--checkpoint", "weights.pt"],
            r"The checkpoint weights\.pt is no \.safetensors file, and pickles are not opened",
        ),
        (["--checkpoint", "gone.safetensors"], r"There is no checkpoint gone\.safetensors"),
        (["--layers", "blocks.9.*"], r"The pattern 'blocks\.9\.\*' matches no layer of VisionTransformer\."),
        (["--layers", "re:["], r"'re:\[' is no regular expression"),
        (["--split", "tset"], r"The bundled images have no split 'tset'"),
        (["--aa", "rand-9"], r"timm knows no augmentation 'rand-9'"),
        (["--image-size", "29"], r"The model was built for images of 28×28, not 29×29"),
        (["--num-classes", "5"], r"bundled has label 9 \(ankle boot\), but the model has 5 classes"),
    ],
)
@pytest.mark.parametrize("command", [PRUNE, COMPARE])
def test_what_needs_the_model_is_told_before_the_first_gradient(refused, no_work, grey, command, arguments, message):
    refused(message, *command, "--model", grey, *arguments, *SMALL)


def test_a_table_whose_pattern_matches_nothing_is_told(refused, no_work, grey, tmp_path):
    (tmp_path / "table.yaml").write_text("'*.fc3': 0.5")
    refused(r"The pattern '\*\.fc3' matches no layer", *PRUNE, "--model", grey, "--table", tmp_path / "table.yaml")


def test_a_pattern_that_no_layer_takes_or_that_blocks_cut_is_told(refused, no_work, grey):
    refused(r"No layer can take the pattern 2:5\. .* choose", *PRUNE, "--model", grey, "--sparsity", "2:5", *SMALL)
    words = ("--model", grey, "--sparsity", "0.5", "4:8", "--samples", "32", "--block", "10")
    refused(r"cap needs blocks of whole groups: .* try block=8\.", *PRUNE, *words)


def test_a_sparsity_below_what_is_there_is_told(refused, no_work, pruned):
    refused(r"zeros of \d+ already, more than the \d+ asked for", *PRUNE, "--model", pruned, "--sparsity", "0.25")


def test_a_model_of_other_images_needs_its_own(refused, no_work, colour):
    refused(r"This model needs images: give --data-dir FOLDER, or --dataset NAME", *PRUNE, "--model", colour)


def test_labels_beyond_the_classes_are_told(refused, no_work, colour, images, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("ant", "bee", "cat", "dog"):
        (data / name).symlink_to(images / "ant")
    message = r"data has label 3 \(dog\), but the model has 3 classes; give a class map"
    refused(message, *PRUNE, "--model", colour, "--data-dir", data)


def test_a_folder_without_images_is_told(refused, no_work, colour, tmp_path):
    (tmp_path / "data" / "ant").mkdir(parents=True)
    refused(r"data holds no image in a class folder", *PRUNE, "--model", colour, "--data-dir", tmp_path / "data")


@pytest.mark.parametrize("damage", ["no image at all", "half of one"])
def test_an_unreadable_image_is_named_or_left_out(refused, call, colour, images, tmp_path, damage):
    data, out = tmp_path / "data", tmp_path / "out"
    for name in ("ant", "bee"):
        (data / name).mkdir(parents=True)
        for i in range(2):
            Image.open(images / name / f"{i}.png").save(data / name / f"{i}.png")
    whole = (data / "bee" / "1.png").read_bytes()
    (data / "bee" / "1.png").write_bytes(whole[: len(whole) // 2] if damage == "half of one" else b"soon an image")
    words = ("--model", colour, "--data-dir", data, "--workers", "0", "--samples", "8", "--block", "8")
    refused(r"data/bee/1\.png cannot be read as an image \(.*\); repair or remove it, or pass", *PRUNE, *words)
    found = call("prune", "--out", out, *words, "--skip-unreadable")
    assert found.code == 0 and (out / "model.safetensors").exists()
    assert len(re.findall(r"Left out .*data/bee/1\.png: ", found.err)) == 1
    assert read_manifest(out)["run"]["data"]["skipped"] == [str(data / "bee" / "1.png")]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_told(refused, no_work, grey, tmp_path, value):
    weights = load_file(grey / "model.safetensors")
    weights["blocks.1.mlp.fc1.weight"][0, 0] = value
    save_file(weights, tmp_path / "broken.safetensors")
    message = r"1 of the 1024 values of blocks\.1\.mlp\.fc1\.weight are NaN or infinite; load intact weights\."
    refused(message, *PRUNE, "--model", grey, "--checkpoint", tmp_path / "broken.safetensors")


@pytest.mark.parametrize(("command", "copies"), [(PRUNE, 2), (COMPARE, 12)])
def test_a_disk_without_room_is_told_before_the_first_gradient(refused, no_work, grey, monkeypatch, command, copies):
    size = sum(tensor.nbytes for tensor in load_file(grey / "model.safetensors").values())
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(10**12, 10**12, copies * size))  # none for the masks
    message = r"The disk is full: writing .*out needs .* KiB, .* KiB free; make room or name another folder\."
    refused(message, *command, "--model", grey, "--sparsity", "0.5", "0.75", *SMALL)


# --- told in the middle of the work -----------------------------------------------------------------------------------


def overflow_outputs(model):
    model.head.weight.data.mul_(1e38)
    model.norm.weight.data.mul_(1e38)


def overflow_gradients(model):
    """A finite loss: steep is only the way from the last layers, whose inputs are large, to it."""
    model.head.weight.data.mul_(1e36)
    model.blocks[1].mlp.fc1.bias.data.fill_(1e6)
    model.blocks[1].mlp.fc2.weight.data.mul_(1e-6)


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (overflow_outputs, [], r"The model's outputs for batch 0 are NaN or infinite"),
        (overflow_outputs, ["--no-evaluate"], r"The loss of batch 0 is (nan|inf)"),
        (overflow_gradients, [], r"The gradient of blocks\.1\.mlp\.fc2\.weight is not finite in batch 0"),
    ],
)
def test_what_overflows_is_told_with_its_batch_and_layer(refused, tmp_path, change, flags, message):
    refused(message, *PRUNE, "--model", a_model(tmp_path / "model", change, **GREY), *SMALL, *flags)


@pytest.mark.parametrize("command", [PRUNE, COMPARE])
def test_a_full_disk_in_the_middle_of_writing_leaves_nothing(refused, grey, monkeypatch, command):
    written = []

    def save_some(tensors, path, metadata):
        written.append(path)
        path.write_bytes(b"half")
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, path, metadata)

    monkeypatch.setattr("secateur.tensor_files.save_file", save_some)
    message = r"The disk is full: writing .* free; make room or name another folder\."
    refused(message, *command, "--model", grey, "--sparsity", "0.5", "0.75", *SMALL)
    assert len(written) == 3


@pytest.mark.parametrize(
    "place",
    ["secateur.gradients.stream.summed_loss", "secateur.evaluation.batch_inputs", "secateur.checkpoint.write_config"],
)
@pytest.mark.parametrize("command", [[*PRUNE, "--sparsity", "0.5"], [*PRUNE, "--sparsity", "0.5", "0.75"], COMPARE])
def test_ctrl_c_leaves_nothing(refused, grey, monkeypatch, command, place):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupt)
    refused(r"stopped before the end; nothing half-written is left\.", *command, "--model", grey, *SMALL)


def test_ctrl_c_while_overwriting_leaves_what_was_there(call, run, grey, monkeypatch):
    before = files(run)
    monkeypatch.setattr("secateur.checkpoint.write_config", lambda *a: os.kill(os.getpid(), signal.SIGINT))
    assert call("prune", "--model", grey, "--out", run, "--overwrite", *SMALL).code == 2
    assert files(run) == before and [p.name for p in run.parent.iterdir()] == [run.name]


def test_a_signal_in_the_middle_of_the_work_stops_the_program_cleanly(grey, tmp_path):
    words = ["compare", "--model", grey, "--methods", "cap", "--samples", "8000000", "--eval-samples", "20"]
    programs = {
        number: subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, words), "--out", number.name],
            cwd=tmp_path, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for number in (signal.SIGINT, signal.SIGTERM)
    }  # fmt: skip
    while len(list(tmp_path.iterdir())) < 2:  # the folders that are written to
        assert all(program.poll() is None for program in programs.values())
        time.sleep(0.1)
    for number, program in programs.items():
        os.killpg(program.pid, number)
        try:
            out, err = program.communicate(timeout=60)
        finally:
            program.kill()
        assert (program.returncode, out) == (2, "")
        assert err.splitlines()[-1] == "secateur: stopped before the end; nothing half-written is left."
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["methods", "--json"], ["prune", "--help"]])
def test_standard_output_on_a_full_disk_is_told(arguments):
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (found.returncode, found.stderr) == (2, "secateur: the system refused: No space left on device.\n")
