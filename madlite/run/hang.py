"""Looks at a run that seems to hang, before it is stopped, and keeps what it finds in the run's folder.

Every tool is bounded in time and its output in size; what a tool cannot say is left out, and costs nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from threading import Event

from madlite.cancellation import in_thread
from madlite.errors import MadliteError, RuntimeProblem
from madlite.machine.processes import RUN_MARK
from madlite.model import RunPlan, Session, Value
from madlite.process import Finished, capture
from madlite.run.hang_processes import (
    ProcessInfo,
    beside_interpreter,
    find_pids,
    in_order,
    locate_ranks,
    main_frames,
    notes_of,
    read_processes,
)
from madlite.run.watchdog import HangReport
from madlite.secrets import Redactor, assigned
from madlite.store.folder import RunFolder

# What can be seen of a hanging run: on this machine, and by its session's probe in containers and on other machines.
#
# One POSIX shell script runs at each of these places; it uses nothing but the shell and /proc, and the tools it finds.

INSIDE_LIMIT_S = 10.0  # of one script
INSIDE_STACKS_S = 25.0  # of the one that dumps every process's stacks
MOST_NODES = 64  # that are looked at, at the same time
_TURN_S = 0.1

# $1: what to show.  $2: what of a process's environment says that it is the run's; "" where all processes there are.
# $3: where py-spy may be, beside madlite's interpreter: a node that shares the file system has it there.
# The rest: the processes, where they are known; else session 1 is a container's own, and ours is this script's.
_SCRIPT = r"""
exec 2> /dev/null
look() {
  read -r line < "/proc/$1/stat" || return 1
  set -- ${line##*) }
  state=$1 parent=$2 session=$4 cpu_s=$(((${12} + ${13}) / 100)) threads=${18}
}
ours() {
  [ -z "$mark" ] || tr '\0' '\n' < "/proc/$1/environ" | grep -qxF "$mark"
}
rank_of() {
  rank=$(tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^RANK=//p')
  local_rank=$(tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^LOCAL_RANK=//p')
}
look $$ && own=$session
what=$1 mark=$2 py_spy=$(command -v py-spy) || py_spy=$3
shift 3
known=$#
# a tool of the GPUs may hang, as may two others, and is ended with all that it started
limit_s=10 limited="timeout --foreground"
[ "$what" != gpus ] || limit_s=3 limited="timeout -k 1"
limited="$limited $limit_s"
$limited true || limited="timeout $limit_s"  # of busybox
$limited true || limited=
tool() {
  command -v "$1" > /dev/null && $limited "$@" 2>&1
}
if [ "$what" = gpus ]; then
  tool nvidia-smi && tool nvidia-smi -q -d PERFORMANCE,ECC,PAGE_RETIREMENT
  { tool amd-smi monitor && tool amd-smi process; } || { tool rocm-smi && tool rocm-smi --showpids; }
  exit 0
fi
[ "$what" != stacks ] || [ -x "$py_spy" ] || exit 3
[ "$known" != 0 ] || set -- $(cd /proc && echo [0-9]*)
for pid; do
  look "$pid" || continue
  if [ "$known" = 0 ]; then
    [ "$session" = "$own" ] || [ "$session" = 1 ] || [ "$state" = Z ] && continue
    ours "$pid" || continue
  fi
  rank_of "$pid"
  exe=$(readlink "/proc/$pid/exe" || cat "/proc/$pid/comm")
  case "${exe##*/}" in *python*) python=yes ;; *) python=no ;; esac
  [ "$what" = processes ] || [ $python = yes ] || continue
  command=$(tr '\0\n' '  ' < "/proc/$pid/cmdline")
  printf '%s %s\n' \
    "pid $pid parent $parent rank ${rank:--} local_rank ${local_rank:--} state $state threads $threads" \
    "cpu_s $cpu_s python $python wchan $(cat "/proc/$pid/wchan") command ${command:-[$(cat "/proc/$pid/comm")]}"
  if [ "$what" = stacks ]; then
    $limited "$py_spy" dump --pid "$pid" 2>&1
    [ $? -lt 124 ] || $limited "$py_spy" dump --nonblocking --pid "$pid" 2>&1  # it could not be paused in time
  else
    cat "/proc/$pid/stack"
    for thread in $(grep -l ') D ' "/proc/$pid/task/"*/stat | head -8); do
      echo "thread ${thread%/stat}"
      cat "${thread%stat}stack"
    done
  fi
done
"""


def _command(what: str, mark: str = "", pids: Iterable[int] = ()) -> tuple[str, ...]:
    return ("/bin/sh", "-c", _SCRIPT, "sh", what, mark, str(beside_interpreter()), *map(str, pids))


class NodeFacts(Value, frozen=True):
    """What was shown; "" and () where nothing was.  `dumps` are processes with their stacks."""

    notes: tuple[str, ...] = ()
    processes: str = ""
    dumps: tuple[ProcessInfo, ...] = ()
    gpus: str = ""


def probe_nodes(
    session: Session, plan: RunPlan, wanted: Sequence[str], left_s: Callable[[], float], cancelled: Event
) -> NodeFacts:
    """Return what is seen of what is `wanted`: processes, stacks, gpus; of all nodes at once; never raises.

    `left_s` returns the seconds that are left for all of it.  Once `cancelled` is set nothing is waited for.
    """
    nodes = range(min(len(session.nodes), MOST_NODES))
    probes = [in_thread(partial(_probe_node, session, plan, node, wanted, left_s), "madlite-look") for node in nodes]
    while wait(probes, _TURN_S).not_done:
        if cancelled.is_set():  # a probe that is under way ends with its session
            return NodeFacts()
    return _merge_nodes([probe.result() for probe in probes])


def _merge_nodes(facts: Sequence[NodeFacts]) -> NodeFacts:
    """Return what the nodes showed as one; what is reported a node begins with its number where there are several."""
    if len(facts) == 1:
        return facts[0]
    return NodeFacts(
        notes=tuple(f"node {node}: {note}" for node, node_facts in enumerate(facts) for note in node_facts.notes),
        processes=_parts([node_facts.processes for node_facts in facts]),
        dumps=tuple(dump for node_facts in facts for dump in node_facts.dumps),
        gpus=_parts([node_facts.gpus for node_facts in facts]),
    )


def _parts(texts: Sequence[str]) -> str:
    return "\n".join(f"=== node {node}\n{text}" for node, text in enumerate(texts) if text)


def _probe_node(
    session: Session, plan: RunPlan, node: int, wanted: Sequence[str], left_s: Callable[[], float]
) -> NodeFacts:
    """Return what one node shows; a probe takes as long as its limit."""
    mark = "" if plan.traits.containerised else f"{RUN_MARK}={plan.id}"

    def show(what: str) -> str:
        """Run the script for one thing, as long as there is time, and return what it printed until then."""
        limit_s = min(INSIDE_LIMIT_S if what != "stacks" else INSIDE_STACKS_S, left_s())
        return session.probe(_command(what, mark), node, limit_s).stdout.decode("utf-8", "replace")

    try:
        outputs = {what: show(what) for what in wanted}
    except RuntimeProblem as problem:
        return NodeFacts(notes=(problem.message,))
    except Exception as error:  # noqa: BLE001 - the border to a plugin's runtime
        return NodeFacts(notes=(f"its runtime cannot probe it: {type(error).__name__}: {error}",))
    dumps = read_processes(outputs.get("stacks", ""), node)
    return NodeFacts(processes=outputs.get("processes", ""), dumps=dumps, gpus=outputs.get("gpus", ""))


FOLDER = "hang"
LIMIT_S = 60.0  # of everything
STACKS_S = 35.0  # of that for the stacks of processes on this machine
MOST_CHARACTERS = 1 << 20  # of a file
NO_PY_SPY = "py-spy is not installed (pip install 'madlite[hang]'): no stacks of Python processes\n"
_NO_PY_SPY = 3  # the script's exit code without it
_LOG = logging.getLogger(__name__)


class HangProbe:
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
        self._location = plan.folder.relative_to(plan.workspace) / FOLDER
        self._deadline = 0.0
        self._written: list[str] = []

    def run(self, log: Iterable[str], cancelled: Event) -> HangReport:
        """Return what the run's processes do, after keeping it; within a minute, and at once when called off.

        `log` is its last lines.
        """
        self._deadline, self._written = time.monotonic() + LIMIT_S, []
        lines = [line for line in log if line.strip()]
        self._write("last_lines.txt", "\n".join(lines) + "\n")
        pids = find_pids(self._plan.id) if self._plan.traits.local else ()
        listed = self._here("processes", cancelled, pids).stdout if pids else ""
        processes = read_processes(listed)
        inside = self._inside(["stacks"] if processes else ["stacks", "processes"], cancelled)
        dumps, why_none = list(filter(_has_frames, inside.dumps)), ""
        if not dumps and processes:
            dumps, why_none = self._stacks(processes, cancelled)
        self._write("processes.txt", listed or inside.processes)
        dumps = dumps or list(inside.dumps)
        self._write("stacks.txt", _stacks_text(dumps, processes, why_none))
        gpus = self._here("gpus", cancelled).stdout if self._plan.traits.local else ""
        self._write("gpus.txt", gpus or self._inside(["gpus"], cancelled).gpus)
        places = locate_ranks(dumps)
        at = places.text or (lines or [""])[-1].strip()
        return HangReport(
            notes=self._notes(processes, inside),
            location=self._locate(dumps),
            evidence=self._mask(at),
            outliers=places.outliers,
            node="" if places.node is None else f"{places.node} ({self._session.nodes[places.node]})",
        )

    def _here(self, what: str, cancelled: Event, pids: Iterable[int] = ()) -> Finished:
        """Return what the script shows on this machine."""
        limit_s = min(STACKS_S if what == "stacks" else INSIDE_LIMIT_S, self._left_s())
        return capture(_command(what, pids=pids), limit_s=limit_s, env=self._environ, cancelled=cancelled)

    def _stacks(self, processes: Sequence[ProcessInfo], cancelled: Event) -> tuple[list[ProcessInfo], str]:
        """Return the stacks of the processes that this machine shows, and why some or all are missing."""
        pids = [process.pid for process in in_order(processes)]
        if not pids:  # without any the script would show every process of the machine
            return [], ""
        found = self._here("stacks", cancelled, pids)
        return list(read_processes(found.stdout)), NO_PY_SPY if found.code == _NO_PY_SPY else ""

    def _inside(self, wanted: Sequence[str], cancelled: Event) -> NodeFacts:
        """Return what is seen where the run runs; nothing where its processes are this machine's, or cannot be seen."""
        traits = self._plan.traits
        here = traits.local and not traits.containerised
        if here or not traits.sees_processes or cancelled.is_set():
            return NodeFacts()
        return probe_nodes(self._session, self._plan, wanted, self._left_s, cancelled)

    def _notes(self, processes: Sequence[ProcessInfo], inside: NodeFacts) -> tuple[str, ...]:
        traits = self._plan.traits
        if not processes and traits.local and not traits.containerised:
            return ("none of its processes is left",)
        return tuple(map(self._mask, (*inside.notes, *notes_of(processes))))

    def _locate(self, dumps: Iterable[ProcessInfo]) -> str:
        what = "stacks" if any(map(_has_frames, dumps)) else "what was found"
        return f"{what} in {self._location}/" if self._written else ""

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _write(self, name: str, text: str) -> None:
        """Write one file without its secrets, those that a command spells out included; nothing where there is none."""
        text = text[:MOST_CHARACTERS]
        if not text.strip():
            return
        text = Redactor(assigned(text.splitlines())).text(self._mask(text))
        try:
            problem = self._folder.write_text(f"{FOLDER}/{name}", text)
        except MadliteError as error:  # the workload put something else there
            problem = error.message
        if problem:
            _LOG.warning("%s", problem)
        else:
            self._written.append(name)


def _has_frames(dump: ProcessInfo) -> bool:
    return bool(main_frames(dump.text))


def _stacks_text(dumps: Sequence[ProcessInfo], processes: Sequence[ProcessInfo], why_none: str) -> str:
    """Return the stacks in one text, and why there are none."""
    several = any(item.node for item in dumps)
    parts = [
        f"=== {f'node {item.node} ' if several else ''}pid {item.pid} rank {item.rank or '-'}\n{item.text}\n\n"
        for item in dumps
    ]
    missing = sum(process.python for process in processes) - len(dumps)
    if missing > 0:
        parts.append(why_none or f"{missing} Python processes were left out: there was no time\n")
    return "\n".join(parts)
