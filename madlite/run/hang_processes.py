"""The processes of a run that seems to hang: what each of them is, and what it waits for in the kernel.

States and wait channels as proc(5) has them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from madlite.machine.processes import RUN_MARK, all_run_processes, with_descendants
from madlite.model import Value

MOST = 512  # processes that are looked at
STOPPED = "stopped by a signal or a debugger"
"""What a note says of processes that are, before their numbers."""
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
