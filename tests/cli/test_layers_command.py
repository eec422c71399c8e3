"""What `secateur layers` shows, and what --settings says where nothing else does."""

import json
import re
from pathlib import Path

import pytest

from secateur.cli import COMMANDS
from secateur.cli.options import Parser, add_flags
from secateur.cli.values import read_options


def test_layers_lists_what_would_be_pruned_and_why_the_rest_would_not(call, grey):
    document = json.loads(call("layers", grey, "--json", "--layers", "blocks.*", "!*.qkv").out)
    pruned = {row["name"] for row in document["layers"] if row["pruned"]}
    assert pruned == {f"blocks.{i}.{name}.weight" for i in (0, 1) for name in ("attn.proj", "mlp.fc1", "mlp.fc2")}
    assert document["prunable"] == sum(row["weights"] for row in document["layers"] if row["pruned"])
    assert all(bool(row["reason"]) != row["pruned"] for row in document["layers"])
    lines = call("layers", grey).out.splitlines()
    lines = [re.sub(" +", " ", line).strip() for line in lines]
    assert "head.weight linear 10×16 160 no head: turns features into answers" in lines
    assert "blocks.0.mlp.fc1.weight linear 64×16 1,024 yes" in lines


def test_layers_counts_what_is_pruned_what_is_dense_and_what_is_no_layer(call):
    found = call("layers", "convnext_atto", "--json")
    document = json.loads(found.out)
    dense = [row for row in document["layers"] if not row["pruned"]]
    assert document["family"] == "ConvNeXt, ConvNeXtV2" and document["prunable"] == 3_264_000
    assert document["dense"] == sum(row["weights"] for row in dense) == 412_080
    assert {row["reason"].split(":")[0] for row in dense} == {"stem", "depthwise", "head"}
    out = call("layers", "convnext_atto").out
    assert "3,264,000 of 3,695,520 parameters in 27 layers would be pruned; 412,080 in 14 layers stay dense" in out
    assert "block=128 damping=0.01 relative=true" in out and "block=128 damping=1e-07 relative=false" in out


def test_layers_shows_the_options_of_every_method(call, grey):
    methods = json.loads(call("layers", grey, "--json").out)["methods"]
    assert methods["woodfisher"]["own"] == "block=192 damping=0.1 relative=true"
    assert methods["woodfisher"]["paper"] == "block=192 damping=1e-06 relative=false"
    assert methods["magnitude"] == {"own": "none", "paper": "none"}


@pytest.mark.parametrize("named", [["bundled"], ["--model", "bundled"], ["--no-pretrained", "bundled"]])
def test_layers_takes_the_model_with_and_without_its_flag(call, named):
    assert json.loads(call("layers", *named, "--json").out)["family"] == "ViT, DeiT"


def test_layers_of_a_model_that_there_is_not_names_the_nearest(call):
    found = call("layers", "convnext_atoo")
    assert found.code == 2 and "Did you mean convnext_atto" in found.err


# --- --settings ------------------------------------------------------------------------------------------------------


def read(command, *arguments):
    parser = Parser(prog=f"secateur {command}")
    add_flags(parser, COMMANDS[command].Options)
    return read_options(COMMANDS[command].Options, parser.parse_args(list(arguments)), command)


@pytest.mark.parametrize("command", ["prune", "compare"])
@pytest.mark.parametrize(
    ("flags", "samples", "per_gradient"),
    [
        ([], 4096, 1),
        (["--settings", "paper"], 4096 * 128, 128),
        (["--settings", "paper", "--samples", "640"], 640, 128),
        (["--settings", "paper", "--samples-per-gradient", "16"], 4096 * 16, 16),
        (["--samples-per-gradient", "16"], 4096, 16),
    ],
)
def test_the_papers_settings_are_of_4096_gradients_of_128_images_each(command, flags, samples, per_gradient):
    options = read(command, "--out", "o", *flags)
    assert (options.samples, options.samples_per_gradient) == (samples, per_gradient)


def test_the_papers_settings_may_stand_in_a_file(tmp_path):
    (tmp_path / "o.yaml").write_text("settings: paper\nout: o\n")
    assert read("prune", "--config", str(tmp_path / "o.yaml")).samples_per_gradient == 128


def test_settings_that_there_are_not_are_refused(call):
    found = call("prune", "--settings", "papers", "--out", "o")
    assert found.code == 2 and "argument --settings: invalid choice: 'papers'" in found.err


def test_prune_with_the_papers_settings_says_and_stores_them(call, grey, tmp_path):
    arguments = ["--samples", "256", "--eval-samples", "20", "--out", tmp_path / "run"]
    found = call("prune", "--model", grey, "--settings", "paper", *arguments)
    assert "Options: cap block=192 damping=1e-08 relative=false." in found.out, found.err
    stored = json.loads(Path(tmp_path / "run" / "secateur.json").read_text())["run"]
    assert stored["options"] == {"block": 192, "damping": 1e-8, "relative": False}
    assert (stored["gradients"], stored["samples_per_gradient"]) == (2, 128)


def test_compare_says_the_options_of_every_method(call, grey):
    found = call("compare", "--model", grey, "--methods", "cap", "obd:uniform", "--sparsity", "0.5", "--samples", "32",
                 "--eval-samples", "20", "--damping", "0.5")  # fmt: skip
    assert "Options: cap block=192 damping=0.5 relative=true; obd damping=0.5 relative=true." in found.out, found.err
