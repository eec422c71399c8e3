"""Three lines prune a model: load it, choose images, prune. The rest measures what it cost, and saves it if asked to.

python examples/prune_bundled.py --samples 256 --images 500 --out pruned
"""

import argparse

import secateur

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--samples", type=int, default=256, help="images that the Fisher is made of")
arguments.add_argument("--images", type=int, default=500, help="test images to measure on")
arguments.add_argument("--layers", help="pattern of the weights to prune (default: all but stem and classifier)")
arguments.add_argument("--out", help="folder to save the pruned model in")
given = arguments.parse_args()

model = secateur.load_model("bundled")
images = secateur.evaluation_batches("bundled", model, limit=given.images)
dense = secateur.evaluate(model, images)

batches = secateur.calibration_batches("bundled", model, samples=given.samples)
result = secateur.prune_(model, batches, "cap", sparsity=0.75, layers=given.layers)

sparse = secateur.evaluate(model, images)
print(f"{result.zeros:,} of {result.total:,} weights are zero now ({100 * result.achieved:g} %).")
print(f"top-1 {dense.top1:.1f} → {sparse.top1:.1f} %, ± {sparse.standard_error:.1f} for {sparse.images} images")
print(f"loss  {dense.loss:.4f} → {sparse.loss:.4f}; the Fisher expected a rise of {result.predicted_loss_increase:.1e}")
if given.out:
    secateur.save(model, result, given.out)
    print(f"saved; the zeros counted again in the file: {secateur.inspect(given.out).zeros:,}")
