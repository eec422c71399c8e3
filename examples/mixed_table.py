"""Some layers 2:4, some 1:8, some half zeros, the others dense, by one table; then the groups are counted in the file.

python examples/mixed_table.py --samples 128
"""

import argparse

import secateur

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--samples", type=int, default=128, help="images that the Fisher is made of")
arguments.add_argument("--block", type=int, default=192, help="B; it must hold whole groups of every pattern")
arguments.add_argument("--out", default="runs/mixed", help="folder for the pruned model")
given = arguments.parse_args()

model = secateur.load_model("bundled")
batches = secateur.calibration_batches("bundled", model, samples=given.samples)
layers = ["blocks.0.*", "blocks.5.*"]  # the first block and the last, so that this is quick
table = {"*.attn.qkv": "2:4", "*.mlp.fc1": "1:8", "blocks.5.*": 0.5, "*": "dense"}  # the first that matches counts

result = secateur.prune_(model, batches, secateur.CAP(block=given.block), sparsity=table, layers=layers)
secateur.save(model, result, given.out, overwrite=True)

certificate = secateur.inspect(given.out)
for layer in certificate.layers:
    print(f"{layer['name']:26}{layer['zeros'] / layer['total']:8.1%}  {layer['pattern']}")
for pattern, groups in certificate.groups.items():
    print(f"{pattern} held in {groups['held']:,} of {groups['groups']:,} groups")
