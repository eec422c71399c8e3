"""metrics.csv: a line for every few steps, every evaluation and every change of the masks; and whoever else listens.

Lines are only ever added; a run that is taken up again cuts off what came after its checkpoint.
"""

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import InputError


@dataclass(frozen=True)
class Entry:
    """One line."""

    step: int
    epoch: float
    kind: str  # train, or what was measured: dense, epoch, or the change of the masks, such as "prune to 0.5"
    seconds: float  # of training so far
    learning_rate: float
    sparsity: float
    loss: float | None = None  # of training, the mean since the line before
    top1: float | None = None
    eval_loss: float | None = None


COLUMNS = [item.name for item in fields(Entry)]
Listener = Callable[[Entry], None]


class Journal:
    """A file of entries, and functions that are told of each."""

    def __init__(self, path: Path, listeners: Sequence[Listener] = ()):
        self.path, self.listeners = path, list(listeners)

    def add(self, entry: Entry) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(asdict(entry).values()))
        for listener in self.listeners:
            listener(entry)

    def start(self) -> None:
        """An empty file with its head."""
        self.path.write_text(_line(COLUMNS), encoding="utf-8")

    def kept(self) -> int:
        """How long the file is, once all of it is on the disk."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def cut(self, length: int) -> None:
        """Forget what was added after the file was so long."""
        with self.path.open("r+b") as file:
            file.truncate(length)


def read_journal(path: str | Path) -> list[Entry]:
    """The entries of a metrics.csv.

    Raises:
        InputError: when there is none, or a line is not ours.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [_entry(row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} cannot be read as the metrics of a run: {error}.") from None


def _entry(row: dict[str, Any]) -> Entry:
    numbers = {name: float(row[name]) if row[name] else None for name in COLUMNS if name != "kind"}
    return Entry(**{**numbers, "step": int(row["step"]), "kind": row["kind"]})  # type: ignore[arg-type]


def _line(values: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow("" if value is None else value for value in values)
    return text.getvalue()
