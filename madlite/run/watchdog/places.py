"""Where the ranks of a run that seems to hang stand, and which of them the others may be waiting for.

A place is a function, its file and the line in it.  The ranks that stand alone are told first: in a collective all
wait for the one that did not come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from madlite.model import Value
from madlite.run.watchdog.processes import Dump, Frame, ProcessInfo, main_frames

MOST_DUMPS = 64  # processes whose stacks are taken, the ranks' own first
MOST_PLACES = 4  # of a run; where there are more, those are put together that share a call
_NAMED_RANKS = 3  # of a place; more are counted
_SHOWN_FRAMES = 3
# no place: every rank gets there the same way
_STARTS = re.compile(
    r"runpy|(^|/)(torch/distributed/(elastic/|run\.py|launch)|multiprocessing/(spawn|process|popen)|click/|fire/|hydra/)"
)
# whoever waits does it here, so what called it is told too
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
    """Where the ranks are in one line, and which of them stand apart; "" where that is not known."""

    words: str = ""
    odd: str = ""


def standing(dumps: Sequence[Dump]) -> RankPlaces:
    """Return where the ranks stand, the fewest first; of those that are as many, who waits for others comes last."""
    ranks = _of_ranks(dumps)
    if not ranks:
        return RankPlaces()
    if len(ranks) == 1:
        ((rank, frames),) = ranks.items()
        whose = f"rank {rank}" if rank else ""
        return RankPlaces(words=f"{whose} in {_called(frames[:_SHOWN_FRAMES])}".lstrip(), odd=whose or "it")
    places = sorted(_places(ranks), key=_order)
    told = [f"{_named(one.ranks, len(ranks))} in {_called(one.frames)}" for one in places[:MOST_PLACES]]
    rest = sum(len(one.ranks) for one in places[MOST_PLACES:])
    apart = len(places) > 1 and _order(places[0])[:2] < _order(places[1])[:2]
    return RankPlaces(
        words="; ".join([*told, *([f"{rest} more ranks elsewhere"] if rest else [])]),
        odd=_named(places[0].ranks, len(ranks)) if apart else "",
    )


def in_order(processes: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Return the Python processes in the order in which they explain: each rank's own first, then the others."""
    found = [facts for facts in processes if facts.python]
    own = own_ranks(found)
    return sorted(found, key=lambda facts: (facts.pid not in own, facts.pid))[:MOST_DUMPS]


def own_ranks(processes: Iterable[ProcessInfo | Dump]) -> dict[int, str]:
    """Return the ranks of the processes that are ranks themselves, by process id.

    What a rank starts (loaders of data, compilers) has its RANK too, and its parent is the rank's own process.  A
    launcher may have got a RANK, and has no LOCAL_RANK where what it starts has one.
    """
    found = [one for one in processes if one.rank and not _launches(one.command)]
    local = any(one.local_rank for one in found)
    ranks = {one.pid: (one.rank, one.local_rank) for one in found if one.local_rank or not local}
    return {one.pid: one.rank for one in found if one.pid in ranks and ranks.get(one.parent) != ranks[one.pid]}


def _of_ranks(dumps: Sequence[Dump]) -> dict[str, list[Frame]]:
    """Return the frames of each rank, in the order of ranks; of one process under "" where none is a rank."""
    stacks = {(one.node, one.pid): frames for one in dumps if (frames := main_frames(one.text))}
    nodes = sorted({one.node for one in dumps})
    own = {
        (node, pid): rank for node in nodes for pid, rank in own_ranks(one for one in dumps if one.node == node).items()
    }
    if not own:
        others = sorted((one for one in dumps if (one.node, one.pid) in stacks), key=lambda one: _launches(one.command))
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


def _named(ranks: Sequence[str], total: int) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _NAMED_RANKS or len(ranks) == total:
        return f"{len(ranks)} of {total} ranks"
    return f"ranks {', '.join(ranks)}"


def _called(frames: Iterable[Frame]) -> str:
    return " < ".join(frame.words for frame in frames)


def _launches(command: str) -> bool:
    """Say whether a command is a launcher of ranks, by its program, or by the script or module that Python runs."""
    program, *more = command.split() or [""]
    first = next((word for word in more if not word.startswith("-")), "")
    names = {PurePath(program).name, PurePath(first).name}
    return bool(names & _LAUNCHERS or _LAUNCHER_MODULES.fullmatch(first))
