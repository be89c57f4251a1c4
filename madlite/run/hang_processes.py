"""The processes of a run that seems to hang: what each of them is, and what it waits for in the kernel.

States and wait channels as proc(5) has them; what may not be read is left empty.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from threading import Event

from madlite.machine.processes import RUN_MARK, all_run_processes, with_descendants
from madlite.model import Value
from madlite.process import capture
from madlite.secrets import Redactor, assigned

MOST = 512  # processes that are looked at
_SHOWN_COMMAND = 300  # characters of a command
_SHOWN_THREADS = 8  # of a process, that wait in the kernel for something they cannot be woken from
_STOPPED = ("T", "t")
STOPPED = "stopped by a signal or a debugger"
"""What a note says of processes that are, before their numbers."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessInfo(Value, frozen=True):
    """One process: `cpu_s` used so far, `wchan` the kernel function it waits in, `stack` its kernel stack."""

    pid: int
    parent: int
    state: str
    cpu_s: float = 0.0
    threads: int = 0
    wchan: str = ""
    rank: str = ""
    local_rank: str = ""
    command: str = ""
    python: bool = False
    stack: str = ""


def find_processes(run_id: str) -> tuple[ProcessInfo, ...]:
    """Return the run's processes that can be seen from here, in containers too, by their mark or their parents.

    What keeps them together on a host is none of them.
    """
    found = [item for item in all_run_processes(in_containers=True) if item.environment[RUN_MARK] == run_id]
    marked = {item.process.pid: item.environment for item in found}
    family = {process.pid for process in with_descendants(marked)}
    apart = {item.process.pid for item in found if item.is_supervisor}
    pids = sorted((family | set(marked)) - apart)[:MOST]
    return tuple(
        process for pid in pids if (process := read_facts(Path("/proc", str(pid)), marked.get(pid, {}))) is not None
    )


def read_facts(folder: Path, environment: Mapping[str, str]) -> ProcessInfo | None:
    """Return the facts of a process in /proc; None of one that ended meanwhile."""
    name, found, stat = _text(folder / "stat").rpartition(")")
    fields = stat.split()
    if not found or len(fields) < 18:
        return None
    text = [word for word in _text(folder / "cmdline").split("\0") if word]
    return ProcessInfo(
        pid=int(folder.name),
        parent=int(fields[1]),
        state=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        threads=int(fields[17]),
        wchan=_text(folder / "wchan").strip().removeprefix("0"),
        rank=environment.get("RANK", ""),
        local_rank=environment.get("LOCAL_RANK", ""),
        command=_masked(text) or f"[{name.partition('(')[2]}]",
        python=_is_python(folder),
        stack=_stacks(folder),
    )


def notes_of(processes: Sequence[ProcessInfo]) -> tuple[str, ...]:
    """Return what is wrong with processes as a whole: that they are stopped, or cannot be woken."""
    every = f"of {len(processes)} processes"
    stopped = [process for process in processes if process.state in _STOPPED]
    stuck = [process for process in processes if process.state == "D"]
    notes = []
    if stopped:
        notes.append(f"{len(stopped)} {every} {STOPPED} ({_pids(stopped)})")
    if stuck:
        where = f" in {stuck[0].wchan}" if stuck[0].wchan else ""
        notes.append(f"{len(stuck)} {every} waiting in the kernel{where}, deaf to signals ({_pids(stuck)})")
    return tuple(notes)


def table(processes: Sequence[ProcessInfo], later: Mapping[int, float], for_s: float) -> str:
    """Return the processes as a table; `later` is each one's time on a CPU `for_s` seconds after."""
    head = ("PID", "PPID", "RANK", "LOCAL", "STATE", "THR", "CPU_S", "CPU%", "WCHAN", "COMMAND")
    rows = [head, *(_row(process, later.get(process.pid), for_s) for process in processes)]
    wide = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
    lines = ["  ".join([*map(str.ljust, row, wide), row[-1]]) for row in rows]
    return "\n".join(lines) + "\n"


def kernel_stacks(processes: Iterable[ProcessInfo]) -> str:
    """Return the kernel stacks that could be read."""
    return "\n".join(f"pid {process.pid}  {process.command}\n{process.stack}" for process in processes if process.stack)


def cpu_times(processes: Iterable[ProcessInfo], proc: Path = Path("/proc")) -> dict[int, float]:
    """Return the seconds on a CPU of each process that is still there."""
    now = ((process.pid, read_facts(proc / str(process.pid), {})) for process in processes)
    return {pid: process.cpu_s for pid, process in now if process is not None}


def _row(process: ProcessInfo, cpu_later_s: float | None, for_s: float) -> tuple[str, ...]:
    share = "-" if cpu_later_s is None or for_s <= 0 else f"{100 * (cpu_later_s - process.cpu_s) / for_s:.0f}"
    return (
        *(str(process.pid), str(process.parent), process.rank or "-", process.local_rank or "-", process.state),
        *(str(process.threads), f"{process.cpu_s:.1f}", share, process.wchan or "-", process.command),
    )


def _masked(text: Sequence[str]) -> str:
    """Return a command in one line without the secrets that it spells out."""
    command = " ".join(text)
    return " ".join(Redactor(assigned([command, *text])).text(command).split())[:_SHOWN_COMMAND]


def _is_python(folder: Path) -> bool:
    try:
        return "python" in (folder / "exe").readlink().name
    except OSError:
        return "python" in _text(folder / "comm")


def _stacks(folder: Path) -> str:
    """Return the kernel stack of a process's first thread, and of others that are stuck in the kernel."""
    parts = [_text(folder / "stack")]
    try:
        threads = sorted((folder / "task").iterdir(), key=lambda path: int(path.name))
    except OSError:
        threads = []
    stuck = [thread for thread in threads[1:] if _text(thread / "stat").rpartition(")")[2].split()[:1] == ["D"]]
    parts += [f"thread {item.name}\n{_text(item / 'stack')}" for item in stuck[:_SHOWN_THREADS]]
    return "".join(part for part in parts if part.strip())


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:  # it ended, or we may not
        return ""


def _pids(processes: Sequence[ProcessInfo]) -> str:
    return "pid " + ", ".join(str(process.pid) for process in processes[:4]) + (", …" if len(processes) > 4 else "")


# The stacks of a run's Python processes, as py-spy shows them.
#
# Format of `py-spy dump` (0.3 and 0.4): a head per process, `Thread 12 (idle): "MainThread"` per thread, and its
# frames from the innermost on, `name (path:line)`.

LIMIT_S = 10.0  # of one dump
_THREAD = re.compile(r"^Thread (?:0x)?[0-9A-Fa-f]+ \([^)]*\)(?::\s*\"(?P<name>.*)\")?", re.MULTILINE)
_FRAME = re.compile(r"^ {4}(?P<name>\S.*?) \((?P<path>[^()]*?)(?::(?P<line>\d+))?\)$", re.MULTILINE)
_COMMAND = re.compile(r"^Process \d+: (?P<command>.*)$", re.MULTILINE)


class Dump(Value, frozen=True):
    """One process's stacks; `rank` "" where it has none.  Of several nodes each has its own process ids."""

    pid: int
    rank: str
    text: str
    problem: str = ""
    parent: int = 0
    local_rank: str = ""
    node: int = 0

    @property
    def command(self) -> str:
        """The command as the head of the stacks has it."""
        head = _COMMAND.search(self.text)
        return head["command"] if head else ""


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


def find_py_spy(path: str) -> str | None:
    """Return the program: on the search path, or beside the interpreter that runs madlite."""
    beside = beside_interpreter()
    return shutil.which("py-spy", path=path) or (str(beside) if beside.is_file() else None)


def dump(py_spy: str, process: ProcessInfo, limit_s: float, cancelled: Event) -> Dump:
    """Return the stacks of one process; where it cannot be paused in time, without pausing it."""
    limit_s = min(LIMIT_S, limit_s)
    ended = capture([py_spy, "dump", "--pid", str(process.pid)], limit_s=limit_s, cancelled=cancelled)
    if ended.timed_out and not cancelled.is_set():
        command = [py_spy, "dump", "--nonblocking", "--pid", str(process.pid)]
        ended = capture(command, limit_s=limit_s, cancelled=cancelled)
    output = ended.stderr.strip().splitlines() or ["nothing"]
    problem = "" if ended.ok else f"py-spy took more than {limit_s:g} s" if ended.timed_out else f"py-spy: {output[0]}"
    return Dump(
        pid=process.pid,
        rank=process.rank,
        text=ended.stdout,
        problem=problem,
        parent=process.parent,
        local_rank=process.local_rank,
    )


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
MOST_PLACES = 4  # of a run; where there are more, those are put together that share a call
_NAMED_RANKS = 3  # of a place; more are counted
_SHOWN_FRAMES = 3
# no place: every rank gets there the same way
_STARTS = re.compile(
    r"runpy|(^|/)(torch/distributed/(elastic/|run\.py|launch)|multiprocessing/(spawn|process|popen)|click/|fire/|hydra/)"
)
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


def locate_ranks(dumps: Sequence[Dump]) -> RankPlaces:
    """Return where the ranks stand, the fewest first; of those that are as many, who waits for others comes last."""
    ranks = _of_ranks(dumps)
    if not ranks:
        return RankPlaces()
    if len(ranks) == 1:
        ((rank, frames),) = ranks.items()
        rank_text = f"rank {rank}" if rank else ""
        return RankPlaces(
            text=f"{rank_text} in {_call_chain(frames[:_SHOWN_FRAMES])}".lstrip(), outliers=rank_text or "it"
        )
    places = sorted(_places(ranks), key=_order)
    texts = [f"{_rank_text(place.ranks, len(ranks))} in {_call_chain(place.frames)}" for place in places[:MOST_PLACES]]
    rest = sum(len(place.ranks) for place in places[MOST_PLACES:])
    apart = len(places) > 1 and _order(places[0])[:2] < _order(places[1])[:2]
    return RankPlaces(
        text="; ".join([*texts, *([f"{rest} more ranks elsewhere"] if rest else [])]),
        outliers=_rank_text(places[0].ranks, len(ranks)) if apart else "",
        node=_node_of(places[0].ranks, dumps) if apart else None,
    )


def _node_of(ranks: Sequence[str], dumps: Sequence[Dump]) -> int | None:
    nodes = {item.node for item in dumps if item.rank in ranks}
    return nodes.pop() if len(nodes) == 1 and len({item.node for item in dumps}) > 1 else None


def in_order(processes: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Return the Python processes in the order in which they explain: each rank's own first, then the others."""
    found = [process for process in processes if process.python]
    own = own_ranks(found)
    return sorted(found, key=lambda process: (process.pid not in own, process.pid))[:MOST_DUMPS]


def own_ranks(processes: Iterable[ProcessInfo | Dump]) -> dict[int, str]:
    """Return the ranks of the processes that are ranks themselves, by process id.

    What a rank starts (loaders of data, compilers) has its RANK too, and its parent is the rank's own process.  A
    launcher may have got a RANK, and has no LOCAL_RANK where what it starts has one.
    """
    found = [process for process in processes if process.rank and not _launches(process.command)]
    local = any(item.local_rank for item in found)
    ranks = {item.pid: (item.rank, item.local_rank) for item in found if item.local_rank or not local}
    return {item.pid: item.rank for item in found if item.pid in ranks and ranks.get(item.parent) != ranks[item.pid]}


def _of_ranks(dumps: Sequence[Dump]) -> dict[str, list[Frame]]:
    """Return the frames of each rank, in the order of ranks; of one process under "" where none is a rank."""
    stacks = {(item.node, item.pid): frames for item in dumps if (frames := main_frames(item.text))}
    nodes = sorted({item.node for item in dumps})
    own = {
        (node, pid): rank
        for node in nodes
        for pid, rank in own_ranks(item for item in dumps if item.node == node).items()
    }
    if not own:
        others = sorted(
            (item for item in dumps if (item.node, item.pid) in stacks), key=lambda item: _launches(item.command)
        )
        return {"": stacks[others[0].node, others[0].pid]} if others else {}
    ranks: dict[str, list[Frame]] = {}
    for process in sorted(own):
        if process in stacks:
            ranks.setdefault(own[process], stacks[process])
    return dict(sorted(ranks.items(), key=lambda item: (len(item[0]), item[0])))


def _places(ranks: Mapping[str, list[Frame]]) -> list[CodePlace]:
    """Return the places: by what is shown of each rank, and where these are too many by the nearest shared calls."""
    groups: dict[tuple[Frame, ...], list[str]] = {}
    for rank, frames in ranks.items():
        groups.setdefault(_shown(frames), []).append(rank)
    while len(groups) > MOST_PLACES and (shared := _nearest_shared(ranks, groups)):
        members = [rank for rank, frames in ranks.items() if shared in frames]
        left = {frames: [rank for rank in group if rank not in members] for frames, group in groups.items()}
        merged = {frames: group for frames, group in left.items() if group} | {(shared,): members}
        if len(merged) >= len(groups):
            break
        groups = merged
    return [CodePlace(ranks=tuple(group), frames=frames) for frames, group in groups.items()]


def _shown(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the innermost frame, with what called it where it is one in which everybody waits."""
    count = 1
    while count < min(_SHOWN_FRAMES, len(frames)) and _STANDARD_WAITS.search(frames[count - 1].path):
        count += 1
    return tuple(frames[:count])


def _nearest_shared(
    ranks: Mapping[str, Sequence[Frame]], groups: Mapping[tuple[Frame, ...], Sequence[str]]
) -> Frame | None:
    """Return the call that ranks of several groups are in, the one nearest to where they stand; None without one."""
    of_group: dict[Frame, set[tuple[Frame, ...]]] = {}
    depth: dict[Frame, int] = {}
    for group, members in groups.items():
        for rank in members:
            for at, frame in enumerate(ranks[rank]):
                if frame.name != "<module>" and not _STARTS.search(frame.path):
                    of_group.setdefault(frame, set()).add(group)
                    depth[frame] = max(depth.get(frame, at), at)
    several = [frame for frame, those in of_group.items() if len(those) > 1]
    return min(several, key=lambda frame: (depth[frame], -len(of_group[frame])), default=None)


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
