"""Train the bundled model: a small vision transformer on the full Fashion-MNIST, one process, seeded.

    python tools/bundled/train.py --data-dir /usr/share/datasets/fashion-mnist --output trained

Model, optimizer, schedule, augmentation, mixup and averaging are timm's. The log goes to standard output;
train.log beside this file is the log of the run whose weights are shipped.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import timm
import torch
from fashion_mnist import MODEL, FashionMnist
from safetensors.torch import save_file
from timm.data import Mixup, create_transform
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, random_seed

from secateur.bundled import MEAN, STD, TRAIN_TRANSFORM, VALIDATION_TRANSFORM


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the four idx .gz files")
    parser.add_argument("--output", type=Path, required=True, help="folder for model.safetensors and config.json")
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def transform(is_training):
    arguments = TRAIN_TRANSFORM if is_training else VALIDATION_TRANSFORM
    return create_transform(input_size=(1, 28, 28), is_training=is_training, mean=MEAN, std=STD, **arguments)


def loaders(args):
    common = {
        "num_workers": args.workers,
        "persistent_workers": args.workers > 0,
        "pin_memory": torch.cuda.is_available(),
    }
    train = FashionMnist(args.data_dir, "train", transform(is_training=True))
    test = FashionMnist(args.data_dir, "t10k", transform(is_training=False))
    generator = torch.Generator().manual_seed(args.seed)
    return (
        torch.utils.data.DataLoader(
            train, args.batch_size, shuffle=True, drop_last=True, generator=generator, **common
        ),
        torch.utils.data.DataLoader(test, 1000, **common),
    )


@torch.inference_mode()
def top1(model, batches, device):
    model.eval()
    hits = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in batches)
    return 100 * hits / len(batches.dataset)


def main():
    args = parse_args()
    random_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else platform.processor()
    settings = {name: value for name, value in vars(args).items() if not isinstance(value, Path)}
    print(f"torch {torch.__version__}, timm {timm.__version__}, {where}, {settings}", flush=True)

    model = timm.create_model(MODEL["architecture"], drop_path_rate=0.05, **MODEL["model_args"]).to(device)
    average = ModelEmaV3(model, decay=0.999)
    train, test = loaders(args)
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, prob=0.5, label_smoothing=0.1, num_classes=10)
    loss_of = SoftTargetCrossEntropy()
    optimizer = create_optimizer_v2(model, "adamw", lr=args.lr, weight_decay=args.weight_decay)
    steps = len(train)
    schedule = CosineLRScheduler(
        optimizer, args.epochs * steps, lr_min=1e-5, warmup_t=5 * steps, warmup_lr_init=1e-5, t_in_epochs=False
    )
    for epoch in range(args.epochs):
        model.train()
        start, total = time.perf_counter(), 0.0
        for step, (images, labels) in enumerate(train, epoch * steps):
            images, targets = mixup(images.to(device), labels.to(device))
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = loss_of(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step_update(step + 1)
            average.update(model, step)
            total += loss.detach()
        line = f"epoch {epoch + 1:3d}  loss {total / steps:.4f}  {time.perf_counter() - start:5.1f} s"
        if (epoch + 1) % 5 == 0 or epoch + 1 == args.epochs:
            line += f"  top-1 {top1(model, test, device):.2f}  averaged {top1(average.module, test, device):.2f}"
        print(line, flush=True)
        if (epoch + 1) % 20 == 0 or epoch + 1 == args.epochs:
            write(average.module, args.output)


def write(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.cpu().contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(MODEL, indent=2) + "\n")


if __name__ == "__main__":
    main()
