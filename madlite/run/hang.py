"""Looks at a run that seems to hang, before it is stopped, and keeps what it finds in the run's folder.

One POSIX shell script runs on each node by its session's probe; it uses nothing but the shell and /proc, and the tools
it finds.  Each is bounded in time and its output in size; what a tool cannot say is left out, and costs nothing else.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from threading import Event

import msgspec
from msgspec.structs import replace

from madlite.cancellation import in_thread
from madlite.errors import RuntimeProblem
from madlite.files import copy_inside
from madlite.machine.processes import RUN_MARK, SUPERVISOR_MARK
from madlite.model import RunPlan, Session, Value
from madlite.run.watchdog import STOPPED, HangReport
from madlite.secrets import Redactor, assigned
from madlite.store.folder import RunFolder

# The processes of a run that seems to hang: what each of them is, and what it waits for in the kernel.
#
# States and wait channels as proc(5) has them.

_PROCESS = re.compile(
    r"^pid (?P<pid>\d+) parent (?P<parent>\d+) rank (-|(?P<rank>\S+)) local_rank (-|(?P<local_rank>\S+)) "
    r"state (?P<state>\S) .*? wchan 0?(?P<wchan>\S*) command (?P<command>.*)$",
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
    text: str = ""
    node: int = 0


def read_processes(text: str, node: int = 0) -> tuple[ProcessInfo, ...]:
    """Return the processes that a script has listed on a node, each with its stacks."""
    lines = list(_PROCESS.finditer(text))
    ends = [*(line.start() for line in lines[1:]), len(text)]
    return tuple(
        replace(
            msgspec.convert(found.groupdict(""), ProcessInfo, strict=False),
            command=found["command"].strip(),
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
    groups: dict[tuple[Frame, ...], list[str]] = {}
    for rank, frames in ranks.items():
        groups.setdefault(_shown(frames), []).append(rank)
    places = sorted(groups.items(), key=_order)
    texts = [f"{_rank_text(group, len(ranks))} in {_call_chain(frames)}" for frames, group in places[:MOST_PLACES]]
    rest = sum(len(group) for _, group in places[MOST_PLACES:])
    first = places[0][1] if len(places) > 1 and _order(places[0])[:2] < _order(places[1])[:2] else ()
    return RankPlaces(
        text="; ".join([*texts, *([f"{rest} more ranks elsewhere"] if rest else [])]),
        outliers=_rank_text(first, len(ranks)) if first else "",
        node=_node_of(first, dumps),
    )


def _node_of(ranks: Sequence[str], dumps: Sequence[ProcessInfo]) -> int | None:
    """Return the only node of ranks, where there are several."""
    nodes = {item.node for item in dumps if item.rank in ranks}
    return nodes.pop() if len(nodes) == 1 and len({item.node for item in dumps}) > 1 else None


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


def _shown(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the innermost frame, with what called it where it is one in which everybody waits."""
    count = 1
    while count < min(_SHOWN_FRAMES, len(frames)) and _STANDARD_WAITS.search(frames[count - 1].path):
        count += 1
    return tuple(frames[:count])


def _order(place: tuple[tuple[Frame, ...], Sequence[str]]) -> tuple[int, bool, int, str]:
    """Return what places are ordered by: their ranks, and whether these wait for another, or for their GPUs."""
    (inner, *_), ranks = place
    waits = bool(_WAITS.search(inner.path) or _COLLECTIVE.match(inner.name))
    return len(ranks), waits, len(ranks[0]), ranks[0]


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


# What can be seen of a hanging run where it runs.

FOLDER = "hang"
LIMIT_S = 60.0  # of everything
MOST_CHARACTERS = 1 << 20  # of a file
MOST_NODES = 64  # that are looked at, at the same time
SHOWN_S = {"stacks": 25.0, "processes": 10.0, "gpus": 10.0}  # what a node is asked for, and how long each may take
PY_SPY = "py-spy"
_TURN_S = 0.1
_LOG = logging.getLogger(__name__)

# $1: what to show.  $2: what of a process's environment says that it is the run's; "" where all processes there are.
# $3: where py-spy may be that none is installed.  Session 1 is a container's own, and ours is this script's.
_SCRIPT = r"""
exec 2> /dev/null
look() {
  read -r line < "/proc/$1/stat" || return 1
  set -- ${line##*) }
  state=$1 parent=$2 session=$4 cpu_s=$(((${12} + ${13}) / 100)) threads=${18}
}
rank_of() {
  rank=$(tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^RANK=//p')
  local_rank=$(tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^LOCAL_RANK=//p')
}
look $$ && own=$session
what=$1 mark=$2 py_spy=$(command -v py-spy) || py_spy=$3
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
if [ "$what" = stacks ] && [ ! -x "$py_spy" ]; then
  echo "py-spy is not installed (pip install 'madlite[hang]'): no stacks of Python processes"
  exit 0
fi
# in the order of their numbers: ranks come before what they started
for entry in $(grep -lF "$mark" /proc/[0-9]*/environ | sort -t / -k 3 -n); do
  pid=${entry#/proc/} pid=${pid%/environ}
  look "$pid" || continue
  [ "$session" = "$own" ] || [ "$session" = 1 ] || [ "$state" = Z ] && continue
  grep -qF SUPERVISOR= "/proc/$pid/environ" && continue
  exe=$(readlink "/proc/$pid/exe" || cat "/proc/$pid/comm")
  case "${exe##*/}" in *python*) ;; *) [ "$what" = processes ] || continue ;; esac
  rank_of "$pid"
  command=$(tr '\0\n' '  ' < "/proc/$pid/cmdline")
  printf '%s %s\n' \
    "pid $pid parent $parent rank ${rank:--} local_rank ${local_rank:--} state $state threads $threads" \
    "cpu_s $cpu_s wchan $(cat "/proc/$pid/wchan") command ${command:-[$(cat "/proc/$pid/comm")]}"
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
""".replace("SUPERVISOR", SUPERVISOR_MARK)


class NodeFacts(Value, frozen=True):
    """What a node showed, by what it was asked for; `notes` say why there is no more."""

    shown: dict[str, str] = {}
    notes: tuple[str, ...] = ()

    def processes(self, what: str, node: int = 0) -> tuple[ProcessInfo, ...]:
        """Return the processes that it listed, or whose stacks it showed."""
        return read_processes(self.shown.get(what, ""), node)


def probe_nodes(
    session: Session, plan: RunPlan, py_spy: str, left_s: Callable[[], float], cancelled: Event
) -> list[NodeFacts]:
    """Return what each node shows, all of them asked at once; never raises.

    `left_s` returns the seconds that are left for all of it.  Once `cancelled` is set nothing is waited for.
    """
    if not plan.traits.sees_processes:
        return []
    nodes = range(min(len(session.nodes), MOST_NODES))
    probes = [in_thread(partial(_probe_node, session, plan, node, py_spy, left_s), "madlite-look") for node in nodes]
    while wait(probes, _TURN_S).not_done:
        if cancelled.is_set():  # a probe that is under way ends with its session
            return []
    return [probe.result() for probe in probes]


def _probe_node(session: Session, plan: RunPlan, node: int, py_spy: str, left_s: Callable[[], float]) -> NodeFacts:
    """Return what one node shows; a probe takes as long as its limit."""
    mark = "" if plan.traits.containerised else f"{RUN_MARK}={plan.id}"
    shown: dict[str, str] = {}
    try:
        for what, limit_s in SHOWN_S.items():
            command = script_command(what, mark, py_spy)
            shown[what] = session.probe(command, node, min(limit_s, left_s())).stdout.decode("utf-8", "replace")
    except RuntimeProblem as problem:
        return NodeFacts(shown=shown, notes=(problem.message,))
    except Exception as error:  # noqa: BLE001 - the border to a plugin's runtime
        return NodeFacts(shown=shown, notes=(f"its runtime cannot probe it: {type(error).__name__}: {error}",))
    return NodeFacts(shown=shown)


def script_command(what: str, mark: str = "", py_spy: str = "") -> tuple[str, ...]:
    """Return what shows stacks, processes or GPUs where it runs."""
    return ("/bin/sh", "-c", _SCRIPT, "sh", what, mark, py_spy)


def probe_hang(
    folder: RunFolder, plan: RunPlan, session: Session, mask: Callable[[str], str], log: Iterable[str], cancelled: Event
) -> HangReport:
    """Return what a run's processes do, after keeping it; within a minute, and at once when called off.

    `mask` hides secrets, `log` is its last lines.
    """
    deadline = time.monotonic() + LIMIT_S
    facts = probe_nodes(
        session, plan, _own_py_spy(plan, folder), lambda: max(0.0, deadline - time.monotonic()), cancelled
    )
    lines = [line for line in log if line.strip()]
    texts = {"last_lines": "".join(f"{line}\n" for line in lines)}
    texts |= {what: _joined([found.shown.get(what, "") for found in facts]) for what in SHOWN_S}
    is_written = any([_write(folder, f"{FOLDER}/{what}.txt", text, mask) for what, text in texts.items()])
    dumps = [process for node, found in enumerate(facts) for process in found.processes("stacks", node)]
    places = locate_ranks(dumps)
    kept = "stacks" if places.text else "what was found"
    return HangReport(
        notes=tuple(map(mask, _notes(facts))),
        location=f"{kept} in {plan.folder.relative_to(plan.workspace) / FOLDER}/" if is_written else "",
        evidence=mask(places.text or (lines or [""])[-1].strip()),
        outliers=places.outliers,
        node="" if places.node is None else f"{places.node} ({session.nodes[places.node]})",
    )


def _own_py_spy(plan: RunPlan, folder: RunFolder) -> str:
    """Return where a node finds the py-spy that is installed with madlite; one for all, for it needs no library."""
    own = Path(sys.executable).with_name(PY_SPY)
    if not plan.traits.containerised:
        return str(own)
    with suppress(OSError):  # there is none, or a disk is full
        copy_inside(own, own.parent, folder.work / f".{PY_SPY}")
    return f"{plan.folder_inside}/.{PY_SPY}"


def _notes(facts: Sequence[NodeFacts]) -> Iterable[str]:
    """Yield what is wrong, each behind its node where there are several."""
    for node, found in enumerate(facts):
        label = f"node {node}: " if len(facts) > 1 else ""
        yield from (f"{label}{note}" for note in (*found.notes, *notes_of(found.processes("processes"))))


def _joined(texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return "\n".join(f"=== node {node}\n{text}" for node, text in enumerate(texts) if text)


def _write(folder: RunFolder, name: str, text: str, mask: Callable[[str], str]) -> bool:
    """Write one file without its secrets, those that a command spells out included; nothing where there is none."""
    text = text[:MOST_CHARACTERS]
    if not text.strip():
        return False
    if problem := folder.write_text(name, Redactor(assigned(text.splitlines())).text(mask(text))):
        _LOG.warning("%s", problem)
    return not problem
