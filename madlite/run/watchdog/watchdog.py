"""Distinguish a hung run from a slow one: check the silence, have evidence collected, give the reason to stop.

Only the watch's thread calls it; the evidence is collected in a thread of its own, so that a signal and the clock are
handled meanwhile.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from madlite.model import Cause, Say, Value
from madlite.run.watchdog.processes import STOPPED
from madlite.run.watchdog.progress_monitor import ProgressMonitor, SilenceNote

# What a look at a hanging run finds.


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


# Why a run is ended before it ends by itself.


class StopReason(Value, frozen=True):
    """Why a run was ended; `evidence` is the line that shows it, where there is one.

    No cause: its steps are enough for its number, so that ending it is no failure.
    `short` is what the screen shows meanwhile, where it printed the rest just before; `hint` is what to do.
    """

    cause: Cause
    text: str
    evidence: str = ""
    short: str = ""
    hint: str = ""


HANG_PROBE_LIMIT_S = 75.0  # a bit more than the probe takes by its own limit: one that hangs itself is not waited for
_POLL_S = 0.2
_OF_STOPPED = re.compile(rf"{STOPPED} \((pid \d[^)]*)\)")
_LATE_S = 5.0  # a check this late means that madlite itself was stopped, or the machine
_LEAVE_S = 2.0  # for a probe that is given up to end its tools
_LOG = logging.getLogger(__name__)


class Watchdog:
    """Watches one run's silence; `probe_hang` inspects a run that seems to hang until it is cancelled."""

    def __init__(
        self,
        progress_monitor: ProgressMonitor,
        probe_hang: ProbeHang,
        *,
        tell: Say = lambda text: None,
        say: Say = lambda text: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress_monitor = progress_monitor
        self._probe_hang, self._tell, self._say, self._now = probe_hang, tell, say, now
        self._probe: _RunningProbe | None = None
        self._planned_s: float | None = None

    def wait_s(self) -> float | None:
        """Return the seconds until the next look; None while there is nothing to look at."""
        wait_s = self.progress_monitor.wait_s() if self._probe is None else _POLL_S
        self._planned_s = None if wait_s is None else self._now() + wait_s
        return wait_s

    def check(self) -> StopReason | None:
        """Look, and return why the run has to be stopped, if so."""
        if self._planned_s is not None and (late_s := self._now() - self._planned_s) > _LATE_S:
            self.progress_monitor.discount(late_s)
        if self._probe is not None:
            return self._check_probe(self._probe)
        silence = self.progress_monitor.check()
        if silence is not None and silence.hung:
            self._say(f"{silence.text}: looking at its processes")
            self._probe = _RunningProbe(self._probe_hang, self._now)
        elif silence is not None:
            self._tell(silence.text)
        return None

    def cancel_probe(self) -> None:
        """Look no further: the run ends for another reason."""
        if self._probe is not None:
            self._probe.cancelled.set()

    def close(self) -> None:
        """Wait a little for a probe that was given up to end its tools."""
        self.cancel_probe()
        if self._probe is not None:
            self._probe.wait(_LEAVE_S)

    def _check_probe(self, probe: _RunningProbe) -> StopReason | None:
        if not probe.is_over(self._now()):
            return None
        self.cancel_probe()
        self._probe = None
        silence = self.progress_monitor.check()
        if silence is None or not silence.hung:
            self._say("it goes on")
            return None
        report = probe.report
        return StopReason(
            cause=Cause.HANG,
            text=hang_text(silence, report),
            evidence=report.evidence,
            short="it hangs",
            hint=hang_hint(silence, report),
        )


class _RunningProbe:
    """One hang probe while it runs."""

    def __init__(self, probe_hang: ProbeHang, now: Callable[[], float]) -> None:
        self.report = HangReport()
        self.cancelled = threading.Event()
        self._deadline = now() + HANG_PROBE_LIMIT_S
        self._thread = threading.Thread(target=self._run, args=(probe_hang,), name="madlite-hang-probe", daemon=True)
        self._thread.start()

    def is_over(self, now_s: float) -> bool:
        return not self._thread.is_alive() or now_s >= self._deadline

    def wait(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _run(self, probe_hang: ProbeHang) -> None:
        try:
            self.report = probe_hang(self.cancelled)
        except Exception as error:  # noqa: BLE001 - without evidence the run is stopped all the same
            _LOG.debug("probe_of_hang", exc_info=True)
            _LOG.warning("the hanging run could not be inspected: %r", error)


def hang_text(silence: SilenceNote, report: HangReport) -> str:
    """Return why a run is taken for hung, and where the evidence is."""
    notes = "".join(f"; {note}" for note in report.notes)
    location = f"; {report.location}" if report.location else ""
    return f"{silence.text}: hung{notes}{location}"


def hang_hint(silence: SilenceNote, report: HangReport) -> str:
    """Return what to do about a hang: where to look, and which option lets a run be silent for longer.

    Where a process is stopped a longer limit is of no use.
    """
    if stopped := next(filter(None, map(_OF_STOPPED.search, report.notes)), None):
        number = stopped[1].removeprefix("pid ").partition(",")[0]
        return (
            f"{stopped[1]} is stopped, so whatever waits for it does: `kill -CONT {number}` lets it go on; look for "
            "who stopped it: kill -STOP, Ctrl-Z, a debugger, or a scheduler that suspends jobs"
        )
    verb = "stand" if report.outliers.startswith("ranks ") or report.outliers.endswith(" ranks") else "stands"
    node = f" on node {report.node}" if report.node else ""
    check = f"look where {report.outliers}{node} {verb}; " if report.outliers else ""
    return f"{check}{silence.option} SECONDS waits longer"
