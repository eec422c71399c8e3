"""Batches of a dataset that can only be read in order; opened anew for each pass, so that its shuffling repeats."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from ..errors import InputError
from .batches import Batches
from .prepare import Preparation, Problem, collate
from .source import DataSource
from .transforms import randomness_kept


class StreamedBatches(Batches):
    """One pass over what `stream` opens, or its first `samples` images."""

    def __init__(
        self, source: DataSource, prepare: Preparation, stream: Callable, samples: int | None, batch_size: int
    ):
        super().__init__(source, batch_size)
        self.prepare, self.stream = prepare, stream
        self._samples = samples or len(stream())
        if not self._samples:
            raise InputError(f"{source} does not say how many images it has; give a limit.")

    @property
    def samples(self) -> int:
        return self._samples

    def check_readable(self) -> int:
        self.stream()
        return self.samples

    def _collated(self):
        items = self._prepared()
        while chunk := list(islice(items, self.batch_size)):
            yield collate(chunk)

    def _prepared(self):
        position = -1
        for position, item in enumerate(islice(self._read(), self.samples)):
            if not isinstance(item, Problem):
                with randomness_kept():
                    item = self.prepare(f"image {position}", item[0], item[1], position)
            yield item
        self._samples = position + 1  # the stream may end before a limit

    def _read(self):
        """(image, label) pairs, and a problem in the place of each image that was stepped over."""
        stream, position, item = iter(self.stream()), 0, None
        while True:
            with _stepped_over() as reasons:
                try:
                    item = next(stream, None)
                except Exception as error:  # each library fails in its own ways
                    what = f"{type(error).__name__} {error}"
                    raise InputError(f"{self.source} broke off after {position} images: {what}.") from error
            yield from (Problem(f"image {position + i} of {self.source}", why) for i, why in enumerate(reasons))
            position += len(reasons) + 1
            if item is None:
                return
            yield item


@contextmanager
def _stepped_over() -> Iterator[list[str]]:
    """timm's webdataset reader logs an image that it cannot read and takes the next: collects why."""
    logger, handler, reasons = logging.getLogger("timm.data.readers.reader_wds"), logging.Handler(), list[str]()
    handler.emit = lambda record: reasons.append(_reason(record.getMessage()))  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield reasons
    finally:
        logger.removeHandler(handler)


def _reason(message: str) -> str:
    """ "Handling webdataset error (OSError('truncated')). Ignoring." → "OSError('truncated')"."""
    inside = re.search(r"\((.*)\)", message)
    return re.sub(r" ?<.*?>", "", inside[1] if inside else message)
