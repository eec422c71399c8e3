"""Any module, any iterable of batches, any loss: a network that takes the noise out of images, trained in a moment.

python examples/own_model_and_loss.py --samples 512
"""

import argparse
import copy

import torch
from torch.nn import BatchNorm2d, Conv2d, ReLU, Sequential

import secateur
from secateur.bundled import load_images

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--samples", type=int, default=512, help="images to train on, and to prune with")
given = arguments.parse_args()


def loss(outputs, clean):
    return (outputs - clean).square().mean((1, 2, 3))  # one value a sample; a mean over the batch would do as well


torch.manual_seed(0)
clean = torch.tensor(load_images("train")[0][: given.samples, None, ::2, ::2]) / 255  # (samples, 1, 14, 14)
batches = [(part + 0.3 * torch.randn_like(part), part) for part in clean.split(16)]
hidden = [layer for c in (1, 16, 16) for layer in (Conv2d(c, 16, 3, padding=1), BatchNorm2d(16), ReLU())]
model = Sequential(*hidden, Conv2d(16, 1, 3, padding=1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for noisy, target in batches * 4:
    optimizer.zero_grad()
    loss(model(noisy), target).mean().backward()
    optimizer.step()

for method, sparsity in (("magnitude", 0.0), ("magnitude", 0.75), ("cap", 0.75)):
    pruned = copy.deepcopy(model)
    result = secateur.prune_(pruned, batches, method, sparsity, loss=loss)  # all but the first convolution
    error = torch.cat([loss(pruned.eval()(noisy), target).detach() for noisy, target in batches]).mean()
    print(f"{result.achieved:4.0%} zeros by {method:9}: mean squared error {error:.5f}")
