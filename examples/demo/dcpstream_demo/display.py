"""The progress display: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

PLAIN_INTERVAL_S = 5.0
"""Seconds between two lines of a bar where there is no terminal."""


class Display:
    """Lines and bars.

    Args:
        console: rich's console; decides by its `is_terminal`.
        monotonic: the clock.
    """

    def __init__(self, console: Console, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._monotonic = monotonic
        self._began = monotonic()
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._shown_at: dict[str, float] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds since the display was made."""
        return self._monotonic() - self._began

    def say(self, text: str, *, style: str | None = None) -> None:
        """A line that stays, with the time before it."""
        self._console.print(
            f"{self.elapsed_s:7.1f} s  {text}", style=style, markup=False, highlight=False, soft_wrap=True
        )

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """A line without the time."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Show the progress of one task."""
        if self._progress is not None:
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(name, total=total, note=note)
            self._progress.update(self._bars[name], completed=done, total=total, note=note)
            return
        now = self._monotonic()
        if now - self._shown_at.get(name, -PLAIN_INTERVAL_S) >= PLAIN_INTERVAL_S or done >= total > 0:
            if done >= total and self._shown_at.get(f"{name} done"):
                return
            self._shown_at[name] = now
            if done >= total:
                self._shown_at[f"{name} done"] = now
            share = f" {100 * done / total:3.0f} %" if total else ""
            self.say(f"{name}: {done:,.0f} of {total:,.0f}{share}{'  ' + note if note else ''}")

    @contextmanager
    def bars(self) -> Iterator[Self]:
        """Show bars inside the context; the last state stays visible."""
        if not self._console.is_terminal:
            self._shown_at.clear()
            yield self
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars.clear()
        with Progress(
            TextColumn("{task.description:>16}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            refresh_per_second=4,
        ) as progress:
            self._progress = progress
            try:
                yield self
            finally:
                self._progress = None
