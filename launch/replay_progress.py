"""How far a replay is, on stderr: ended requests and virtual time, read from a file its ranks update."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from serving.job import Progress as ProgressFile

_WATCH_S = 0.25
_LINES = 10


@contextmanager
def replay_progress(directory: Path, num_ranks: int, num_requests: int, force: bool) -> Iterator[None]:
    """Show progress once all ranks are up: a bar on a terminal, with `force` a line per tenth elsewhere."""
    view = _View(ProgressFile(directory, num_ranks, create=True), num_requests)
    if not (view.console.is_terminal or force):
        yield
        return
    watcher = threading.Thread(target=view.show, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        view.over.set()
        watcher.join()


class _View:
    def __init__(self, progress: ProgressFile, num_requests: int) -> None:
        self.cells, self.num_requests = progress.cells, num_requests
        self.console = Console(stderr=True)
        self.over = threading.Event()

    def show(self) -> None:
        while not self.cells[:, 0].all():
            if self.over.wait(_WATCH_S):
                return
        if self.console.is_terminal:
            self._bar()
        else:
            self._lines()

    def _now(self) -> tuple[int, str]:
        return int(self.cells[:, 1].sum()), f"virtual {int(self.cells[:, 2].max()) / 1e12:.2f} s"

    def _bar(self) -> None:
        columns = (TextColumn("requests ended"), BarColumn(), MofNCompleteColumn())
        text = TextColumn("{task.description}")
        with Progress(*columns, text, TimeElapsedColumn(), console=self.console, transient=True) as bar:
            task = bar.add_task("", total=self.num_requests)
            while not self.over.wait(_WATCH_S):
                ended, virtual = self._now()
                bar.update(task, completed=ended, description=virtual)

    def _lines(self) -> None:
        shown = -1
        while not self.over.wait(_WATCH_S):
            ended, virtual = self._now()
            if ended * _LINES // self.num_requests != shown:
                shown = ended * _LINES // self.num_requests
                text = f"superpod: {ended}/{self.num_requests} requests ended, {virtual}"
                self.console.print(text, highlight=False)
