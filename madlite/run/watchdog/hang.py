"""Looks at a run that seems to hang, before it is stopped, and keeps what it finds in the run's folder.

Every tool is bounded in time and its output in size; what a tool cannot say is left out, and costs nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event

from madlite.errors import MadliteError
from madlite.model import RunPlan, Session
from madlite.run.watchdog.found import Found
from madlite.run.watchdog.gpus import gpu_state
from madlite.run.watchdog.inside import Inside, look_inside
from madlite.run.watchdog.places import in_order, standing
from madlite.run.watchdog.processes import Facts, cpu_times, find_processes, kernel_stacks, notes_of, table
from madlite.run.watchdog.stacks import Dump, dump, find_py_spy, main_frames
from madlite.secrets import Redactor, assigned
from madlite.workspace.folder import RunFolder

FOLDER = "hang"
LIMIT_S = 60.0  # of everything
STACKS_S = 35.0  # of that for the stacks of processes on this machine
MOST_CHARACTERS = 1 << 20  # of a file
NO_PY_SPY = "py-spy is not installed (pip install 'madlite[hang]'): no stacks of Python processes\n"
_LOG = logging.getLogger(__name__)


class Inquiry:
    """One look at a run; `mask` hides secrets."""

    def __init__(
        self,
        folder: RunFolder,
        plan: RunPlan,
        session: Session,
        environ: Mapping[str, str],
        mask: Callable[[str], str],
    ) -> None:
        self._folder, self._session, self._environ, self._mask = folder, session, environ, mask
        self._plan = plan
        self._py_spy = find_py_spy(environ.get("PATH", ""))
        self._shown = plan.folder.relative_to(plan.workspace) / FOLDER
        self._deadline = 0.0
        self._kept: list[str] = []

    def look(self, log: Iterable[str], cancelled: Event) -> Found:
        """Return what the run's processes do, after keeping it; within a minute, and at once when called off.

        `log` is its last lines.
        """
        self._deadline, self._kept = time.monotonic() + LIMIT_S, []
        lines = [line for line in log if line.strip()]
        self._keep("last_lines.txt", "\n".join(lines) + "\n")
        began_s = time.monotonic()
        processes = find_processes(self._plan.id) if self._plan.traits.local else ()
        self._keep("kernel_stacks.txt", kernel_stacks(processes))
        inside = self._inside(["stacks"] if processes else ["stacks", "processes"], cancelled)
        dumps = list(filter(_tells, inside.dumps)) or self._stacks(processes, cancelled) or inside.dumps
        if processes:
            busy = cpu_times(processes)
            self._keep("processes.txt", table(processes, busy, time.monotonic() - began_s))
        else:
            self._keep("processes.txt", inside.processes)
        self._keep("stacks.txt", _stacks_text(dumps, processes, self._py_spy))
        self._keep("gpus.txt", self._gpus(cancelled))
        found = standing(dumps)
        at = found.words or (lines or [""])[-1].strip()
        return Found(
            notes=self._notes(processes, inside), kept=self._where(dumps), evidence=self._mask(at), odd=found.odd
        )

    def _inside(self, wanted: Sequence[str], cancelled: Event) -> Inside:
        """Return what is seen where the run runs; nothing where its processes are this machine's, or cannot be seen."""
        traits = self._plan.traits
        here = traits.local and not traits.containerised
        if here or not traits.sees_processes or cancelled.is_set():
            return Inside()
        return look_inside(self._session, self._plan, wanted, self._left_s, cancelled)

    def _stacks(self, processes: Sequence[Facts], cancelled: Event) -> list[Dump]:
        """Return the stacks of the processes that this machine shows, as long as there is time for them."""
        until = time.monotonic() + min(STACKS_S, self._left_s())
        dumps: list[Dump] = []
        for facts in in_order(processes) if self._py_spy else ():
            left_s = until - time.monotonic()
            if left_s <= 0 or cancelled.is_set():
                break
            dumps.append(dump(self._py_spy or "", facts, left_s, cancelled))
        return dumps

    def _gpus(self, cancelled: Event) -> str:
        here = gpu_state(self._environ, self._left_s(), cancelled) if self._plan.traits.local else ""
        return here or self._inside(["gpus"], cancelled).gpus

    def _notes(self, processes: Sequence[Facts], inside: Inside) -> tuple[str, ...]:
        traits = self._plan.traits
        if not processes and traits.local and not traits.containerised:
            return ("none of its processes is left",)
        return tuple(map(self._mask, (*inside.notes, *notes_of(processes))))

    def _where(self, dumps: Iterable[Dump]) -> str:
        what = "stacks" if any(map(_tells, dumps)) else "what was seen"
        return f"{what} in {self._shown}/" if self._kept else ""

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _keep(self, name: str, text: str) -> None:
        """Write one file without its secrets, those that a command spells out included; nothing where there is none."""
        text = text[:MOST_CHARACTERS]
        if not text.strip():
            return
        text = Redactor(assigned(text.splitlines())).text(self._mask(text))
        try:
            problem = self._folder.put(f"{FOLDER}/{name}", text)
        except MadliteError as error:  # the workload put something else there
            problem = error.message
        if problem:
            _LOG.warning("%s", problem)
        else:
            self._kept.append(name)


def _tells(one: Dump) -> bool:
    return bool(main_frames(one.text))


def _stacks_text(dumps: Sequence[Dump], processes: Sequence[Facts], py_spy: str | None) -> str:
    """Return the stacks in one text, and why there are none."""
    several = any(one.node for one in dumps)
    parts = [
        f"=== {f'node {one.node} ' if several else ''}pid {one.pid} rank {one.rank or '-'}\n{one.text or one.problem}\n"
        for one in dumps
    ]
    missing = sum(facts.python for facts in processes) - len(dumps)
    if missing > 0:
        left_out = f"{missing} Python processes were left out: there was no time\n"
        parts.append(left_out if dumps or py_spy else NO_PY_SPY)
    return "\n".join(parts)
