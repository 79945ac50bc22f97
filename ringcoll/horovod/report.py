"""Reports the progress of a build: as a bar on a terminal, as lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO


class Report:
    """Prints a line for each stage, and one for every quarter of a long stage."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._stage = ""
        self._quarter = 0
        self._began = time.monotonic()

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def stage(self, text: str) -> None:
        """Begins a stage."""
        self._stage = text
        self._quarter = 0
        self._line(text)

    def percent(self, done: int) -> None:
        """Reports the progress of the stage in percent."""
        if done // 25 > self._quarter:
            self._quarter = done // 25
            self._line(f"{self._stage}: {done} %")

    def _line(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        print(f"[{seconds:4.0f} s] {text}", file=self._stream, flush=True)


class Bar(Report):
    """Reports by a progress bar of rich."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Report:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def stage(self, text: str) -> None:
        self._progress.console.print(text)
        self._progress.update(self._task, description=text, total=None, completed=0)

    def percent(self, done: int) -> None:
        self._progress.update(self._task, total=100, completed=done)


def make_report() -> Report:
    """A Bar if there is a terminal and rich is installed, else a Report."""
    if sys.stderr.isatty():
        try:
            return Bar()
        except ImportError:
            pass
    return Report()
