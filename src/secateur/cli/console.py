"""What a person sees while a command works: progress bars with the time to go and the memory in use, and tables.

Bars and notes go to standard error; tables, or one JSON document, to standard output.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import zip_longest
from textwrap import fill
from typing import Any, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..units import readable

Item = TypeVar("Item")
LOG = logging.getLogger("secateur")
WIDTH = 140  # of tables in files and pipes
NUMERIC = re.compile(r"[-+±\d.,e ]*|–")


class _Notes(logging.Handler):
    """What the library logs becomes notes."""

    def __init__(self, console: "Console"):
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.note(record.getMessage())


class Console:
    """Bars, notes and results of one command. Use it as a context manager."""

    def __init__(self, as_json: bool = False):
        self.as_json = as_json
        self._told: set[str] = set()
        self._handler = _Notes(self)
        self._errors = RichConsole(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("so far,"),
            TimeRemainingColumn(),
            TextColumn("to go, {task.fields[memory]}"),
            console=self._errors,
            transient=True,
            disable=not self._errors.is_terminal,
        )

    def __enter__(self) -> "Console":
        self._progress.start()
        LOG.addHandler(self._handler)
        LOG.setLevel(logging.INFO)
        return self

    def __exit__(self, *error: object) -> None:
        LOG.removeHandler(self._handler)
        self._progress.stop()

    def track(self, iterable: Iterable[Item], description: str, total: int | None = None) -> Iterable[Item]:
        """`iterable`, with a bar; bars inside bars stand below one another."""
        task = self._progress.add_task(description, total=total, memory=_memory())
        try:
            for item in iterable:
                yield item
                self._progress.update(task, advance=1, memory=_memory())
        finally:
            self._progress.remove_task(task)

    def bar(self, total: int) -> Callable[[int, str], None]:
        """A bar that is told how far it is, and what stands before it."""
        task = self._progress.add_task("", total=total, memory=_memory())
        return lambda done, text: self._progress.update(task, completed=done, description=text, memory=_memory())

    def note(self, text: str) -> None:
        """A line on standard error, once."""
        if text in self._told:
            return
        self._told.add(text)
        self._errors.print(text, soft_wrap=True, markup=False)

    def step(self, text: str) -> None:
        """A line on standard error where nobody can see the bars, so that a log shows how far it has come."""
        if not self._errors.is_terminal:
            self.note(text)

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], section: str | None = None
    ) -> None:
        """A table on standard output, numbers to the right; nothing under --json.

        Args:
            section: the column where another value starts another section.
        """
        if self.as_json:
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        cells = [[shown(value) for value in row] for row in rows]
        for index, column in enumerate(columns):
            numeric = all(NUMERIC.fullmatch(row[index]) for row in cells)
            whole = numeric or index == 0  # never cut short: rather lines too long for the window
            width = max(cell_len(text) for text in (*column.split("\n"), *(row[index] for row in cells)))
            table.add_column(
                column, justify="right" if numeric else "left", no_wrap=whole, min_width=width if whole else None
            )
        starts = [] if section is None else [row[columns.index(section)] for row in cells]
        for row, *pair in zip_longest(cells, starts, starts[1:]):
            table.add_row(*row, end_section=bool(starts) and pair[0] != pair[1])
        plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
        printer = RichConsole(width=_width(), **plain)
        needed = RichConsole(width=1000, **plain).measure(table).minimum
        printer.width = max(printer.width, needed)
        with printer.capture() as captured:
            lines = fill(title, printer.width, break_long_words=False, break_on_hyphens=False)  # paths stay whole
            printer.print(lines, style="bold", soft_wrap=True)
            printer.print(table)
        write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    def document(self, value: Any) -> None:
        """The one JSON document on standard output; nothing without --json."""
        from ..strict_json import json_bytes

        if self.as_json:
            write(json_bytes(value).decode())

    def line(self, text: str) -> None:
        """A line on standard output; nothing under --json."""
        if not self.as_json:
            write(f"{text}\n")


def write(text: str) -> None:
    """Put text on standard output; a reader that has gone (`| head`) has read all it wants."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):  # what is still in the buffer goes nowhere, rather than fail again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise


def _width() -> int | None:
    """Of standard output where it is a window, or said by the environment; else enough for any table."""
    seen = "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty())
    return None if seen else WIDTH


def shown(value: object) -> str:
    """A number with as many digits as one reads, and a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value and abs(value) < 1e-3:
            return f"{value:.1e}"
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"
    return str(value)


def _memory() -> str:
    """The most memory that this process has held."""
    from ..memory import most_held_bytes

    return readable(most_held_bytes())
