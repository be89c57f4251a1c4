"""Two screens: plain lines for a pipe or a log, and a live progress line for a terminal."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from madlite.cli.format import (
    details,
    duration,
    kept,
    mad_figures,
    status_words,
    step_line,
    study_words,
    title,
    verdict_line,
)
from madlite.cli.terminal import Sanitizer, all_coloured, coloured, has_colour
from madlite.model import Quantity, Result, RunPlan, Status, Step
from madlite.run.screen import RunOutcome
from madlite.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Output that never blocks a run: a thread writes it, and what a full pipe does not take is counted and dropped.

_MOST_BYTES = 8 << 20
_END = b""


class Sink:
    """Writes to a file descriptor from a thread of its own."""

    encoding = "utf-8"

    def __init__(self, fd: int) -> None:
        self.dropped_bytes = 0
        self._fd = fd
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="madlite-output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Take text, as a file would."""
        self.put(text.encode("utf-8", "replace"))
        return len(text)

    def put(self, data: bytes) -> None:
        """Take bytes; never waits."""
        with self._lock:
            full = self._waiting_bytes + len(data) > _MOST_BYTES
            self._waiting_bytes += 0 if full else len(data)
            self.dropped_bytes += len(data) if full else 0
        if data and not full:
            self._queue.put(data)

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def isatty(self) -> bool:
        """Say whether people read this."""
        return os.isatty(self._fd)

    def fileno(self) -> int:
        """Return the file descriptor written to."""
        return self._fd

    def close(self, limit_s: float = 3.0) -> None:
        """Write what is left, for a limited time: a reader that stopped reading cannot keep us."""
        self._queue.put(_END)
        self._thread.join(limit_s)

    def _drain(self) -> None:
        while (data := self._queue.get()) != _END:
            view = memoryview(data)
            with self._lock:
                self._waiting_bytes -= len(data)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:  # the reader is gone: swallow the rest, so that nobody waits for us
                while self._queue.get() != _END:
                    pass
                return


_LINE_EVERY_S = 5.0
NOTE = "        note: "


class _Shown:
    """What one run, or one other thing that goes on, has on the screen; `label` names it where several go on."""

    def __init__(self, label: str, began_s: float) -> None:
        self.label, self.last_s = label, began_s
        self.tamers = {1: Sanitizer(), 2: Sanitizer()}
        self.begun = {1: b"", 2: b""}  # the line that has no end yet, where lines are put together


class PlainScreen:
    """Writes lines; how far a run is at most every few seconds, and the workload's output where asked for.

    Each event names its run, "" is what is no run.  Where several go on, each line begins with its run's number.
    """

    def __init__(
        self, sink: Sink, *, live: bool, clock: Callable[[], float] = time.monotonic, as_madengine: bool = False
    ) -> None:
        self._sink, self._live, self._clock = sink, live, clock
        self._as_madengine = as_madengine
        self._one = threading.RLock()  # runs tell of themselves from threads of their own
        self._shown: dict[str, _Shown] = {}
        self._several = False  # since several go on, or did a moment ago
        self._other = _Shown("", float("-inf"))  # what nothing was begun for
        self._failed: list[tuple[str, str]] = []
        self._rows = 0
        self._notes: set[str] = set()
        self._colours = has_colour(sink.isatty())

    def started(self, plan: RunPlan, position: int, total: int) -> None:
        """Name the run and what is special about it."""
        steps = plan.variant.steps if plan.variant else None
        notes = [*([study_words(plan.study)] if plan.study else []), *plan.notes]
        lines = [title(plan, position, total), *(f"      {note}" for note in notes)]
        self.begin(lines, steps, plan.id, f"[{position}/{total}]")

    def logs(self, plan: RunPlan) -> None:
        """Say where the log of the run is."""
        self._line(f"      log: {plan.folder.relative_to(plan.workspace)}/run.log", plan.id)

    def begin(self, lines: Iterable[str], steps: int | None = None, run_id: str = "", label: str = "") -> None:
        """Say what starts now; how far it is comes after this."""
        with self._one:
            self._shown[run_id] = _Shown(label, self._clock())
            self._several = len(self._shown) > 1 or self._several
            for text in lines:
                self._line(text)

    def phase(self, text: str, run_id: str = "") -> None:
        """Say what the run does now, if it takes a while or everything is asked for; all of it is in the log."""
        if self._live:
            self._line(f"      {text}", run_id)
        else:
            self._now_and_then(text, run_id)

    def advance(self, done: int, text: str, run_id: str = "") -> None:
        """Say how far it is, of the total that `begin` named."""
        self._now_and_then(text, run_id)

    def stopping(self, text: str, run_id: str = "") -> None:
        """Say that the run is being ended."""
        self._line(f"      {text}", run_id)

    def output(self, chunk: bytes, stream: int, run_id: str = "") -> None:
        """Pass the workload's output on where asked for; of several runs, line by line."""
        if not self._live:
            return
        with self._one:
            shown = self._shown.get(run_id, self._other)
            text = shown.tamers[stream].feed(chunk) if self._sink.isatty() else chunk
            if not self._several and not shown.begun[stream]:
                self._sink.put(text)
                return
            *lines, shown.begun[stream] = (shown.begun[stream] + text).split(b"\n")
            self._sink.put(b"".join(f"{shown.label} ".encode() + line + b"\n" for line in lines))

    def mad_line(self, text: str, run_id: str = "") -> None:
        """Say what madengine would, where that is wanted."""
        if self._as_madengine:
            self._line(text, run_id)

    def step(self, plan: RunPlan, step: Step) -> None:
        """Say how far the training is."""
        if step.phase == "train" and not self._live:
            self._now_and_then(step_line(plan, step), plan.id)

    def finished(self, plan: RunPlan, result: Result) -> None:
        """Say how the run ended."""
        with self._one:
            self._rows += plan.writes_row and (not plan.skip_model_run or result.status is Status.FAILURE)
            if result.status is Status.FAILURE:
                self._failed.append((plan.card.name, result.code))
            told = [line for line in ending(plan, result) if line not in self._notes]
            self._notes.update(f"{NOTE}{note}" for note in result.image.notes)  # true of the batch: once is enough
            self.end(told, plan.id)

    def end(self, lines: Iterable[str], run_id: str = "") -> None:
        """Say how it ended."""
        with self._one:
            shown = self._shown.get(run_id, self._other)
            for unended in filter(None, shown.begun.values()):
                self._sink.put(f"{shown.label} ".encode() + unended + b"\n")
            for text in lines:
                self._line(text, run_id, coloured)
            self._shown.pop(run_id, None)
            self._several = self._several and bool(self._shown)

    def warn(self, text: str) -> None:
        """Say what is wrong."""
        self._line(f"warning: {text}")

    def total(self, outcome: RunOutcome, output: Path | None) -> None:
        """Say how a batch of more than one run came out, and where its rows are; None where they are in no file yet."""
        counts = Counter(status_words(result.status.value, result.suspect) for result in outcome.results)
        if len(outcome.results) > 1:
            self._line(", ".join(f"{count} {status}" for status, count in counts.items()), colour=all_coloured)
            failed = [f"{name} ({cause})" for name, cause in self._failed]
            if failed:
                self._line(f"failed: {', '.join(failed)}")
        aside = ", ".join(outcome.kept_aside)
        if output is None:
            self._line("results: in the folders of the runs; madlite collect adds them to perf.csv")
        elif self._rows > len(outcome.kept_aside):
            self._line(f"results: {output}" + (f", but for {aside}" if aside else ""))
        elif aside:
            self._line(f"no results in {output}: {aside}")

    def close(self) -> None:
        """Nothing is held back."""

    def _now_and_then(self, text: str, run_id: str) -> None:
        with self._one:
            now, shown = self._clock(), self._shown.get(run_id, self._other)
            if now - shown.last_s >= _LINE_EVERY_S:
                shown.last_s = now
                self._line(f"      {text}", run_id)

    def _line(self, text: str, run_id: str = "", colour: Callable[[str], str] = str) -> None:
        """Write one line, whatever a card, a workload or its results file put into it; its status in `colour`."""
        with self._one:
            shown = self._shown.get(run_id)
            label = f"{shown.label} " if shown is not None and shown.label and self._several else ""
            line = printable(label + text)
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
        self._tasks: dict[str, TaskID] = {}

    def begin(self, lines: Iterable[str], steps: int | None = None, run_id: str = "", label: str = "") -> None:
        """Say what starts now and show that it goes on."""
        with self._one:
            super().begin(lines, steps, run_id, label)
            self._tasks[run_id] = self._progress.add_task("starting", total=steps)
            self._progress.start()

    def phase(self, text: str, run_id: str = "") -> None:
        """Show what the run does now."""
        self._update(run_id, text[:100])

    def step(self, plan: RunPlan, step: Step) -> None:
        """Show how far the training is."""
        if step.phase != "train" or Quantity.LOSS not in step.values:
            return
        total = plan.variant.steps if plan.variant else None
        text = "finishing" if total and step.n >= total else step_line(plan, step)
        self._update(plan.id, text, step.n)

    def advance(self, done: int, text: str, run_id: str = "") -> None:
        """Show how far it is."""
        self._update(run_id, text[:100], done)

    def stopping(self, text: str, run_id: str = "") -> None:
        """Show that the run is being ended."""
        self._update(run_id, text)

    def end(self, lines: Iterable[str], run_id: str = "") -> None:
        """Replace the progress by the outcome."""
        with self._one:
            self._take_away(run_id)
            super().end(lines, run_id)

    def close(self) -> None:
        """Take the progress lines away."""
        with self._one:
            for run_id in list(self._tasks):
                self._take_away(run_id)

    def _update(self, run_id: str, text: str, completed: int | None = None) -> None:
        with self._one:
            if run_id in self._tasks:
                label = f"{self._shown[run_id].label} " if self._several else ""
                self._progress.update(self._tasks[run_id], completed=completed, description=_escaped(label + text))

    def _take_away(self, run_id: str) -> None:
        task = self._tasks.pop(run_id, None)
        if not self._tasks:
            self._progress.stop()
        if task is not None:
            self._progress.remove_task(task)

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
    lines += [f"        {text}" for text in kept(plan, result)]
    if plan.blocked is None and "total" in result.durations_s:
        lines.append(f"        took {duration(result.durations_s['total'])}")
    return lines


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))
