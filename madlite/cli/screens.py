"""Two screens: plain lines for a pipe or a log, and a live progress line for a terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from madlite.cli.details import details
from madlite.cli.sink import Sink
from madlite.cli.terminal import Tamer, all_coloured, coloured, has_colour
from madlite.cli.words import duration, kept, mad_figures, status_words, step_line, title, verdict_line
from madlite.engine.screen import Outcome
from madlite.printable import printable
from madlite.types import Quantity, Result, RunPlan, Status, Step

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_EVERY_S = 5.0
NOTE = "        note: "


class PlainScreen:
    """Writes lines; how far a run is at most every few seconds, and the workload's output where asked for."""

    def __init__(
        self, sink: Sink, *, live: bool, clock: Callable[[], float] = time.monotonic, as_madengine: bool = False
    ) -> None:
        self._sink, self._live, self._clock = sink, live, clock
        self._as_madengine = as_madengine
        self._last_s = float("-inf")
        self._failed: list[tuple[str, str]] = []
        self._rows = 0
        self._notes: set[str] = set()
        self._tamers = {1: Tamer(), 2: Tamer()} if sink.isatty() else {}
        self._colours = has_colour(sink.isatty())

    def started(self, plan: RunPlan, position: int, total: int) -> None:
        """Name the run and what is special about it."""
        steps = plan.variant.steps if plan.variant else None
        self.begin([title(plan, position, total), *(f"      {note}" for note in plan.notes)], steps)

    def logs(self, plan: RunPlan) -> None:
        """Say where the log of the run is."""
        self._line(f"      log: {plan.folder.relative_to(plan.workspace)}/run.log")

    def begin(self, lines: Iterable[str], steps: int | None = None) -> None:
        """Say what starts now; how far it is comes after this."""
        self._last_s = self._clock()
        for text in lines:
            self._line(text)

    def phase(self, text: str) -> None:
        """Say what the run does now, if it takes a while or everything is asked for; all of it is in the log."""
        if self._live:
            self._line(f"      {text}")
        else:
            self._now_and_then(text)

    def advance(self, done: int, text: str) -> None:
        """Say how far it is, of the total that `begin` named."""
        self._now_and_then(text)

    def stopping(self, text: str) -> None:
        """Say that the run is being ended."""
        self._line(f"      {text}")

    def output(self, chunk: bytes, stream: int) -> None:
        """Pass the workload's output on where asked for."""
        if self._live:
            self._sink.put(self._tamers[stream].feed(chunk) if self._tamers else chunk)

    def told(self, text: str) -> None:
        """Say what madengine would, where that is wanted."""
        if self._as_madengine:
            self._line(text)

    def step(self, plan: RunPlan, step: Step) -> None:
        """Say how far the training is."""
        if step.phase == "train" and not self._live:
            self._now_and_then(step_line(plan, step))

    def finished(self, plan: RunPlan, result: Result) -> None:
        """Say how the run ended."""
        self._rows += plan.writes_row and (not plan.skip_model_run or result.status is Status.FAILURE)
        if result.status is Status.FAILURE:
            self._failed.append((plan.card.name, result.code))
        told = [line for line in ending(plan, result) if line not in self._notes]
        self._notes.update(f"{NOTE}{note}" for note in result.image.notes)  # true of the batch: once is enough
        self.end(told)

    def end(self, lines: Iterable[str]) -> None:
        """Say how it ended."""
        for text in lines:
            self._line(text, coloured)

    def warn(self, text: str) -> None:
        """Say what is wrong."""
        self._line(f"warning: {text}")

    def total(self, outcome: Outcome, output: Path) -> None:
        """Say how a batch of more than one run came out, and where its rows are."""
        counts = Counter(status_words(result.status.value, result.suspect) for result in outcome.results)
        if len(outcome.results) > 1:
            self._line(", ".join(f"{count} {status}" for status, count in counts.items()), all_coloured)
            failed = [f"{name} ({cause})" for name, cause in self._failed]
            if failed:
                self._line(f"failed: {', '.join(failed)}")
        aside = ", ".join(outcome.kept_aside)
        if self._rows > len(outcome.kept_aside):
            self._line(f"results: {output}" + (f", but for {aside}" if aside else ""))
        elif aside:
            self._line(f"no results in {output}: {aside}")

    def close(self) -> None:
        """Nothing is held back."""

    def _now_and_then(self, text: str) -> None:
        now = self._clock()
        if now - self._last_s >= _LINE_EVERY_S:
            self._last_s = now
            self._line(f"      {text}")

    def _line(self, text: str, colour: Callable[[str], str] = str) -> None:
        """Write one line, whatever a card, a workload or its results file put into it; its status in `colour`."""
        line = printable(text)
        self._write(colour(line) if self._colours else line)

    def _write(self, line: str) -> None:
        self._sink.write(line + "\n")


class LiveScreen(PlainScreen):
    """A terminal: finished lines stay, the running one shows step, speed, loss and the time left."""

    def __init__(self, sink: Sink, *, as_madengine: bool = False) -> None:
        super().__init__(sink, live=False, as_madengine=as_madengine)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        self._console = Console(file=sink, highlight=False)  # type: ignore[arg-type]
        wide = self._console.width >= 100
        self._progress: Progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            *([BarColumn(bar_width=24)] if wide else []),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None

    def begin(self, lines: Iterable[str], steps: int | None = None) -> None:
        """Say what starts now and show that it goes on."""
        super().begin(lines, steps)
        self._task = self._progress.add_task("starting", total=steps)
        self._progress.start()

    def phase(self, text: str) -> None:
        """Show what the run does now."""
        if self._task is not None:
            self._progress.update(self._task, description=_escaped(text[:100]))

    def step(self, plan: RunPlan, step: Step) -> None:
        """Show how far the training is."""
        if self._task is None or step.phase != "train" or Quantity.LOSS not in step.values:
            return
        total = plan.variant.steps if plan.variant else None
        text = "finishing" if total and step.n >= total else step_line(plan, step)
        self._progress.update(self._task, completed=step.n, description=_escaped(text))

    def advance(self, done: int, text: str) -> None:
        """Show how far it is."""
        if self._task is not None:
            self._progress.update(self._task, completed=done, description=_escaped(text[:100]))

    def stopping(self, text: str) -> None:
        """Show that the run is being ended."""
        if self._task is not None:
            self._progress.update(self._task, description=_escaped(text))

    def end(self, lines: Iterable[str]) -> None:
        """Replace the progress by the outcome."""
        self.close()
        super().end(lines)

    def close(self) -> None:
        """Take the progress line away."""
        self._progress.stop()
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def _write(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text.from_ansi(line), soft_wrap=True)


def make_screen(sink: Sink, *, live: bool, as_madengine: bool = False) -> PlainScreen:
    """Return the screen for who reads the sink: people get a progress line, unless they want the output itself.

    `as_madengine`: what madengine would say is said too.
    """
    if sink.isatty() and not live:
        return LiveScreen(sink, as_madengine=as_madengine)
    return PlainScreen(sink, live=live, as_madengine=as_madengine)


def ending(plan: RunPlan, result: Result) -> list[str]:
    """Return the lines a run ends with: verdict, the deciding line of a failure, findings, duration."""
    lines = [f"      {verdict_line(plan, result)}"]
    if result.window is not None and len(result.metrics) > 1:
        lines.append(f"        by MAD's own rules: {mad_figures(result)}")
    lines += [f"        {text}" for text in details(plan, result)]
    lines += [f"{NOTE}{finding}" for finding in result.findings]
    lines += [f"        {text}" for text in kept(plan)]
    if plan.blocked is None and "total" in result.durations_s:
        lines.append(f"        took {duration(result.durations_s['total'])}")
    return lines


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))
