"""Pack the bundled images: a balanced part of Fashion-MNIST's training images and all of its test images.

    python tools/bundled/pack.py --data-dir /usr/share/datasets/fashion-mnist

Reads the four idx files of the Debian package dataset-fashion-mnist. The same input gives the same bytes.
"""

import argparse
import zipfile
from pathlib import Path

import numpy as np
from fashion_mnist import read_idx

from secateur.bundled import IMAGES


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the four idx .gz files")
    parser.add_argument("--output", type=Path, default=IMAGES)
    parser.add_argument("--count", type=int, default=8192, help="training images to keep")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def balanced_choice(labels, count, seed):
    """Sorted positions of `count` images, as many of each class as of any other, give or take one."""
    random = np.random.default_rng(seed)
    by_class = [random.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    fewest = min(map(len, by_class))
    in_turn = np.stack([positions[:fewest] for positions in by_class], axis=1).ravel()  # one of each class at a time
    return np.sort(in_turn[:count])


def write_npz(path, arrays):
    """numpy.savez_compressed with a fixed date in place of today's, so that the bytes repeat."""
    with zipfile.ZipFile(path, "w", compresslevel=9) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def main():
    args = parse_args()
    images, labels = (read_idx(args.data_dir / f"train-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1"))
    chosen = balanced_choice(labels, args.count, args.seed)
    arrays = {
        "train_images": images[chosen],
        "train_labels": labels[chosen],
        "test_images": read_idx(args.data_dir / "t10k-images-idx3-ubyte.gz"),
        "test_labels": read_idx(args.data_dir / "t10k-labels-idx1-ubyte.gz"),
    }
    write_npz(args.output, arrays)
    print(
        f"{args.output.name}: {len(chosen)} + {len(arrays['test_labels'])} images, {args.output.stat().st_size} bytes"
    )


if __name__ == "__main__":
    main()
