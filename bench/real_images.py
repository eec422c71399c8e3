"""The one-shot comparison of the paper on real weights and real images; every row is written when it is there.

  python bench/real_images.py --model WEIGHTS/mobilenetv2_100 --images IMAGES --out real-mobilenetv2_100.json

WEIGHTS/… holds model.safetensors and config.json (architecture and preprocessing), IMAGES holds train/ and val/ with
class folders. A file that is there is gone on with: what it has is not measured again. `hits` tells which images a row
got right, so that rows can be compared image by image (bench/real_tables.py).
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from timing import machine
from torch import Tensor, nn

import secateur
from secateur.cli.console import Console
from secateur.comparison import Contender, Row, compare, contender
from secateur.data import DataSource
from secateur.evaluation import Evaluation
from secateur.files import write_atomically
from secateur.heap import keep_freed_memory
from secateur.models import load_checkpoint_
from secateur.strict_json import json_bytes

METHODS = ["magnitude", "grw", "obd", "woodfisher", "cap", "fast_cap", "mfac:gradients=256"]
SPARSITIES = [0.3, 0.5, 0.6, 0.7, 0.8, 0.9]


def load_real(folder: Path) -> nn.Module:
    """A model of timm, or the one of transformers that goes by the name of resnet50_v1."""
    config = json.loads((folder / "config.json").read_text())
    if config["architecture"] != "resnet50_v1":
        return secateur.load_model(str(folder))
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000, downsample_in_bottleneck=True))
    load_checkpoint_(model, folder / "model.safetensors")
    model.pretrained_cfg = config["pretrained_cfg"]
    return model.eval()


class Hits:
    """Cross-entropy for `evaluate`, which also notes the images that are right."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []

    def __call__(self, outputs, labels: Tensor) -> Tensor:
        logits = getattr(outputs, "logits", outputs)
        self.found.append(logits.argmax(1) == labels)
        return F.cross_entropy(logits, labels, reduction="none")

    def text(self) -> str:
        """One bit an image as hexadecimal digits, of the images since the last time."""
        found, self.found = self.found, []
        return np.packbits(torch.cat(found).numpy()).tobytes().hex()


def row_of(row: Row, recalibrated: bool, hits: str) -> dict:
    result = row.result
    return {
        "label": row.contender.label,
        "method": result.method,
        "allocation": result.allocation,
        "options": result.options | ({} if recalibrated else {"recalibrated": False}),
        "sparsity": result.sparsity,
        "achieved": result.achieved,
        "predicted_loss_increase": result.predicted_loss_increase,
        "seconds": result.seconds,
        "gradients": result.gradients,
        **measured(row.evaluation, hits),
    }


def measured(found: Evaluation, hits: str) -> dict:
    return {"top1": found.top1, "top5": found.top5, "loss": found.loss, "hits": hits}


def key(row: dict) -> tuple:
    return row["label"], row["sparsity"], row["options"].get("recalibrated", True)


def missing(document: dict, contenders: list[Contender], args) -> list[Contender]:
    """Those of which a row is not there yet."""
    there = {key(row) for row in document["rows"]}
    return [c for c in contenders if not all((c.label, s, args.recalibrate) in there for s in args.sparsity)]


def rows(args, model: nn.Module, images: list, contenders: list[Contender], console: Console) -> Iterator[dict]:
    batches = secateur.calibration_batches(
        DataSource(data_dir=str(args.images)), model, args.samples, augment=args.augment, batch_size=args.batch_size
    )
    hits = Hits()
    found = compare(
        model, batches, contenders, args.sparsity, lambda m: secateur.evaluate(m, images, hits),
        recalibrate=args.recalibrate, resources=secateur.Resources(memory=args.memory), track=console.track,
    )  # fmt: skip
    for row in console.track(found, "all rows", len(contenders) * len(args.sparsity)):
        yield row_of(row, args.recalibrate, hits.text())


def dense(model: nn.Module, images: list) -> dict:
    hits = Hits()
    return measured(secateur.evaluate(model, images, hits), hits.text())


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    model = load_real(args.model)
    source = DataSource(data_dir=str(args.images))
    images = list(secateur.evaluation_batches(source, model, args.eval_samples, batch_size=args.batch_size))
    if args.out.is_file():
        document = json.loads(args.out.read_text())
    else:
        document = {
            "format": 1,
            "model": {"name": args.model.name, "parameters": sum(p.numel() for p in model.parameters())},
            "data": {"samples": args.samples, "augment": args.augment, "images": sum(len(y) for _, y in images)},
            "dense": dense(model, images),
            "rows": [],
            "machine": machine(),
        }
    contenders = missing(document, [contender(text) for text in args.methods], args)
    with Console() as console:
        for row in rows(args, model, images, contenders, console) if contenders else ():
            if key(row) not in {key(other) for other in document["rows"]}:
                document["rows"].append(row)
                write_atomically(args.out, json_bytes(document))
                console.step(f"{row['label']} {row['sparsity']:g}: top-1 {row['top1']:.2f} %, loss {row['loss']:.4f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of model.safetensors and config.json")
    parser.add_argument("--images", type=Path, required=True, help="folder of train/ and val/")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write, or to go on with")
    parser.add_argument("--methods", nargs="+", default=METHODS + [f"{m}:uniform" for m in METHODS])
    parser.add_argument("--sparsity", nargs="+", type=float, default=SPARSITIES)
    parser.add_argument("--samples", type=int, default=2000, help="for the gradients")
    parser.add_argument("--eval-samples", type=int, default=1000)
    parser.add_argument("--augment", choices=("train", "validation"), default="validation")
    parser.add_argument("--recalibrate", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


if __name__ == "__main__":
    main()
