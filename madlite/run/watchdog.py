"""Distinguish a hung run from a slow one: check the silence, have evidence collected, give the reason to stop.

Only the watch's thread calls it; the evidence is collected in a thread of its own, so that a signal and the clock are
handled meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TypeAlias

from madlite.cancellation import in_thread
from madlite.model import STEPS_APART, Cause, EffectiveConfig, Ended, Event, Phase, RunPlan, Say, Step, Value
from madlite.model.results import StopReason
from madlite.text import whole_number

# When a run is silent for too long: the limits of its phases, and what is reported a silence before one is reached.
#
# The thread that reads the log notes what comes, the watch's thread looks.  docs/watchdog.md has the rules.

# How fast training steps come, in wall time: what a silence is compared with.
KEPT = 64  # reports that the medians are of, the last ones
MOMENT_S = 0.05  # what comes within it came together: the lines of several ranks, or of a buffer


class StepRate:
    """Takes each step's number as it comes.

    A report is what comes at one moment: one line or many, of one step or of several since the report before it.  Of
    ranks that report the same step the first counts.
    """

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None  # the report before the open one: when, and its last step
        self._open: tuple[float, int] | None = None
        self._gaps: deque[tuple[float, int]] = deque(maxlen=KEPT)  # between reports: seconds, and steps

    def step(self, n: int, now_s: float) -> None:
        """Take a step in."""
        began_s, last = self._open or (now_s, n)
        if self._open is None or n < last - STEPS_APART:
            self.pause()
            self._open = (now_s, n)
        elif n > last and now_s - began_s < MOMENT_S:
            self._open = (began_s, n)
        elif n > last:
            self._gaps.extend(self._last_gap())
            self._before, self._open = self._open, (now_s, n)

    def pause(self) -> None:
        """Note that something else than training comes now: the time until the next step is no step's."""
        self._gaps.extend(self._last_gap())
        self._before = self._open = None

    @property
    def known(self) -> int:
        """How many gaps between reports have been seen, of the last ones."""
        return len(self._all())

    @property
    def step_s(self) -> float | None:
        """The median duration of a step; None before there are two reports."""
        gaps = self._all()
        return median(gap_s / steps for gap_s, steps in gaps) if gaps else None

    @property
    def report_s(self) -> float | None:
        """The median time from one report to the next; None before there are two."""
        gaps = self._all()
        return median(gap_s for gap_s, _ in gaps) if gaps else None

    def _all(self) -> list[tuple[float, int]]:
        return [*self._gaps, *self._last_gap()]

    def _last_gap(self) -> list[tuple[float, int]]:
        """Return the gap before the open report, whose last step may still come."""
        if self._before is None or self._open is None:
            return []
        return [(self._open[0] - self._before[0], self._open[1] - self._before[1])]


# Silences and stalls as text.

SHOWN = 3  # stalls that are named, the longest


def seconds(duration_s: float) -> str:
    """Return a duration as people read it: `312 s`, `2.1 s`, `0.35 s`."""
    digits = 0 if duration_s >= 10 else 1 if duration_s >= 1 else 2
    return f"{duration_s:.{digits}f} s"


STEPS = 20  # median steps that a silence may last, where that is longer than the limit
REPORTS = 3  # median times between two reports that it may last, where a line covers many steps
FIRST_STEPS = 3  # times that the first step took to come, while the duration of a step is unknown
SLOW_S, SLOW_TIMES = 10.0, 3.0  # a step that takes longer than both, in seconds and in usual gaps, is reported
SLOW_OUTPUT_S = 60.0  # the same of output, where a phase has no steps
STEP_OPTION, START_OPTION = "--silence-limit", "--start-silence-limit"
_FEWEST = 2  # gaps between reports before a step can be called slow
_SHORTEST_S = 0.1  # between two looks: a chunk that is being read may take its time
_LOOK_S, _LOOKS = 5.0, 4  # the longest time between two looks, and how many there are at least before a limit


class SilenceNote(Value, frozen=True):
    """A silence that is worth a word; `hung` where it reached its limit, which `option` sets."""

    text: str
    hung: bool = False
    option: str = ""


class StallDetector:
    """Follows one action: what comes from it, and for how long nothing has.

    Before the first step, in a phase that the log names, and after the last step, any output is a sign of life, and
    the plan's `start_silence_s` the limit.  In between only a new step is one.
    """

    def __init__(self, plan: RunPlan, now: Callable[[], float] = time.monotonic) -> None:
        without_stream = not plan.traits.streams  # then silence means nothing
        self._start_s, self._step_s = (0.0, 0.0) if without_stream else (plan.start_silence_s, plan.silence_s)
        limits = [limit_s for limit_s in (self._start_s, self._step_s) if limit_s]
        self._look_s = min(_LOOK_S, *(limit_s / _LOOKS for limit_s in limits)) if limits else _LOOK_S
        self._trains = plan.result_rule.kind == "steps"
        self._steps = plan.trained_steps
        self._now = now
        self._lock = threading.Lock()
        self._rate = StepRate()
        self._stalls: list[tuple[float, str]] = []  # steps that took far longer than the others: how long, in words
        self._last_stall: tuple[float, str] | None = None
        self._following = self._reading = False
        self._began_s = self._last_sign_s = self._chunk_s = self._next_note_s = 0.0
        self._first_s = 0.0  # that the first step took to come
        self._last: dict[tuple[str, int | None], int] = {}
        self._highest: int | None = None
        self._from_zero = False
        self._phase = "start"  # what any output is a sign of life in; "" while steps are due

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the action that runs inside."""
        with self._lock:
            self._following = True
            self._began_s = self._last_sign_s = self._chunk_s = self._now()
        try:
            yield
        finally:
            with self._lock:
                silence_s = self._now() - self._last_sign_s
                is_stalled = self._is_slow(silence_s) and not self._phase
                self._last_stall = self._stall(silence_s, None) if is_stalled else None
                self._following = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Take output in: meanwhile nothing else can come, however long that takes."""
        with self._lock:
            self._reading, self._chunk_s = True, self._now()
            if self._phase:
                self._live()
        try:
            yield
        finally:
            with self._lock:
                self._reading = False

    def note(self, event: Event) -> None:
        """Take in what the reader makes of the output."""
        with self._lock:
            if not self._following:  # of files that the framework left
                return
            if isinstance(event, Step):
                self._note_step(event)
            elif isinstance(event, Phase):
                self._highest = None if event.begins else self._highest
                self._pause(f"phase '{event.name}'")
            elif isinstance(event, Ended):
                self._pause("end")
            elif isinstance(event, EffectiveConfig) and self._steps is None:
                self._steps = whole_number(str(event.values.get("steps")))

    def check(self) -> SilenceNote | None:
        """Return the silence, where it has lasted long enough for a word or to its limit."""
        with self._lock:
            now_s = self._now()
            silence_s, limit_s = now_s - self._last_sign_s, self._limit_s()
            if not self._following or self._reading:
                return None
            if limit_s and silence_s >= limit_s:
                return self._note_silence(silence_s, hung=True)
            if not self._is_slow(silence_s) or now_s < self._next_note_s:
                return None
            self._next_note_s = now_s + max(SLOW_S, silence_s / 4)
            return self._note_silence(silence_s)

    def wait_s(self) -> float | None:
        """Return the seconds until the next look; None while no action is followed."""
        with self._lock:
            if not self._following:
                return None
            silence_s = self._now() - self._last_sign_s
            left_s = [due_s - silence_s for due_s in (self._limit_s(), self._slow_s()) if due_s and due_s > silence_s]
            return max(_SHORTEST_S, min([self._look_s, *left_s]))

    def description(self) -> str:
        """Return the silence as text, "" where it is none worth a word."""
        with self._lock:
            silence_s = self._now() - self._last_sign_s
            return self._note_silence(silence_s).text if self._following and self._is_slow(silence_s) else ""

    def findings(self, *, by_itself: bool) -> tuple[str, ...]:
        """Return the longest stalls in words, in their order; with the last one where the action ended `by_itself`."""
        stalls = [*self._stalls, *([self._last_stall] if self._last_stall and by_itself else [])]
        longest = sorted(stalls, reverse=True)[:SHOWN]
        more = f"stalled {len(stalls)} times, for {seconds(sum(for_s for for_s, _ in stalls))} in all"
        return (*(stall[1] for stall in stalls if stall in longest), *([more] if len(stalls) > len(longest) else []))

    def _note_step(self, step: Step) -> None:
        key = (step.phase, step.rank)
        is_new, self._last[key] = self._last.get(key) != step.n, step.n
        if not is_new:
            return
        silence_s = self._chunk_s - self._last_sign_s
        if self._is_slow(silence_s) and not self._phase:
            self._stalls.append(self._stall(silence_s, step.n))
        self._live()
        if step.phase == "validate":
            self._rate.pause()
            return
        if self._highest is None:
            self._from_zero = step.n == 0  # then N steps are done with step N - 1
            self._first_s = self._first_s or self._chunk_s - self._began_s
        self._rate.step(step.n, self._chunk_s)
        self._highest = step.n
        self._phase = "end" if self._steps is not None and step.n + self._from_zero >= self._steps else ""

    def _pause(self, phase: str) -> None:
        self._rate.pause()
        self._live()
        self._phase = "start" if self._highest is None else phase

    def _live(self) -> None:
        self._last_sign_s = self._next_note_s = self._chunk_s

    def _limit_s(self) -> float:
        """Return how long the silence may last; 0 where it may last for ever."""
        if self._phase or not self._step_s:
            return self._start_s if self._phase else 0.0
        step_s, report_s = self._rate.step_s, self._rate.report_s
        if step_s is None or report_s is None:
            first_s = FIRST_STEPS * self._first_s
            return max(self._step_s, min(first_s, self._start_s) if self._start_s else first_s)
        return max(self._step_s, STEPS * step_s, REPORTS * report_s)

    def _is_slow(self, silence_s: float) -> bool:
        slow_s = self._slow_s()
        return slow_s is not None and silence_s > slow_s

    def _slow_s(self) -> float | None:
        """Return how long a silence may last without a word; None where nothing is reported any."""
        if self._phase:
            return SLOW_OUTPUT_S if self._start_s else None
        usual_s = self._rate.report_s
        return max(SLOW_S, SLOW_TIMES * usual_s) if usual_s is not None and self._rate.known >= _FEWEST else None

    def _stall(self, silence_s: float, before: int | None) -> tuple[float, str]:
        """Return a stall and its words; no step came any more where it is `before` none."""
        for_s, step_s = seconds(silence_s), self._rate.step_s
        took = "" if step_s is None else f" (steps took {seconds(step_s)})"
        if before is None:
            return silence_s, f"no step for {for_s} before the end, after step {self._highest}{took}"
        return silence_s, f"stalled for {for_s} before step {before}{took}"

    def _note_silence(self, silence_s: float, *, hung: bool = False) -> SilenceNote:
        return SilenceNote(text=self._text(silence_s, hung=hung), hung=hung, option=self._option())

    def _text(self, silence_s: float, *, hung: bool) -> str:
        """Return a silence in words: of steps, or of any output in a phase."""
        phase, step, step_s = self._phase, self._highest, self._rate.step_s
        if not phase:
            took = "" if step_s is None else f" ({'steps took' if hung else 'median'} {seconds(step_s)})"
            return f"no step for {seconds(silence_s)} after step {step}{took}"
        where = {"start": " before the first step" if self._trains else "", "end": f" after the last step, {step},"}
        after = "" if step is None else f" after step {step}"
        return f"no output for {seconds(silence_s)}{where.get(phase, f' in {phase}{after}')}".rstrip(",")

    def _option(self) -> str:
        """Return the option whose limit holds now; of a script's output that is the one with the smaller limit."""
        own_script = not self._trains and self._start_s == self._step_s
        return STEP_OPTION if own_script or not self._phase else START_OPTION


# What a look at a hanging run finds.

STOPPED = "stopped by a signal or a debugger"
"""What a note says of processes that are, before their numbers."""


class HangReport(Value, frozen=True):
    """`notes` name what is wrong with its processes, `location` where the rest is, `evidence` where its ranks are.

    `outliers` are the ranks that stand apart: the others may be waiting for them; `node` is theirs, of several.
    """

    notes: tuple[str, ...] = ()
    location: str = ""
    evidence: str = ""
    outliers: str = ""
    node: str = ""


ProbeHang: TypeAlias = Callable[[threading.Event], HangReport]
"""Looks at a run; it comes to its end soon after the event is set, and within a minute by itself."""


HANG_PROBE_LIMIT_S = 75.0  # a bit more than the probe takes by its own limit: one that hangs itself is not waited for
_POLL_S = 0.2
_LEAVE_S = 2.0  # for a probe that is given up to end its tools
_LOG = logging.getLogger(__name__)


class Watchdog:
    """Watches one run's silence; `probe_hang` inspects a run that seems to hang until it is cancelled."""

    def __init__(
        self,
        stall_detector: StallDetector,
        probe_hang: ProbeHang,
        *,
        tell: Say = lambda text: None,
        say: Say = lambda text: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stall_detector = stall_detector
        self._probe_hang, self._tell, self._say, self._now = probe_hang, tell, say, now
        self._probe: Future[HangReport] | None = None
        self._cancelled, self._probe_until_s = threading.Event(), 0.0  # of the last probe

    def wait_s(self) -> float | None:
        """Return the seconds until the next look; None while there is nothing to look at."""
        return self.stall_detector.wait_s() if self._probe is None else _POLL_S

    def check(self) -> StopReason | None:
        """Look, and return why the run has to be stopped, if so."""
        if self._probe is not None:
            return self._check_probe(self._probe)
        silence = self.stall_detector.check()
        if silence is not None and silence.hung:
            self._say(f"{silence.text}: looking at its processes")
            self._cancelled, self._probe_until_s = threading.Event(), self._now() + HANG_PROBE_LIMIT_S
            self._probe = in_thread(partial(self._probe_hang, self._cancelled), "madlite-hang-probe")
        elif silence is not None:
            self._tell(silence.text)
        return None

    def cancel_probe(self) -> None:
        """Look no further: the run ends for another reason."""
        self._cancelled.set()

    def close(self) -> None:
        """Wait a little for a probe that was given up to end its tools."""
        self.cancel_probe()
        if self._probe is not None:
            wait([self._probe], _LEAVE_S)

    def _check_probe(self, probe: Future[HangReport]) -> StopReason | None:
        if not probe.done() and self._now() < self._probe_until_s:
            return None
        self.cancel_probe()
        self._probe = None
        silence = self.stall_detector.check()
        if silence is None or not silence.hung:
            self._say("it goes on")
            return None
        report = _report_of(probe)
        return StopReason(
            cause=Cause.HANG,
            text=hang_text(silence, report),
            evidence=report.evidence,
            short="it hangs",
            hint=hang_hint(silence, report),
        )


def _report_of(probe: Future[HangReport]) -> HangReport:
    """Return what a probe found; nothing of one that hangs itself, or that failed."""
    if not probe.done():
        return HangReport()
    try:
        return probe.result()
    except Exception as error:  # noqa: BLE001 - without evidence the run is stopped all the same
        _LOG.debug("probe_of_hang", exc_info=True)
        _LOG.warning("the hanging run could not be inspected: %r", error)
        return HangReport()


def hang_text(silence: SilenceNote, report: HangReport) -> str:
    """Return why a run is taken for hung, and where the evidence is."""
    notes = "".join(f"; {note}" for note in report.notes)
    location = f"; {report.location}" if report.location else ""
    return f"{silence.text}: hung{notes}{location}"


def hang_hint(silence: SilenceNote, report: HangReport) -> str:
    """Return what to do about a hang: where to look, and which option lets a run be silent for longer."""
    if any(STOPPED in note for note in report.notes):
        return "who stopped them: kill -STOP, Ctrl-Z, a debugger, or a scheduler that suspends jobs? kill -CONT PID"
    verb = "stand" if report.outliers.startswith("ranks ") or report.outliers.endswith(" ranks") else "stands"
    node = f" on node {report.node}" if report.node else ""
    check = f"look where {report.outliers}{node} {verb}; " if report.outliers else ""
    return f"{check}{silence.option} SECONDS waits longer"
