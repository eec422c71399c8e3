"""A small DETR, trained here on drawn rectangles and pruned: average precision before and after.

    python bench/detection.py --out bench/results/detection.json

The images are 64×64 pixels of noise with one to three coloured rectangles; the label is the colour. Training takes
about four minutes of one core.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timing import machine
from torch import nn
from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessor, ResNetConfig

import secateur
from secateur import DataSource, detection
from secateur.comparison import compare, contender

SIDE = 64
COLOURS = {"red": (220, 60, 40), "green": (60, 190, 70), "blue": (60, 90, 230)}
LAYERS = ["model.*", "!*embedder*"]  # all but the stem and the heads
METHODS = ("magnitude", "magnitude:uniform", "woodfisher", "cap", "cap:uniform")


def draw(count: int, seed: int, root: Path, split: str) -> None:
    """`count` images and their index in COCO's own layout below `root`."""
    numbers = np.random.default_rng(seed)
    images, annotations = [], []
    for folder in (root / split, root / "annotations"):
        folder.mkdir(parents=True, exist_ok=True)
    for image in range(count):
        pixels = numbers.integers(90, 150, (SIDE, SIDE, 3)).astype(np.uint8)
        for _ in range(numbers.integers(1, 4)):
            category = int(numbers.integers(len(COLOURS)))
            w, h = numbers.integers(10, 33, 2)
            x, y = numbers.integers(0, SIDE - w + 1), numbers.integers(0, SIDE - h + 1)
            paint = np.array(list(COLOURS.values())[category]) + numbers.integers(-25, 26, (h, w, 3))
            pixels[y : y + h, x : x + w] = np.clip(paint, 0, 255)
            box = [int(v) for v in (x, y, w, h)]
            annotations.append({"id": len(annotations) + 1, "image_id": image, "category_id": category, "bbox": box})
        images.append({"id": image, "file_name": f"{image}.png", "width": SIDE, "height": SIDE})
        Image.fromarray(pixels).save(root / split / f"{image}.png")
    categories = [{"id": number, "name": name} for number, name in enumerate(COLOURS)]
    index = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(index))


def small_detr() -> DetrForObjectDetection:
    """Two encoder and two decoder layers on a two-stage ResNet; random weights."""
    backbone = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = DetrConfig(
        backbone_config=backbone, d_model=64, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=128,
        decoder_ffn_dim=128, encoder_attention_heads=4, decoder_attention_heads=4, num_queries=8,
        id2label=dict(enumerate(COLOURS)), auxiliary_loss=True, dropout=0.0,
    )  # fmt: skip
    model = DetrForObjectDetection(config).requires_grad_(True)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "backbone" not in name:
            nn.init.xavier_uniform_(parameter)  # as DETR starts; from transformers' smaller weights it learns slower
    model.image_processor = DetrImageProcessor(size={"height": SIDE, "width": SIDE})
    return model


def train_(model: nn.Module, batches: list, steps: int, rate: float) -> float:
    """AdamW on the model's own loss, one cycle of the learning rate; returns processor seconds."""
    start, order = time.process_time(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    model.train()
    for step in range(steps):
        if step % len(batches) == 0:
            order.shuffle(batches)
        loss = model(**batches[step % len(batches)]).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        if (step + 1) % 250 == 0:
            print(f"{step + 1} steps: loss {loss.item():.3f}", flush=True)
    model.eval()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--images", type=int, default=4000, help="to train on; 500 others are measured on")
    parser.add_argument("--samples", type=int, default=1024, help="images that the Fisher is made of")
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.5, 0.65, 0.75, 0.85])
    parser.add_argument("--model", type=Path, help="folder to keep the trained model in, or to take it from")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        root, seconds = Path(folder), None
        draw(args.images, 1, root, "train")
        draw(500, 2, root, "val")
        if args.model is not None and args.model.exists():
            model = secateur.load_model(str(args.model))
        else:
            model = small_detr()
            batches = list(detection.calibration_batches(root, model, samples=args.images, batch_size=32))
            seconds = train_(model, batches, args.steps, args.rate)
            if args.model is not None:
                secateur.save(model, {}, args.model)
        rows = measured(model, root, args)
    found = {
        "measure": "average precision of a small DETR on drawn rectangles, one shot",
        "settings": {k: v for k, v in vars(args).items() if k not in ("out", "model")},
        "training_processor_seconds": seconds,
        "rows": rows,
        "machine": machine(),
    }
    print(json.dumps(found, indent=2))
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=2) + "\n")


def measured(model: nn.Module, root: Path, args: argparse.Namespace) -> list[dict]:
    """The dense model, then every method at every sparsity."""
    tests = list(detection.evaluation_batches(DataSource(data_dir=root), model, batch_size=50))
    batches = detection.calibration_batches(root, model, samples=args.samples, batch_size=32)

    def row(method, sparsity, found):
        kept = {"ap": found.ap, "ap50": found.ap50, "ap75": found.ap75, "loss": found.loss}
        print(method, sparsity, kept, flush=True)
        return {"method": method, "sparsity": sparsity, **kept}

    rows = [row("dense", 0.0, detection.evaluate(model, tests))]
    contenders = [contender(text, block=64) for text in METHODS]
    for pruned in compare(
        model, batches, contenders, args.sparsity, lambda m: detection.evaluate(m, tests), layers=LAYERS
    ):
        rows.append(row(pruned.contender.label, pruned.result.sparsity, pruned.evaluation))
    return rows


if __name__ == "__main__":
    main()
