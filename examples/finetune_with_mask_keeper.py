"""Zeros stay zero in a training loop of your own: three lines around plain PyTorch.

python examples/finetune_with_mask_keeper.py --samples 2048 --images 1000
"""

import argparse

import torch

import secateur

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--samples", type=int, default=2048, help="images to train on, once")
arguments.add_argument("--images", type=int, default=1000, help="test images to measure on")
given = arguments.parse_args()

model = secateur.load_model("bundled")
images = secateur.evaluation_batches("bundled", model, limit=given.images)
dense = secateur.evaluate(model, images)
result = secateur.prune_(model, method="magnitude", sparsity=0.9)
pruned = secateur.evaluate(model, images)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
keeper = secateur.MaskKeeper(model, result.masks)
keeper.attach(optimizer)  # that is all: no hook in the model, nothing for torch.compile to miss

torch.manual_seed(0)
model.train()
for inputs, labels in secateur.calibration_batches("bundled", model, samples=given.samples, batch_size=32):
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

keeper.verify()  # raises, naming the layer, if a zero has moved
tuned = secateur.evaluate(model, images)
print(f"top-1 {dense.top1:.1f} % dense, {pruned.top1:.1f} % pruned, {tuned.top1:.1f} % after {given.samples} images")
zeros = sum(int((model.get_parameter(name) == 0).sum()) for name in keeper.masks)
print(f"{zeros:,} zeros before and after: {zeros == result.zeros}")
