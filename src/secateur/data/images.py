"""Images that can be opened by number: arrays in memory, the files of a timm reader, a torchvision dataset.

timm's own dataset steps over a file it cannot read; these raise, and say which file it was.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from PIL import Image

from ..errors import InputError


class Images(ABC):
    """Labelled images by position; `labels` is None where they are not known before an image is read."""

    labels: Sequence[int] | None = None
    classes: dict[int, str]  # label -> name, as far as names are known

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int, mode: str) -> tuple[Image.Image, int]:
        """The decoded image in PIL's `mode`, and its label."""

    def name(self, index: int) -> str:
        return f"image {index}"

    def check(self, index: int) -> None:
        """Raise what opening the image raises, without decoding it; nothing where that would not be cheap."""
        return


class ArrayImages(Images):
    """uint8 images (count, height, width) and labels in memory."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: Sequence[str] = ()):
        self.images: np.ndarray = images
        self.labels: list[int] = labels.tolist()
        self.classes = dict(enumerate(classes))

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int, mode: str) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]).convert(mode), self.labels[index]


class ReaderImages(Images):
    """What a timm reader lists: a folder of class folders, a tar file, a dataset of the Hugging Face hub."""

    def __init__(self, reader):
        self.reader = reader
        names = getattr(reader, "class_to_idx", None) or getattr(reader, "class_name_to_idx", None) or {}
        self.classes = {int(label): str(name) for name, label in names.items()}
        self.has_files = hasattr(reader, "samples") and not hasattr(reader, "targets")  # a folder, not a tar file
        if self.has_files:
            self.labels = [label for _, label in reader.samples]
        elif hasattr(reader, "targets"):
            self.labels = [int(label) for label in reader.targets]

    def __len__(self) -> int:
        return len(self.reader)

    def __del__(self):
        tar = getattr(getattr(self.reader, "tar_state", None), "tf", None)
        if tar is not None:  # timm leaves it open
            tar.close()

    def load(self, index: int, mode: str) -> tuple[Image.Image, int]:
        try:
            file, label = self.reader[index][:2]
        except KeyError as error:  # of the class map; a file that is missing is an OSError
            raise InputError(f"has the label {error}, which the class map does not name") from None
        with file, Image.open(file) as image:
            return image.convert(mode), label

    def name(self, index: int) -> str:
        return str(self.reader.filename(index, absolute=True) or f"image {index}")  # the hub's need not have files

    def check(self, index: int) -> None:
        if self.has_files:
            with Image.open(self.reader.samples[index][0]):
                return


class TorchvisionImages(Images):
    """A torchvision dataset without a transform."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.classes = dict(enumerate(getattr(dataset, "classes", ())))
        targets = getattr(dataset, "targets", None)
        self.labels = None if targets is None else [int(label) for label in targets]

    def __len__(self) -> int:
        return len(self.dataset)

    def load(self, index: int, mode: str) -> tuple[Image.Image, int]:
        image, label = self.dataset[index]
        return image.convert(mode), label

    def name(self, index: int) -> str:
        files = getattr(self.dataset, "samples", None)
        return str(files[index][0]) if files else super().name(index)
