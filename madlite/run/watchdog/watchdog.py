"""Tells a hung run from a slow one: looks at the silence, has the evidence collected, and gives the reason to stop.

Only the watch's thread calls it; the evidence is collected in a thread of its own, so that a signal and the clock are
heard meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from madlite.model import Cause, Say, Value
from madlite.run.watchdog.progress_monitor import ProgressMonitor, SilenceNote

# What a look at a hanging run finds.


class HangReport(Value, frozen=True):
    """`notes` tell what is wrong with its processes, `kept` where the rest is, `evidence` where its ranks are.

    `odd` are the ranks that stand apart: the others may be waiting for them.
    """

    notes: tuple[str, ...] = ()
    kept: str = ""
    evidence: str = ""
    odd: str = ""


Inquire: TypeAlias = Callable[[threading.Event], HangReport]
"""Looks at a run; it comes to its end soon after the event is set, and within a minute by itself."""


# Why a run is ended before it ends by itself.


class StopReason(Value, frozen=True):
    """Why a run was ended; `evidence` is the line that shows it, where there is one.

    `short` is what the screen says meanwhile, where it told the rest just before; `hint` is what to do.
    """

    cause: Cause
    text: str
    evidence: str = ""
    short: str = ""
    hint: str = ""


INQUEST_LIMIT_S = 75.0  # a bit more than the inquiry takes by its own limit: one that hangs itself is not waited for
_TURN_S = 0.2
_LATE_S = 5.0  # a look this late says that madlite itself was stopped, or the machine
_LEAVE_S = 2.0  # for an inquiry that is given up to end its tools
_LOG = logging.getLogger(__name__)


class Watchdog:
    """Watches one run's silence; `inquire` looks at a run that seems to hang, and is told when it may stop looking."""

    def __init__(
        self,
        silence: ProgressMonitor,
        inquire: Inquire,
        *,
        tell: Say = lambda text: None,
        say: Say = lambda text: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.silence = silence
        self._inquire, self._tell, self._say, self._now = inquire, tell, say, now
        self._inquest: _Inquiry | None = None
        self._planned_s: float | None = None

    def wait_s(self) -> float | None:
        """Return the seconds until the next look; None while there is nothing to look at."""
        wait_s = self.silence.wait_s() if self._inquest is None else _TURN_S
        self._planned_s = None if wait_s is None else self._now() + wait_s
        return wait_s

    def look(self) -> StopReason | None:
        """Look, and return why the run has to be stopped, if so."""
        if self._planned_s is not None and (late_s := self._now() - self._planned_s) > _LATE_S:
            self.silence.excuse(late_s)
        if self._inquest is not None:
            return self._hear(self._inquest)
        quiet = self.silence.look()
        if quiet is not None and quiet.hung:
            self._say(f"{quiet.text}: looking at its processes")
            self._inquest = _Inquiry(self._inquire, self._now)
        elif quiet is not None:
            self._tell(quiet.text)
        return None

    def leave(self) -> None:
        """Look no further: the run ends for another reason."""
        if self._inquest is not None:
            self._inquest.cancelled.set()

    def close(self) -> None:
        """Wait a little for an inquiry that was given up to end its tools."""
        self.leave()
        if self._inquest is not None:
            self._inquest.wait(_LEAVE_S)

    def _hear(self, inquest: _Inquiry) -> StopReason | None:
        if not inquest.is_over(self._now()):
            return None
        self.leave()
        self._inquest = None
        quiet = self.silence.look()
        if quiet is None or not quiet.hung:
            self._say("it goes on")
            return None
        found = inquest.found
        return StopReason(
            cause=Cause.HANG,
            text=hang_words(quiet, found),
            evidence=found.evidence,
            short="it hangs",
            hint=hang_hint(quiet, found),
        )


class _Inquiry:
    """One inquiry while it goes on."""

    def __init__(self, inquire: Inquire, now: Callable[[], float]) -> None:
        self.found = HangReport()
        self.cancelled = threading.Event()
        self._deadline = now() + INQUEST_LIMIT_S
        self._thread = threading.Thread(target=self._run, args=(inquire,), name="madlite-inquest", daemon=True)
        self._thread.start()

    def is_over(self, now_s: float) -> bool:
        return not self._thread.is_alive() or now_s >= self._deadline

    def wait(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _run(self, inquire: Inquire) -> None:
        try:
            self.found = inquire(self.cancelled)
        except Exception as error:  # noqa: BLE001 - without evidence the run is stopped all the same
            _LOG.debug("inquest", exc_info=True)
            _LOG.warning("what the run hangs in could not be looked at: %r", error)


def hang_words(quiet: SilenceNote, found: HangReport) -> str:
    """Return why a run is taken for hung, and where the evidence is."""
    notes = "".join(f"; {note}" for note in found.notes)
    kept = f"; {found.kept}" if found.kept else ""
    return f"{quiet.text}: hung{notes}{kept}"


def hang_hint(quiet: SilenceNote, found: HangReport) -> str:
    """Return what to do about a hang: where to look, and which option lets a run be silent for longer."""
    verb = "stand" if found.odd.startswith("ranks ") or found.odd.endswith(" ranks") else "stands"
    look = f"look where {found.odd} {verb}; " if found.odd else ""
    return f"{look}{quiet.option} SECONDS waits longer"
