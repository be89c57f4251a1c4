"""Looks at a run that seems to hang, before it is stopped, and keeps what it finds in the run's folder.

Every tool is bounded in time and its output in size; what a tool cannot say is left out, and costs nothing else.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from pathlib import Path, PurePath
from threading import Event

from madlite.cancellation import in_thread
from madlite.errors import MadliteError, RuntimeProblem
from madlite.machine.processes import RUN_MARK, all_run_processes, with_descendants
from madlite.model import RunPlan, Session, Value
from madlite.process import Finished, capture
from madlite.run.watchdog import STOPPED, HangReport
from madlite.secrets import Redactor, assigned
from madlite.store.folder import RunFolder

# The processes of a run that seems to hang: what each of them is, and what it waits for in the kernel.
#
# States and wait channels as proc(5) has them.

MOST = 512  # processes that are looked at
_PROCESS = re.compile(
    r"^pid (?P<pid>\d+) parent (?P<parent>\d+) rank (?P<rank>\S+) local_rank (?P<local_rank>\S+) state (?P<state>\S) "
    r".*? python (?P<python>\w+) wchan (?P<wchan>\S*) command (?P<command>.*)$",
    re.MULTILINE,
)


class ProcessInfo(Value, frozen=True):
    """One process: `wchan` is the kernel function it waits in, `rank` "" where it has none.

    `text` are its stacks: the kernel's, or those that py-spy shows.  Of several nodes each has its own process ids.
    """

    pid: int
    parent: int = 0
    state: str = ""
    wchan: str = ""
    rank: str = ""
    local_rank: str = ""
    command: str = ""
    python: bool = False
    text: str = ""
    node: int = 0


def find_pids(run_id: str) -> tuple[int, ...]:
    """Return the run's processes that can be seen from here, in containers too, by their mark or their parents.

    What keeps them together on a host is none of them.
    """
    found = [item for item in all_run_processes(in_containers=True) if item.environment[RUN_MARK] == run_id]
    marked = {item.process.pid for item in found}
    family = {process.pid for process in with_descendants(marked)}
    return tuple(sorted((family | marked) - {item.process.pid for item in found if item.is_supervisor})[:MOST])


def read_processes(text: str, node: int = 0) -> tuple[ProcessInfo, ...]:
    """Return the processes that a script has listed on a node, each with its stacks."""
    lines = list(_PROCESS.finditer(text))
    ends = [*(line.start() for line in lines[1:]), len(text)]
    return tuple(
        ProcessInfo(
            pid=int(found["pid"]),
            parent=int(found["parent"]),
            state=found["state"],
            wchan=found["wchan"].removeprefix("0"),
            rank=found["rank"].removeprefix("-"),
            local_rank=found["local_rank"].removeprefix("-"),
            command=found["command"].strip(),
            python=found["python"] == "yes",
            text=text[found.end() : end].strip("\n"),
            node=node,
        )
        for found, end in zip(lines, ends, strict=False)  # of none there is an end, too
    )


def notes_of(processes: Sequence[ProcessInfo]) -> tuple[str, ...]:
    """Return what is wrong with processes as a whole: that they are stopped, or cannot be woken."""
    every = f"of {len(processes)} processes"
    stopped = [process for process in processes if process.state in ("T", "t")]
    stuck = [process for process in processes if process.state == "D"]
    notes = []
    if stopped:
        notes.append(f"{len(stopped)} {every} {STOPPED} ({_pids(stopped)})")
    if stuck:
        where = f" in {stuck[0].wchan}" if stuck[0].wchan else ""
        notes.append(f"{len(stuck)} {every} waiting in the kernel{where}, deaf to signals ({_pids(stuck)})")
    return tuple(notes)


def _pids(processes: Sequence[ProcessInfo]) -> str:
    return "pid " + ", ".join(str(process.pid) for process in processes[:4]) + (", …" if len(processes) > 4 else "")


# The stacks of a run's Python processes, as py-spy shows them.
#
# Format of `py-spy dump` (0.3 and 0.4): a head per process, `Thread 12 (idle): "MainThread"` per thread, and its
# frames from the innermost on, `name (path:line)`.

_THREAD = re.compile(r"^Thread (?:0x)?[0-9A-Fa-f]+ \([^)]*\)(?::\s*\"(?P<name>.*)\")?", re.MULTILINE)
_FRAME = re.compile(r"^ {4}(?P<name>\S.*?) \((?P<path>[^()]*?)(?::(?P<line>\d+))?\)$", re.MULTILINE)


class Frame(Value, frozen=True):
    """One call of a stack."""

    name: str
    path: str
    line: str = ""

    @property
    def text(self) -> str:
        """The frame as people write it."""
        return f"{self.name} ({self.path}{':' + self.line if self.line else ''})"


def beside_interpreter() -> Path:
    """Return where the program is that is installed with madlite."""
    return Path(sys.executable).with_name("py-spy")


def main_frames(text: str) -> list[Frame]:
    """Return the main thread's frames, the innermost first; the first thread's where none is called so."""
    threads = list(_THREAD.finditer(text))
    chosen = next((thread for thread in threads if thread["name"] == "MainThread"), threads[0] if threads else None)
    if chosen is None:
        return []
    end = next((thread.start() for thread in threads if thread.start() > chosen.start()), len(text))
    found = _FRAME.finditer(text, chosen.end(), end)
    return [Frame(name=item["name"], path=item["path"], line=item["line"] or "") for item in found]


# Where the ranks of a run that seems to hang stand, and which of them the others may be waiting for.
#
# A place is a function, its file and the line in it.  The ranks that stand alone are listed first: in a collective all
# wait for the one that did not come.

MOST_DUMPS = 64  # processes whose stacks are taken, the ranks' own first
MOST_PLACES = 4  # of a run that are named
_NAMED_RANKS = 3  # of a place; more are counted
_SHOWN_FRAMES = 3
# any waiting code is here, so its caller is reported too
_STANDARD_WAITS = re.compile(
    r"(^|/)((threading|queue|selectors|subprocess|socket|ssl)\.py$|multiprocessing/|asyncio/|concurrent/futures/)"
)
# here a rank waits for the others or for its GPU
_WAITS = re.compile(r"(^|/)torch/(cuda|distributed|autograd|accelerator|hip|xpu)/")
_COLLECTIVE = re.compile(r"_*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|synchronize)")
_LAUNCHERS = {"torchrun", "deepspeed", "accelerate", "accelerate-launch", "mpirun", "srun"}
_LAUNCHER_MODULES = re.compile(r"torch\.distributed\.(run|launch)|(accelerate\.commands|deepspeed\.launcher)\.\w+")


class CodePlace(Value, frozen=True):
    """Where `ranks` stand: in the first of the frames, which the next one called."""

    ranks: tuple[str, ...]
    frames: tuple[Frame, ...]

    @property
    def waits(self) -> bool:
        """Whether whoever stands here waits for another rank, or for its GPU."""
        inner = self.frames[0]
        return bool(_WAITS.search(inner.path) or _COLLECTIVE.match(inner.name))


class RankPlaces(Value, frozen=True):
    """Where the ranks are in one line, and which of them stand apart; "" where that is not known.

    `node` is the number of the node that has all of these, where the ranks are on several.
    """

    text: str = ""
    outliers: str = ""
    node: int | None = None


def locate_ranks(dumps: Sequence[ProcessInfo]) -> RankPlaces:
    """Return where the ranks stand, the fewest first; of those that are as many, who waits for others comes last."""
    ranks = _of_ranks(dumps)
    if not ranks:
        return RankPlaces()
    if len(ranks) == 1:
        ((rank, frames),) = ranks.items()
        who = f"rank {rank}" if rank else ""
        return RankPlaces(text=f"{who} in {_call_chain(frames[:_SHOWN_FRAMES])}".lstrip(), outliers=who or "it")
    places = sorted(_places(ranks), key=_order)
    texts = [f"{_rank_text(place.ranks, len(ranks))} in {_call_chain(place.frames)}" for place in places[:MOST_PLACES]]
    rest = sum(len(place.ranks) for place in places[MOST_PLACES:])
    apart = len(places) > 1 and _order(places[0])[:2] < _order(places[1])[:2]
    return RankPlaces(
        text="; ".join([*texts, *([f"{rest} more ranks elsewhere"] if rest else [])]),
        outliers=_rank_text(places[0].ranks, len(ranks)) if apart else "",
        node=_node_of(places[0].ranks, dumps) if apart else None,
    )


def _node_of(ranks: Sequence[str], dumps: Sequence[ProcessInfo]) -> int | None:
    nodes = {item.node for item in dumps if item.rank in ranks}
    return nodes.pop() if len(nodes) == 1 and len({item.node for item in dumps}) > 1 else None


def in_order(processes: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Return the Python processes in the order in which they explain: each rank's own first, then the others."""
    found = [process for process in processes if process.python]
    own = own_ranks(found)
    return sorted(found, key=lambda process: (process.pid not in own, process.pid))[:MOST_DUMPS]


def own_ranks(processes: Iterable[ProcessInfo]) -> dict[int, str]:
    """Return the ranks of the processes that are ranks themselves, by process id.

    What a rank starts (loaders of data, compilers) has its RANK too, and its parent is the rank's own process.  A
    launcher may have got a RANK, and has no LOCAL_RANK where what it starts has one.
    """
    found = [process for process in processes if process.rank and not _launches(process.command)]
    local = any(item.local_rank for item in found)
    ranks = {item.pid: (item.rank, item.local_rank) for item in found if item.local_rank or not local}
    return {item.pid: item.rank for item in found if item.pid in ranks and ranks.get(item.parent) != ranks[item.pid]}


def _of_ranks(dumps: Sequence[ProcessInfo]) -> dict[str, list[Frame]]:
    """Return the frames of each rank, in the order of ranks; of one process under "" where none is a rank."""
    stacks = {(item.node, item.pid): frames for item in dumps if (frames := main_frames(item.text))}
    nodes = sorted({item.node for item in dumps})
    own: dict[tuple[int, int], str] = {}
    for node in nodes:
        of_node = own_ranks(item for item in dumps if item.node == node)
        own |= {(node, pid): rank for pid, rank in of_node.items()}
    if not own:
        others = (item for item in dumps if (item.node, item.pid) in stacks)
        best = min(others, key=lambda item: _launches(item.command), default=None)
        return {"": stacks[best.node, best.pid]} if best is not None else {}
    ranks: dict[str, list[Frame]] = {}
    for process in sorted(own):
        if process in stacks:
            ranks.setdefault(own[process], stacks[process])
    return dict(sorted(ranks.items(), key=lambda item: (len(item[0]), item[0])))


def _places(ranks: Mapping[str, list[Frame]]) -> list[CodePlace]:
    """Return the places, by what is shown of each rank."""
    groups: dict[tuple[Frame, ...], list[str]] = {}
    for rank, frames in ranks.items():
        groups.setdefault(_shown(frames), []).append(rank)
    return [CodePlace(ranks=tuple(group), frames=frames) for frames, group in groups.items()]


def _shown(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the innermost frame, with what called it where it is one in which everybody waits."""
    count = 1
    while count < min(_SHOWN_FRAMES, len(frames)) and _STANDARD_WAITS.search(frames[count - 1].path):
        count += 1
    return tuple(frames[:count])


def _order(place: CodePlace) -> tuple[int, bool, int, str]:
    return len(place.ranks), place.waits, len(place.ranks[0]), place.ranks[0]


def _rank_text(ranks: Sequence[str], total: int) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _NAMED_RANKS or len(ranks) == total:
        return f"{len(ranks)} of {total} ranks"
    return f"ranks {', '.join(ranks)}"


def _call_chain(frames: Iterable[Frame]) -> str:
    return " < ".join(frame.text for frame in frames)


def _launches(command: str) -> bool:
    """Return whether a command is a launcher of ranks, by its program, or by the script or module that Python runs."""
    program, *more = command.split() or [""]
    first = next((word for word in more if not word.startswith("-")), "")
    names = {PurePath(program).name, PurePath(first).name}
    return bool(names & _LAUNCHERS or _LAUNCHER_MODULES.fullmatch(first))


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
        self, folder: RunFolder, plan: RunPlan, session: Session, environ: Mapping[str, str], mask: Callable[[str], str]
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
    parts, several = [], any(dump.node for dump in dumps)
    for dump in dumps:
        node = f"node {dump.node} " if several else ""
        parts.append(f"=== {node}pid {dump.pid} rank {dump.rank or '-'}\n{dump.text}\n\n")
    missing = sum(process.python for process in processes) - len(dumps)
    if missing > 0:
        parts.append(why_none or f"{missing} Python processes were left out: there was no time\n")
    return "\n".join(parts)
