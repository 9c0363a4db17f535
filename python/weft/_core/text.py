"""What is printed for a person: tables with their columns lined up, and a bar that shows how far the work is."""
from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Optional


def number(value: Optional[float], digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def line(cells: Iterable[str], widths: Iterable[int], left: Collection[int]) -> str:
    """One line of a table. left: the columns whose text begins at the left."""
    return "  ".join(cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(cells, widths))).rstrip()


def table(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """The lines of a table whose rows are all known, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [line(row, widths, left) for row in rows]


class Bar:
    """A line on stderr that is written over as the work goes on. shown: None shows it where stderr is a terminal."""

    def __init__(self, what: str, total: int, shown: Optional[bool] = None, length: int = 20) -> None:
        self.what, self.total, self.length, self.width = what, total, length, 0
        self.shown = sys.stderr.isatty() if shown is None else shown

    def step(self, done: int, doing: str) -> None:
        """How many of all are done, and what is done now."""
        filled = self.length * done // max(self.total, 1)
        text = f"{self.what} [{'#' * filled}{'.' * (self.length - filled)}] {done}/{self.total} {doing}"
        if self.shown:
            print("\r" + text.ljust(self.width), end="", file=sys.stderr, flush=True)
        self.width = len(text)

    def close(self, end: str) -> None:
        if self.shown:
            print(end, end="", file=sys.stderr, flush=True)
