"""A saved model opens in plain timm, with the very same outputs; whoever loads it needs no secateur.

python examples/open_in_timm.py --samples 64
"""

import argparse
import tempfile
from pathlib import Path

import timm
import torch

import secateur

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--samples", type=int, default=64, help="images to compare the outputs on")
samples = arguments.parse_args().samples

model = secateur.load_model("bundled")
result = secateur.prune_(model, method="magnitude", sparsity=0.5)  # needs no images; "cap" is better, and does

with tempfile.TemporaryDirectory() as parent:
    folder = Path(parent) / "pruned"
    secateur.save(model, result, folder)
    print(
        "written:", *(f"{path.name} ({path.stat().st_size:,} bytes)" for path in sorted(folder.iterdir())), sep="\n  "
    )
    opened = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()

images, _ = next(iter(secateur.evaluation_batches("bundled", model, limit=samples, batch_size=samples)))
with torch.no_grad():
    same = torch.equal(opened(images), model(images))
zeros = sum(int((opened.state_dict()[name] == 0).sum()) for name in result.masks)
print(f"{type(opened).__name__} from timm: {zeros:,} zeros; outputs bit-identical on {len(images)} images: {same}")
