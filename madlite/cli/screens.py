"""Two screens: plain lines for a pipe or a log, and a live progress line for a terminal."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from madlite.cli.format import details, mad_lines, retained, step_line, study_text, title, verdict_line
from madlite.cli.terminal import Sanitizer, all_coloured, coloured, has_colour, without_secrets
from madlite.files import write_all
from madlite.model import Result, RunPlan, Status, Step
from madlite.run.screen import RunOutcome
from madlite.text import duration, printable, shortened_middle, status_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID, TimeRemainingColumn

# Output that never blocks a run: a thread writes it, and what a full pipe does not take is counted and dropped.

_MOST_BYTES = 8 << 20
_END = b""


class Sink:
    """Writes to a file descriptor from a thread of its own."""

    encoding = "utf-8"
    dropped_bytes = 0

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="madlite-output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Write text, as a file."""
        self.put(text.encode("utf-8", "replace"))
        return len(text)

    def put(self, data: bytes) -> None:
        """Queue bytes; never blocks."""
        with self._lock:
            full = self._waiting_bytes + len(data) > _MOST_BYTES
            self._waiting_bytes += 0 if full else len(data)
            self.dropped_bytes += len(data) if full else 0
        if data and not full:
            self._queue.put(data)

    def flush(self) -> None:
        """Do nothing: the thread writes at once."""

    def isatty(self) -> bool:
        """Return whether the output is a terminal."""
        return os.isatty(self._fd)

    def fileno(self) -> int:
        """Return the file descriptor written to."""
        return self._fd

    def close(self, limit_s: float = 3.0) -> None:
        """Write what is left, for a limited time: a reader that stalls cannot block the exit."""
        self._queue.put(_END)
        self._thread.join(limit_s)

    def _drain(self) -> None:
        while (data := self._queue.get()) != _END:
            with self._lock:
                self._waiting_bytes -= len(data)
            try:
                write_all(self._fd, memoryview(data))
            except OSError:  # the reader is gone: discard the rest
                while self._queue.get() != _END:
                    pass
                return


class DirectSink(Sink):
    """Writes at once: no run of this machine waits for a slow reader; one that is gone is no error."""

    def __init__(self, fd: int) -> None:
        self._fd, self._is_read = fd, True

    def write(self, text: str) -> int:
        """Write text without what is a secret by its shape, as a file."""
        return super().write(without_secrets(text))

    def put(self, data: bytes) -> None:
        """Write bytes."""
        if self._is_read:
            try:
                write_all(self._fd, memoryview(data))
            except OSError:
                self._is_read = False

    def close(self, limit_s: float = 3.0) -> None:
        """Do nothing: all is written."""


Comparison = Callable[[RunPlan, Result], str]


_LINE_EVERY_S = 5.0
_LONGEST_NAME = 32  # characters of a card's name in a row
_WAITING, _ALL = "waiting", "all"  # rows that are no run's, whose ids have a time in them
NOTE = "        note: "


class _ScreenEntry:
    """The screen state of one run or other activity; `label` and its `name` identify it where several are active.

    On a terminal it has a row, a `task` of the progress, which shows its `text`.
    """

    def __init__(self, label: str, began_s: float, name: str = "") -> None:
        self.label, self.last_s, self.name = label, began_s, name
        self.task: TaskID | None = None
        self.text = "starting"
        self.sanitizers = {1: Sanitizer(), 2: Sanitizer()}
        self.partial = {1: b"", 2: b""}  # an incomplete line, where lines are joined


class PlainScreen:
    """Writes lines; progress at most every few seconds, and the workload's output with --live-output.

    With `as_madengine` madengine's own lines are printed too.  `compare` returns how a success compares with published
    figures, "" where none applies.  Each event has its run's id, "" for none.  Where several are active, each line
    begins with its run's number.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        live: bool,
        clock: Callable[[], float] = time.monotonic,
        as_madengine: bool = False,
        compare: Comparison = lambda plan, result: "",
    ) -> None:
        self._sink, self._live, self._clock = sink, live, clock
        self._as_madengine = as_madengine
        self._compare = compare
        self._lock = threading.RLock()  # runs report from their own threads
        self._shown: dict[str, _ScreenEntry] = {}
        self._several = False  # while several are active, or were a moment ago
        self._default = _ScreenEntry("", float("-inf"))  # of output without `begin`
        self._failed: list[tuple[str, str]] = []
        self._rows = 0
        self._of_batch = {name: _ScreenEntry("", float("-inf")) for name in (_WAITING, _ALL)}
        self._notes: set[str] = set()
        self._colours = has_colour(sink.isatty())

    def started(self, plan: RunPlan, position: int, total: int) -> None:
        """Print the run's title and notes."""
        notes = [*([study_text(plan.study)] if plan.study else []), *plan.notes]
        lines = [title(plan, position, total), *(f"      {note}" for note in notes)]
        name = shortened_middle(plan.card.name, _LONGEST_NAME)
        self.begin(lines, plan.trained_steps, plan.id, f"[{position}/{total}]", name)

    def logs(self, plan: RunPlan) -> None:
        """Print the path of the run's log."""
        self._line(f"      log: {plan.folder.relative_to(plan.workspace)}/run.log", plan.id)

    def begin(
        self, lines: Iterable[str], steps: int | None = None, run_id: str = "", label: str = "", name: str = ""
    ) -> None:
        """Print the first lines of an activity; progress follows."""
        with self._lock:
            if label:  # an earlier attempt's
                self._shown = {key: entry for key, entry in self._shown.items() if entry.label != label}
            self._shown[run_id] = _ScreenEntry(label, self._clock(), name)
            self._several = len(self._shown) > 1 or self._several
            for at, text in enumerate(lines):
                self._line(text, run_id if at else "")  # the title has the label itself
            self._add_row(self._shown[run_id], steps)

    def phase(self, text: str, run_id: str = "") -> None:
        """Show the current phase; with --live-output as a line of its own."""
        if self._live:
            self._line(f"      {text}", run_id)
        else:
            self._show_progress(text, run_id)

    def advance(self, done: int, text: str, run_id: str = "") -> None:
        """Show progress towards the total given to `begin`."""
        self._show_progress(text, run_id, done)

    def stopping(self, text: str, run_id: str = "") -> None:
        """Print that the run is being stopped."""
        self._line(f"      {text}", run_id)

    def output(self, chunk: bytes, stream: int, run_id: str = "") -> None:
        """Print the workload's output with --live-output; of several runs, line by line."""
        if not self._live:
            return
        with self._lock:
            shown = self._shown.get(run_id, self._default)
            text = shown.sanitizers[stream].feed(chunk) if self._sink.isatty() else chunk
            if not self._several and not shown.partial[stream]:
                self._sink.put(text)
                return
            *lines, shown.partial[stream] = (shown.partial[stream] + text).split(b"\n")
            self._sink.put(b"".join(f"{shown.label} ".encode() + line + b"\n" for line in lines))

    def mad_line(self, text: str, run_id: str = "") -> None:
        """Say what madengine would, where that is wanted."""
        if self._as_madengine:
            self._line(text, run_id)

    def step(self, plan: RunPlan, step: Step) -> None:
        """Show the progress of the training."""
        if step.phase == "train" and not self._live:
            self._show_progress(step_line(plan, step), plan.id, step.n)

    def finished(self, plan: RunPlan, result: Result) -> None:
        """Print the outcome of the run."""
        compared = self._compare(plan, result)
        with self._lock:
            self._rows += plan.writes_row and (not plan.skip_model_run or result.status is Status.FAILURE)
            if result.status is Status.FAILURE:
                self._failed.append((plan.card.name, result.code))
            report = [line for line in closing_report(plan, result, compared) if line not in self._notes]
            self._notes.update(f"{NOTE}{note}" for note in result.image.notes)  # true of the batch: once is enough
            self.end(report, plan.id)

    def failed_before(self, card: str, cause: str) -> None:
        """Name a run in the totals that an earlier command of the batch ran."""
        self._failed.append((card, cause))

    def retrying(self, plan: RunPlan, result: Result, text: str) -> None:
        """Print the outcome of an attempt, and what follows it; until that begins it is one of those that go on."""
        with self._lock:
            shown, several = self._shown.get(plan.id), self._several
            self.end([*closing_report(plan, result), f"      {text}"], plan.id)
            if shown is not None:
                self._shown[plan.id], self._several = shown, several

    def end(self, lines: Iterable[str], run_id: str = "") -> None:
        """Print the last lines of an activity."""
        with self._lock:
            shown = self._shown.get(run_id, self._default)
            self._remove_row(shown)
            for unfinished in filter(None, shown.partial.values()):
                self._sink.put(f"{shown.label} ".encode() + unfinished + b"\n")
            for text in lines:
                self._line(text, run_id, coloured)
            self._shown.pop(run_id, None)
            self._several = self._several and bool(self._shown)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._line(f"warning: {text}")

    def waiting(self, text: str) -> None:
        """Show why no run can start, as long as other processes have the GPUs; "" once one can."""
        self._row(_WAITING, f"waiting for GPUs: {text}" if text else "")

    def overall(self, ended: int, count: int, left_s: float | None) -> None:
        """Show how far a batch is whose runs go on at the same time; at its end there are the totals."""
        self._row(_ALL, overall_text(ended, count, left_s) if ended < count else "", ended, count)

    def total(self, outcome: RunOutcome, output: Path | str | None) -> None:
        """Print the totals of a batch and where its rows are; `output` is None where no file has them yet."""
        counts = Counter(status_text(result.status.value, result.suspect) for result in outcome.results)
        if outcome.results and len(outcome.results) + len(outcome.not_started) > 1:
            self._line(", ".join(f"{count} {status}" for status, count in counts.items()), colour=all_coloured)
            causes = Counter(self._failed).items()
            failed = [f"{f'{count} x ' if count > 1 else ''}{name} ({cause})" for (name, cause), count in causes]
            if failed:
                self._line(f"failed: {', '.join(failed)}")
        aside = ", ".join(outcome.pending)
        if output is None:
            self._line("results: in the folders of the runs; madlite runs collect adds them to perf.csv")
        elif self._rows > len(outcome.pending):
            self._line(f"results: {output}" + (f", but for {aside}" if aside else ""))
        elif aside:
            self._line(f"no results in {output}: {aside}")

    def close(self) -> None:
        """Do nothing: no output is buffered."""

    def _add_row(self, shown: _ScreenEntry, steps: int | None) -> None:
        """Do nothing: a line has no row that stays."""

    def _remove_row(self, shown: _ScreenEntry) -> None:
        """Do nothing either."""

    def _row(self, name: str, text: str, completed: int = 0, total: int | None = None) -> None:
        """Show what is no run's, one line every few seconds; "" ends it."""
        with self._lock:
            if text and self._is_due(self._of_batch[name]):
                self._line(text)

    def _show_progress(self, text: str, run_id: str, done: int | None = None) -> None:
        """Show how far an activity is, one line every few seconds."""
        with self._lock:
            if self._is_due(self._shown.get(run_id, self._default)):
                self._line(f"      {text}", run_id)

    def _is_due(self, shown: _ScreenEntry) -> bool:
        now = self._clock()
        if now - shown.last_s < _LINE_EVERY_S:
            return False
        shown.last_s = now
        return True

    def _line(self, text: str, run_id: str = "", colour: Callable[[str], str] = str) -> None:
        """Write one line made printable, with its status in `colour`."""
        with self._lock:
            shown = self._shown.get(run_id)
            label = f"{shown.label} " if shown is not None and shown.label and self._several else ""
            line = printable(label + text)
            self._write(colour(line) if self._colours else line)

    def _write(self, line: str) -> None:
        self._sink.write(line + "\n")


class LiveScreen(PlainScreen):
    """A terminal: finished lines stay, the running one shows step, speed, loss and the time left."""

    def __init__(self, sink: Sink, **options: Any) -> None:
        super().__init__(sink, live=False, **options)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._console = Console(file=sink, highlight=False)  # type: ignore[arg-type]
        wide = self._console.width >= 100
        self._progress: Progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            *([BarColumn(bar_width=24)] if wide else []),
            TimeElapsedColumn(),
            _left_column(),
            console=self._console,
            transient=True,
        )

    def close(self) -> None:
        """Remove the progress lines."""
        self._progress.stop()

    def _add_row(self, shown: _ScreenEntry, steps: int | None) -> None:
        shown.task = self._progress.add_task("", total=steps)
        for each in self._shown.values():  # which have their names from the second one on
            self._describe(each)
        self._progress.start()

    def _remove_row(self, shown: _ScreenEntry) -> None:
        if shown.task is not None:
            if len(self._progress.tasks) == 1:
                self._progress.stop()
            self._progress.remove_task(shown.task)
            shown.task = None

    def _row(self, name: str, text: str, completed: int = 0, total: int | None = None) -> None:
        """Show what is no run's in a row of its own, that of the batch below those of its runs."""
        with self._lock:
            shown = self._of_batch[name]
            if not text or name == _ALL:
                self._remove_row(shown)
            if text and shown.task is None:
                shown.task = self._progress.add_task("", total=total, has_end=True)
                self._progress.start()
            if shown.task is not None:
                self._progress.update(shown.task, completed=completed, description=printable(text[:200]))

    def _show_progress(self, text: str, run_id: str, done: int | None = None) -> None:
        with self._lock:
            shown = self._shown.get(run_id, self._default)
            shown.text = text[:100]
            self._describe(shown, done)

    def _describe(self, shown: _ScreenEntry, completed: int | None = None) -> None:
        """Show what the row of a run says, if it has one."""
        if shown.task is not None:
            words = [shown.label, shown.name] if self._several else []
            text = " ".join(filter(None, (*words, shown.text)))
            self._progress.update(shown.task, completed=completed, description=printable(text))

    def _write(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text.from_ansi(line), soft_wrap=True)


def _left_column() -> TimeRemainingColumn:
    """Return the column of the time that a run's steps still take; the row of all runs says it with the other words."""
    from rich.progress import Task, TimeRemainingColumn
    from rich.text import Text

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            has_none = task.total is None or task.fields.get("has_end")
            return Text("") if has_none else Text("left ").append_text(super().render(task))

    return Left(compact=True)


def overall_text(ended: int, count: int, left_s: float | None) -> str:
    """Return how many runs of a batch have ended, and when the last one will have, as text."""
    text = f"{ended} of {count} runs have ended"
    if left_s is None or left_s < 1:
        return text
    until = datetime.now().astimezone() + timedelta(seconds=left_s)
    return f"{text}, about {duration(left_s)} left, until {until:%H:%M}"


@contextmanager
def open_screen(*, live: bool, **options: Any) -> Iterator[PlainScreen]:
    """Yield the screen of standard output: a terminal gets a progress line, unless it shows the output itself.

    `options` are those of `PlainScreen`.
    """
    sink = Sink(sys.stdout.fileno())
    is_live = sink.isatty() and not live
    screen = LiveScreen(sink, **options) if is_live else PlainScreen(sink, live=live, **options)
    try:
        yield screen
        if sink.dropped_bytes:
            screen.warn(f"{sink.dropped_bytes} bytes were not shown: the output was not read; the log has them")
    finally:
        screen.close()
        sink.close()


def closing_report(plan: RunPlan, result: Result, compared: str = "") -> list[str]:
    """Return the lines a run ends with: verdict, how it compares, the deciding line of a failure, findings, duration.

    `compared` is how its number compares with published figures, "" where none applies.
    """
    lines = [f"      {verdict_line(plan, result)}"]
    lines += [f"        {words}: {text}" for words, text in mad_lines(result)]
    lines += [f"        {compared}"] if compared else []
    lines += [f"        {text}" for text in details(plan, result)]
    lines += [f"{NOTE}{finding}" for finding in result.findings]
    lines += [f"        {text}" for text in retained(plan, result)]
    if plan.blocked is None and "total" in result.durations_s:
        lines.append(f"        took {duration(result.durations_s['total'])}")
    return lines
