"""Read a log while it streams: lines → events, the result line, error lines, and those that explain a failure.

Memory is bounded: the steps (8 bytes a number), the last lines, and the first line of each kind of finding are kept.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from madlite.backends.log_formats import explained
from madlite.measure.failure_scan import FailureScan
from madlite.measure.launchers import JobScan
from madlite.measure.lines import Block, LineSplitter, has_wrapped_number, rank_of, unwrap_numbers
from madlite.measure.memory import MemoryScan
from madlite.measure.performance import PerformanceScan
from madlite.measure.rules import FOLLOWER, plain
from madlite.measure.steps import NodeSpeeds, Steps
from madlite.measure.training import LossScan, TrainingState, may_be_aside
from madlite.model import (
    STEPS_APART,
    EffectiveConfig,
    Ended,
    ErrorScan,
    Event,
    FailureRule,
    Line,
    Phase,
    Quantity,
    Reader,
    RunPlan,
    Step,
    Summary,
    Unread,
)
from madlite.rank_labels import RankLabels, without_outer
from madlite.text import whole_number

# Find error patterns in a script's output, a line at a time: MAD's net for scripts that hide their failure.
#
# Rule: madengine 2's, a line with a pattern and without harmless text; harmless too is a line of rocprofv3, whose `E`
# and `W` with the date are levels of its log and no errors of the workload.

_MOST_UNREAD, _LONGEST_UNREAD = 8, 2000  # what readers report, and characters of each
_ROCPROF = re.compile(r"^(?:\[\S+?\]:?\s*)?[EW]\d{8}\b.*(?:generateRocpd|simple_timer|tool)\.cpp|\[rocprofv3\]")


class PatternScan:
    """Store the first line of each pattern; lines that came together are searched only where one of them has one."""

    def __init__(self, scan: ErrorScan) -> None:
        self.found: dict[str, str] = {}  # pattern → line, in the order of the log
        self._scan = scan

    def feed(self, block: Block) -> None:
        """Take lines in; of several patterns in a line the first of the list counts."""
        present = [pattern for pattern in self._scan.patterns if pattern in block.text]
        if all(pattern in self.found for pattern in present):
            return
        for line in block.lines:
            pattern = next((pattern for pattern in present if pattern in line), None)
            if pattern is None or pattern in self.found:
                continue
            if not any(benign in line for benign in self._scan.benign) and not _ROCPROF.search(line):
                self.found[pattern] = line.strip()


# Find by what RCCL or NCCL connects nodes: their lines with NCCL_DEBUG=INFO, of one rank or of a connection of two.
#
# Formats: NCCL 2.4 to 2.28 and RCCL of the same, src/net.cc, src/transport/net*.cc: `Using network Socket`,
# `NET/Socket : Using [0]eth0:10.0.0.1<0>`, `Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA`; the names of
# plugins have spaces and dashes (`AWS Libfabric`).  NCCL_DEBUG_SUBSYS=NET prints all of them but the first.

_NETWORK = ("Using network ", "NET/")
_OF_NETWORK = re.compile(
    r"NCCL INFO .*?(?:Using network (?P<used>\S+)|via NET/(?P<via>[^/]+)/|NET/(?P<found>\w+) : Using)"
)
_LONGEST_NETWORK = 200


class NetworkScan:
    """Store the first line that tells of sockets, and the first that tells of another network."""

    def __init__(self) -> None:
        self.rdma = ""
        self._sockets = self._found = ""

    @property
    def sockets(self) -> str:
        """The line by which sockets are used; that they were found tells so only where nothing else is used."""
        return self._sockets or ("" if self.rdma else self._found)

    def feed(self, block: Block) -> None:
        """Take lines in."""
        if (self._sockets and self.rdma) or not any(text in block.text for text in _NETWORK):
            return
        for line in block.lines:
            named = _OF_NETWORK.search(line) if "NCCL INFO" in line else None
            used, found = (named["used"] or named["via"], named["found"]) if named is not None else (None, None)
            text = line.strip()[:_LONGEST_NETWORK]
            if used == "Socket":
                self._sockets = self._sockets or text
            elif used is not None:
                self.rdma = self.rdma or text
            elif found == "Socket":
                self._found = self._found or text


_log = logging.getLogger(__name__)
_ODD_LOSS = re.compile(r"(?i)loss\W{0,10}?([-+]?\d[\d.]*,\d[\d.,]*)")  # a number of another language, read as NaN
_NAN = re.compile(r"(?i)(?<![a-z])nan(?! iterations)")  # as a number: Megatron counts such iterations in each line
_REDRAWN = re.compile(r"\d/\d{1,12} \[\d{1,9}:\d\d(?::\d\d)?<")  # a progress bar: what it says of a step changes


class LogMonitor:
    """Read the output of the model's step chunk by chunk; the attributes hold the findings.

    `script_reader` reads the log of a script that prints its own result: its steps do not decide the verdict.  With
    several `nodes` each line starts with its node, as in run.log.  Of several `jobs` that may have been appended to one
    file the last one counts.  Steps after the `last` are those of a profiler: only the callbacks get them.
    """

    def __init__(
        self,
        readers: Iterable[Reader],
        rules: Iterable[FailureRule] = (),
        *,
        error_scan: ErrorScan | None = None,
        now: Callable[[], float] = lambda: float("nan"),
        on_step: Callable[[Step], None] = lambda step: None,
        on_event: Callable[[Event], None] = lambda event: None,
        script_reader: Reader | None = None,
        nodes: int = 1,
        jobs: bool = False,
        last: int | None = None,
    ) -> None:
        self.jobs = 1  # that the log has one after another
        self._job_scan = JobScan() if jobs else None
        self.lines = 0  # that are not blank
        self.config: dict[str, str] = {}  # the configuration that the log reports
        self.marked_precisions: frozenset[str] = frozenset()  # those that the log would name
        self.scan = PerformanceScan()
        self.memory = MemoryScan()
        self.network = NetworkScan()
        self.loss_scan = LossScan()
        self.training = TrainingState()
        self.unread: tuple[str, ...] = ()  # what a reader could not read as it was described to it
        self.nan_before = ""  # the same, or a loss of NaN, of the trainings before the last one
        self.trainings = 1  # that the log has one after another; what is kept is the last one's
        self._started: set[tuple[int, int | None]] = set()  # nodes and ranks that reported the start of this one
        self._labels = RankLabels()
        self.failures = FailureScan(rules, self._labels.plain)  # what its lines tell of why it ended
        self._patterns = PatternScan(error_scan) if error_scan is not None else None
        self._script_reader = script_reader
        self._readers = (*readers, *([script_reader] if script_reader is not None else []))
        self._trained, self._is_late = 0, False  # lines with training steps; whether the last was told at a later one
        self._on_step, self._on_event, self._now, self._nodes = on_step, on_event, now, nodes
        self._last = last
        self._written_s: float | None = None
        self.config_lines: dict[str, str] = {}  # key of `config` → the line that reports it
        self._splitters: dict[tuple[int, int], LineSplitter] = {}  # of each node and stream
        self._forget_training()

    def _forget_training(self) -> None:
        """Have nothing yet of the training that goes on."""
        self.steps = Steps()
        self.ended = False  # since the last step
        self.ended_at: int | None = None  # the highest step when the training's end mark came last
        self.summary: dict[str, str] = {}
        self.torn: tuple[str, ...] = ()  # figures of the summary in a last line that nothing ended
        self.missed_mark = ""  # why a training without its end mark is none that came to its end
        self.nan_loss = self.nan_norm = ""  # the first line whose loss is not finite, or whose gradient norm is NaN
        self.node_speeds = NodeSpeeds(self._nodes)
        self._repeated, self._last_repeated = 0, -1  # steps that came again with other values, and the last of them
        self._highest: int | None = None  # of the training steps
        self.last_step = 0  # the highest since the training was started last
        self.restarted_at: int | None = None  # the step to which the training went back last, or went on from
        self.restarted_from = 0  # the last step before that
        self._resumes = False  # whether the next step is the first of a training that was started again

    def feed(self, chunk: bytes, stream: int = 1, node: int = 0, written_s: float | None = None) -> None:
        """Take output of one stream of one node; `written_s` is its time where that is not now."""
        self._written_s = written_s
        splitter = self._splitters.get((node, stream))
        if splitter is None:
            splitter = LineSplitter(self._time, node if self._nodes > 1 else None, self._labels)
            self._splitters[node, stream] = splitter
        self._process(splitter.take(chunk), splitter)

    def _time(self) -> float:
        return self._now() if self._written_s is None else self._written_s

    def finish(self, outputs: Path | None = None) -> None:
        """Take what was left without a line's end, and the files the framework left in `outputs`."""
        for splitter in self._splitters.values():
            self._process(splitter.take_rest(), splitter, whole=False)
        self.failures.finish()
        if outputs is not None:
            for reader in self._readers:
                self._call(reader, "finish", outputs)
        ranks = self.steps.ranks()
        epochs = self._labels.bare.issuperset(ranks) and not self.steps.is_shared  # or the steps' own numbers
        if ranks and (epochs or self._labels.alone.issuperset(ranks)):
            self.steps = self.steps.without_ranks()

    @property
    def is_mixed(self) -> bool:
        """Whether the steps of several ranks are read as one's: most came again with other values.

        They come line by line, or one rank's log stands after another's.
        """
        line_by_line = self._repeated > 1 and 2 * self._repeated >= self.steps.count()
        return line_by_line or self.training.is_of_another_rank(self.steps)

    @property
    def rule(self) -> FailureRule | None:
        """The rule that explains a failure best, its hint in the words of the line."""
        candidate = self.failures.candidate
        if candidate is None or candidate.rule is None:
            return None
        return replace(candidate.rule, hint=explained(candidate.rule.hint, candidate.groups))

    @property
    def matched_patterns(self) -> dict[str, str]:
        """The error patterns and their first lines; none where a reader knows the log, for its steps say more.

        Steps of a script's log do not: its number is not theirs.
        """
        texts = self.steps and self._script_reader is None
        return self._patterns.found if self._patterns is not None and not texts else {}

    @property
    def scanned(self) -> bool:
        """Whether error patterns are looked for."""
        return self._patterns is not None

    @property
    def best_error_line(self) -> str:
        """The line that explains a failure best: a candidate's, the last that looks like an error, or the last."""
        return self._conclusive_line or self.failures.last_line

    @property
    def cut_line(self) -> str:
        """The line that explains best why no more steps came: a conclusive one since the last, else that step's own."""
        return self._conclusive_line or plain(self.failures.step_line) or self.failures.last_line

    @property
    def _conclusive_line(self) -> str:
        candidate = self.failures.candidate
        known = candidate is not None and candidate.tier <= FOLLOWER
        return candidate.line if candidate is not None and known else self.failures.error_line

    def _process(self, block: Block, splitter: LineSplitter, *, whole: bool = True) -> None:
        """Scan lines that came together, all of them for what is rare, and let the readers read each."""
        if not block.lines:
            return
        begins = self._job_scan.find(block) if self._job_scan is not None else None
        if begins is not None:
            before, block = block.split(begins)
            self._process_part(before, splitter)
            self._begin_job()
        self._process_part(block, splitter, whole=whole)

    def _begin_job(self) -> None:
        """Forget what the jobs before printed: the last one counts, from its own beginning."""
        self.jobs += 1
        self._begin_again()
        self.failures.begin_again()
        self.scan, self.loss_scan = PerformanceScan(self.scan.earlier), LossScan()
        self.memory, self.network = MemoryScan(), NetworkScan()
        self._started = set()
        if self._patterns is not None:
            self._patterns.found.clear()

    def _process_part(self, block: Block, splitter: LineSplitter, *, whole: bool = True) -> None:
        if not block.lines:
            return
        self.lines += len(block.lines)
        self.scan.feed(block, whole)
        self.memory.feed(block)
        self.network.feed(block)
        self.loss_scan.feed(block)
        if self._patterns is not None:
            self._patterns.feed(block)
        busy, wraps = may_be_aside(block.text), has_wrapped_number(block.text)
        last, trained = -1, None  # the place of the block's last training step, and how many lines go up to it
        for place, line in enumerate(splitter.number(block)) if self._readers else ():
            before = self._trained
            told = replace(line, text=unwrap_numbers(line.text)) if wraps and has_wrapped_number(line.text) else line
            for reader in self._readers:
                self._call(reader, "feed", told, whole, line)
            if self._trained != before:
                last, trained = place, place + (not self._is_late)
            elif busy and before:
                self.training.check_aside(line.text)
        if last >= 0:
            self.failures.step_line = block.lines[last]
        self.failures.feed(block, trained)

    def _call(
        self, reader: Reader, member: str, argument: Line | Path, whole: bool = True, line: Line | None = None
    ) -> None:
        """Take a reader's events in; one that raises or returns invalid events is left out from then on.

        `line` is the log's own, of which the reader is given the numbers without what their library put around them.
        """
        try:
            answer = getattr(reader, member)(argument)
            if answer == ():  # of most lines, millions of them
                return
            events = tuple(answer)
            for event in events:
                self._note(event, line, whole)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the border to a plugin's reader
            _log.warning("reader %s failed and is left out: %r", type(reader).__name__, error)
            self._readers = tuple(other for other in self._readers if other is not reader)
            if reader is not self._script_reader:  # its steps come no more, whatever the training does
                self._on_event(Phase(name="without a reader"))
            return
        for event in events:
            if reader is not self._script_reader:  # a script may well go on in silence after its training
                self._on_event(event)
            if isinstance(event, Step):
                self._on_step(event)

    def _note(self, event: Event, line: Line | None, whole: bool) -> None:
        text = line.text if line is not None else ""
        if isinstance(event, Step):
            self._note_step(event if whole else _without_cut(event), line)
        elif isinstance(event, Summary):
            self._note_summary(event, whole)
        elif isinstance(event, EffectiveConfig):
            self.config.update(texts := _texts(event.values))
            self.config_lines.update(dict.fromkeys(texts, text))
            self.marked_precisions |= set(map(str, event.marked_precisions))
        elif isinstance(event, Phase):
            self.training.is_aside = True
            if event.begins or (event.starts and line is not None and self._starts_another(line)):
                self._begin_again()
        elif isinstance(event, Ended):
            self._note_end(event, text)
        elif isinstance(event, Unread) and len(self.unread) < _MOST_UNREAD:
            self.unread = tuple(dict.fromkeys((*self.unread, event.text[:_LONGEST_UNREAD])))

    def _note_step(self, step: Step, line: Line | None) -> None:
        if self._last is not None and step.n + self.steps.from_zero > self._last:
            return
        text = line.text if line is not None else ""
        if text and self._is_another(step):
            self._begin_again()
        self._note_again(step, text)
        again = self.steps.add(self.training.stamped(step, text), resumed=self._resumes)
        if step.phase == "train":
            if line is not None and self._nodes > 1:
                self.node_speeds.note(step, line.node)
            self._note_training(step, text, again=again)
        else:
            self.training.is_aside = True

    def _note_end(self, event: Ended, text: str) -> None:
        if event.missed:
            self.missed_mark = event.marker
        elif event.code:
            self.failures.end(plain(text) or event.marker)
        else:
            self.ended, self.ended_at = True, self._highest

    def _note_summary(self, event: Summary, whole: bool) -> None:
        figures = _texts(event.values)
        if event.doubt is not None:
            self.training.computed, self.training.summary_doubt = _texts(event.computed), event.doubt
        if whole:
            self.summary.update(figures)
        else:  # its number may have been cut short
            self.torn = tuple(figures)
        bad = next((f"{name}: {text}" for name, text in figures.items() if "loss" in name and _is_odd(text)), "")
        self.nan_loss = self.nan_loss or bad

    def _note_again(self, step: Step, text: str) -> None:
        """Count a step that comes again with other values; where the training went back those are its own."""
        again = self.restarted_at is not None and self.last_step < (self._highest or 0)
        new = text and not again and step.phase == "train" and step.n != self._last_repeated
        if new and _REDRAWN.search(text) is None and self.steps.repeats_with_other_values(step):
            self._repeated, self._last_repeated = self._repeated + 1, step.n

    def _is_another(self, step: Step) -> bool:
        """Return whether a line's step is another training's first: the one before came to its end, and this goes back.

        Which of its trainings a script's number is of only the script knows.
        """
        return self._is_done and self._script_reader is None and self.steps.starts_over(step, ended=self.ended)

    @property
    def _is_done(self) -> bool:
        """Whether the training came to its end: its mark, or the last of the number of steps it reports."""
        last = self.last_step + self.steps.from_zero
        return self.ended or last >= (expected_steps(self.config) or math.inf)

    def _starts_another(self, line: Line) -> bool:
        """Return whether a line that reports a training's start is another one's: its rank had reported one before.

        Logs of ranks may stand one after another, each with its own start and end.
        """
        speaker = (line.node, line.rank)
        told_again = speaker in self._started and self.last_step - self.steps.begin > STEPS_APART
        self._resumes = self._resumes or (told_again and not self._is_done and self._script_reader is None)
        another = self._is_done and bool(self.steps) and (speaker in self._started or not self._started)
        self._started = {speaker} if another else self._started | {speaker}
        return another and self._script_reader is None

    def _begin_again(self) -> None:
        """Forget the steps and figures of a training before this one, which has its own; one without any is none."""
        if not (self.steps or self.summary or self.torn or self.ended):
            return
        self.trainings += 1
        self.training = self.training.of_another(self.steps, ended=self.ended)
        self.nan_before = self.nan_before or self.nan_loss or self.nan_norm
        self._forget_training()

    def _note_loss(self, step: Step, text: str) -> None:
        """Check a step's loss and gradient: a Trainer prints 0 for a loss that is NaN, and the norm shows it."""
        loss, norm = step.values.get(Quantity.LOSS), step.values.get(Quantity.GRAD_NORM, 0.0)
        if loss is not None and math.isnan(loss) and _NAN.search(text) is None and (odd := _ODD_LOSS.search(text)):
            self.training.unread.setdefault(Quantity.LOSS, odd[1])
            return
        if loss is not None and not self.nan_loss and not (math.isfinite(loss) and (loss or math.isfinite(norm))):
            self.nan_loss = _line_of(step, text, f"loss {loss}")
        if math.isnan(norm) and not self.nan_norm:
            self.nan_norm = _line_of(step, text, f"gradient norm {norm}")

    def _note_training(self, step: Step, text: str, *, again: bool) -> None:
        """Look at a training step: its loss, and that the training goes on, where it comes from a line of the log.

        `again` says that its rank's training was started again before it: another rank's log may begin at its place.
        """
        self._note_loss(step, text)
        self.training.note(step, is_other_rank=self.last_step - STEPS_APART <= step.n <= self.last_step)
        self._is_late = step.late
        if text:
            self._trained += 1
            self.failures.forget()
        if text and self.ended and step.n != self._highest:  # the last step of other ranks may come after the mark
            self.ended = False
        self._highest = step.n if self._highest is None else max(self._highest, step.n)
        if self._resumes or (again and step.n < self.last_step - STEPS_APART):
            self._resumes = False
            self.restarted_from, self.restarted_at, self.last_step = self.last_step, step.n, step.n
            self.ended_at = None
        self.last_step = max(self.last_step, step.n)


def _without_cut(step: Step) -> Step:
    """Return the step of a last line that nothing ended: a number or its unit may be cut, and others follow."""
    if step.late:
        return step
    values = {quantity: value for quantity, value in step.values.items() if not math.isfinite(value)}
    return replace(step, values=values, unread={})


def _line_of(step: Step, text: str, otherwise: str) -> str:
    """Return a step's line, its rank's label in one form."""
    line = text.strip() or f"step {step.n}: {otherwise}"
    bare = without_outer(line) if step.rank is not None and rank_of(line) is None else line
    return f"[rank{step.rank}]: {bare}" if bare != line else line


def _is_odd(text: str) -> bool:
    """Return whether a figure is NaN or infinite."""
    return text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


def last_measured(plan: RunPlan | None) -> int | None:
    """Return the last step that is measured of a run of which later ones are profiled; None of others."""
    return plan.variant.steps if plan is not None and plan.profile and plan.variant is not None else None


def expected_steps(config: Mapping[str, str]) -> int | None:
    """Return how many steps a log itself says there are to be; None where it does not."""
    return whole_number(config.get("steps", ""))


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """Return what a reader reports of a log as text; what a pattern's group did not find is nothing."""
    return {name: str(value) for name, value in values.items() if value is not None}
