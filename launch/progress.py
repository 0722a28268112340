"""One line on stderr that says how many ranks are up; it goes away when they all are."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from launch.jobtable import JobStatus


class StartProgress:
    """Show the start of `num_ranks` ranks: a bar on a terminal, a line per tenth elsewhere when `force` is
    set."""

    def __init__(self, num_ranks: int, force: bool = False) -> None:
        self.console = Console(stderr=True)
        self.num_ranks = num_ranks
        self.terminal = self.console.is_terminal
        self.enabled = self.terminal or force
        self._shown = -1
        columns = (TextColumn("ranks up"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self.console, transient=True, auto_refresh=False)
        self._task = self._bar.add_task("", total=num_ranks)

    def start(self) -> None:
        if self.enabled and self.terminal:
            self._bar.start()

    def update(self, status: JobStatus) -> None:
        """Show a new status. A rank without MPI counts as up when its program has started."""
        up = status.ready or status.entered
        if not self.enabled:
            return
        if self.terminal:
            self._bar.update(self._task, completed=up, refresh=True)
            if up >= self.num_ranks:
                self.stop()
        elif up * 10 // self.num_ranks != self._shown:
            self._shown = up * 10 // self.num_ranks
            self.console.print(f"superpod: {up}/{self.num_ranks} ranks up", highlight=False)

    def stop(self) -> None:
        if self.enabled and self.terminal:
            self._bar.stop()
            self.enabled = False
