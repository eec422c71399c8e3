"""Where images come from: the bundled ones, a folder, or any dataset timm can name."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, nearest

STREAMED = ("hfids", "tfds", "wds")
PACKAGES = {"hfds": "datasets", "hfids": "datasets", "tfds": "tensorflow_datasets", "wds": "webdataset"}


@dataclass(frozen=True)
class DataSource:
    """Which images, and how they are read.

    Args:
        dataset: "bundled"; "" for a folder of class folders or a tar file; or a timm name such as "torch/cifar10",
            "hfds/…", "hfids/…", "tfds/…", "wds/…". None means the folder if there is one, else the bundled images.
        data_dir: the folder or tar file, or where the named dataset is kept.
        split: None means the training split for calibration and the validation (bundled: test) split for evaluation.
        class_map: text file with one class name a line, in the order of the model's classes.
        image_size: side in pixels; None means the size the model was built for.
        workers: processes that decode; None means two at most for files and none for the bundled images. Streamed
            datasets (hfids, tfds, wds) are always read by the calling process, so that their order is one order.
        skip_unreadable: leave out images that cannot be decoded instead of stopping at the first.
        download: let the dataset fetch its files.
    Raises:
        InputError: when there is no such kind of dataset.

    >>> DataSource("torch/cifar10", data_dir="downloads").kind
    'torch'
    """

    dataset: str | None = None
    data_dir: str | Path | None = None
    split: str | None = None
    class_map: str | Path | None = None
    image_size: int | None = None
    workers: int | None = None
    skip_unreadable: bool = False
    download: bool = False

    def __post_init__(self) -> None:
        _ = self.kind  # raises

    @property
    def kind(self) -> str:
        """ "bundled", "folder", "torch", "hfds", "hfids", "tfds" or "wds"."""
        if self.dataset is None:
            return "bundled" if self.data_dir is None else "folder"
        if self.dataset in ("bundled", ""):
            return self.dataset or "folder"
        kind = self.dataset.partition("/")[0].lower()
        if kind not in ("torch", *PACKAGES) or "/" not in self.dataset:
            kinds = ["bundled", "torch/", *(f"{p}/" for p in PACKAGES)]
            raise InputError(
                f"There is no dataset {self.dataset!r}.{nearest(self.dataset, kinds)} Give bundled, a data folder,"
                f" or a name that starts with {', '.join(kinds[1:])}."
            )
        return kind

    def __str__(self) -> str:
        where = f"{self.dataset or ''} {self.data_dir or ''}".strip() or "bundled"
        return f"{where} ({self.split})" if self.split else where


def as_source(source: DataSource | str | Path) -> DataSource:
    """A source as it is; a string is a folder if there is one of that name, otherwise the name of a dataset."""
    if isinstance(source, DataSource):
        return source
    return DataSource(data_dir=source) if Path(source).exists() else DataSource(dataset=str(source))
