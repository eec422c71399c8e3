"""Pruning goes on from where it stopped: zeros stay zeros, and the target counts them.

python examples/continue_from_sparse.py --samples 128
"""

import argparse

import secateur

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--samples", type=int, default=128, help="images that each Fisher is made of")
arguments.add_argument("--layers", default="blocks.*.mlp.fc1", help="weights to prune: a third, so that it is quick")
given = arguments.parse_args()

model = secateur.load_model("bundled")
batches = secateur.calibration_batches("bundled", model, samples=given.samples)

half = secateur.prune_(model, batches, "cap", sparsity=0.5, layers=given.layers)
more = secateur.prune_(model, batches, "cap", sparsity=0.75, layers=given.layers)  # or masks=half.masks, after training
print(f"first {half.zeros:,} zeros of {half.total:,}, then {more.zeros:,}: {100 * more.achieved:g} %")

came_back = sum(int((more.masks[name] & ~kept).sum()) for name, kept in half.masks.items())
print(f"{came_back} of the first zeros came back")

try:
    secateur.prune_(model, batches, "cap", sparsity=0.6, layers=given.layers)
except secateur.InputError as error:
    print(f"Asking for less than there is: {error}")
