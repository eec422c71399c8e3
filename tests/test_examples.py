"""Every example runs with tiny settings, warns of nothing, and prints what its docstring promises."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
CASES = {  # the flags, and a pattern of what must be printed
    "prune_bundled.py": (
        "--samples 8 --images 20 --layers blocks.0.attn.proj --out {folder}/pruned",
        r"12,288 of 16,384 weights are zero now \(75 %\).*counted again in the file: 12,288\n",
    ),
    "own_model_and_loss.py": ("--samples 32", r" 0% zeros by magnitude.*75% zeros by magnitude.*75% zeros by cap"),
    "continue_from_sparse.py": (
        "--samples 4 --layers blocks.0.attn.proj",
        r"8,192 zeros of 16,384, then 12,288: 75 %\n0 of the first zeros came back\n.*holds 12288 zeros of 16384",
    ),
    "per_layer_table.py": (
        "--samples 4 --block 16",
        r"blocks.0.attn.qkv.weight +60.0% .*blocks.5.mlp.fc2.weight +90.0% .*all of them +80.0% +80.0%",
    ),
    "mixed_table.py": (
        "--samples 4 --block 16 --out {folder}/mixed",
        r"0.attn.qkv.weight +50.0%  2:4.*0.mlp.fc2.weight +0.0%  unstr.*5.mlp.fc2.weight +50.0%  unstr"
        r".*2:4 held in 24,576 of 24,576 groups\n1:8 held in 16,384 of 16,384 groups\n$",
    ),
    "finetune_with_mask_keeper.py": (
        "--samples 32 --images 20",
        r"top-1 [\d.]+ % dense, [\d.]+ % pruned, [\d.]+ % after 32 images\n1,061,683 zeros before and after: True\n",
    ),
    "open_in_timm.py": ("--samples 2", r"589,824 zeros; outputs bit-identical on 2 images: True\n"),
}


def test_every_example_has_a_case():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_an_example_prints_what_a_reader_should_learn(name, tmp_path):
    flags, printed = CASES[name]
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *flags.format(folder=tmp_path).split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(printed, done.stdout, re.DOTALL), done.stdout


@pytest.mark.parametrize("name", CASES)
def test_an_example_is_short_and_says_how_to_run_it(name):
    text = (EXAMPLES / name).read_text()
    assert text.count("\n") < 40
    assert f"\npython examples/{name} --samples " in (ast.get_docstring(ast.parse(text)) or "")
