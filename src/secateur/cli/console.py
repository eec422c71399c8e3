"""What a person sees while a command works: progress bars with the time to go and the memory in use, and tables.

Bars and notes go to standard error; tables, or one JSON document, to standard output.
"""

import resource
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from rich import box
from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..memory import readable

Item = TypeVar("Item")


class Console:
    """Bars, notes and results of one command. Use it as a context manager."""

    def __init__(self, as_json: bool = False):
        self.as_json = as_json
        self._errors = RichConsole(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("to go"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[memory]}"),
            console=self._errors,
            transient=True,
        )

    def __enter__(self) -> "Console":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
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

    def note(self, text: str) -> None:
        """A line on standard error."""
        self._errors.print(text, soft_wrap=True, markup=False)

    def step(self, text: str) -> None:
        """A line on standard error where nobody can see the bars, so that a log shows how far it has come."""
        if not self._errors.is_terminal:
            self.note(text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table on standard output, numbers to the right; nothing under --json."""
        if self.as_json:
            return
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        for index, column in enumerate(columns):
            numeric = all(not isinstance(row[index], str) or row[index] == "–" for row in rows)
            table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric or index == 0)
        for row in rows:
            table.add_row(*(shown(value) for value in row))
        RichConsole(width=None if sys.stdout.isatty() else 140, highlight=False).print(table)

    def document(self, value: Any) -> None:
        """The one JSON document on standard output; nothing without --json."""
        from ..strict_json import json_bytes

        if self.as_json:
            print(json_bytes(value).decode(), end="")

    def line(self, text: str) -> None:
        """A line on standard output; nothing under --json."""
        if not self.as_json:
            print(text)


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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return readable(peak if sys.platform == "darwin" else 1024 * peak)
