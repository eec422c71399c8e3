"""A table says how sparse each layer becomes; without one, a threshold for all layers decides. Here they are compared.

python examples/per_layer_table.py --samples 128
"""

import argparse

import secateur

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--samples", type=int, default=128, help="images that the Fisher is made of")
arguments.add_argument("--block", type=int, default=192, help="B, weights that are seen together")
given = arguments.parse_args()

model = secateur.load_model("bundled")
batches = secateur.calibration_batches("bundled", model, samples=given.samples)
layers = ["blocks.0.*", "blocks.5.*"]  # the first block and the last, so that this is quick
table = {"*.attn.*": 0.6, "*": 0.9}  # the first pattern that matches a layer counts; together these make 80 %

# secateur.prune_(model, batches, "cap", sparsity=table) prunes by it; `compare` makes one Fisher for both ways.
rows = secateur.compare(model, batches, [secateur.contender("cap", block=given.block)], [table, 0.8], layers=layers)
by_table, by_threshold = (row.result for row in rows)

print(f"{'':26}{'table':>9}{'threshold':>11}")
for name in by_table.masks:
    kept = [float(result.masks[name].float().mean()) for result in (by_table, by_threshold)]
    print(f"{name:26}{1 - kept[0]:9.1%}{1 - kept[1]:11.1%}")
print(f"{'all of them':26}{by_table.achieved:9.1%}{by_threshold.achieved:11.1%}")
expected = by_table.predicted_loss_increase, by_threshold.predicted_loss_increase
print(f"{'expected rise of the loss':26}{expected[0]:9.5f}{expected[1]:11.5f}")
