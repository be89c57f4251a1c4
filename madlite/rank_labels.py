"""Whose line it is: the labels that launchers, Kubernetes and container engines put before what a rank prints.

Two kinds.  A label such as `[rank3]:` is nothing else.  A bare one, `3: ` of `srun --label` or `trainer-3  | ` of
Docker Compose, can as well be an epoch, an item of a list or a cell of a table: it is taken for a rank's, and whoever
reads the log asks later whether that holds (`surely`, and `Steps.is_shared`).

Formats: madlite's own of a run on several nodes (`[node1]: `), torchrun (`[rank0]:`, `[default0]:`), Primus
(`[rank-0/8]`), Open MPI's `--tag-output` (`[1,3]<stdout>:`, since 5.0 with the job's name), Slurm's `srun --label`,
`kubectl logs --prefix`, `docker compose logs`, `docker service logs`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from madlite.model import Line

CLOCK = r"(?:\d{4}[-/]?\d\d[-/]?\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
TAG = r"\[(?:[\w.@-]{1,100}@)?\d{1,9},\d{1,9}\]<std(?:err|out)>(?:\[[^\[\]]{0,100}\])?:?"
"""Open MPI's label."""
# a container's runtime writes `<time> stdout F ` before each line of its file
_TIME = rf"(?:{CLOCK}\s{{1,4}}(?:std(?:out|err)\s[FP]\s)?)?"
OF_RANK = re.compile(rf"\[(?:rank|default)\d+\]:\s?|{TAG}\s?")
LABEL = re.compile(rf"^{_TIME}(?:{OF_RANK.pattern})+")
"""What launchers put before every line of a rank; a label of `RankLabels` alone may be none."""
_NODE = "[node"
_HEAD = 200  # characters of a line in which a launcher's prefix is looked for
_LABEL = 40  # characters that torchrun's label has at most
_RANK = re.compile(r"\[(?:rank|default)[-_]?(\d{1,9})(?:/\d+)?\]")
_TAG = re.compile(r",(\d{1,9})\]<std(?:err|out)>")
_OUTER = re.compile(
    rf"(?P<time>{_TIME})(?:\s{{0,5}}(?P<task>\d{{1,5}}):(?:\s|$)"
    r"|\[node(?P<node>\d{1,5})\]:\s?"
    r"|\[pod/(?P<pod>[\w.-]{1,253})(?:/[\w.-]{1,253})?\]\s?"
    r"|(?P<service>[\w.-]{1,100}\.\d{1,5}\.\w{5,40}@[\w.-]{1,100})\s{1,80}\|\s"
    r"|(?P<container>[A-Za-z][\w.-]{0,100}[-_]\d{1,5})\s{1,80}\|\s"
    r")"
)
_LEADS = re.compile(r"(?:^|[-_.])(?:master|chief|launcher|leader|head)(?:[-_.]\d+)?(?:-[a-z0-9]{5})?$")
_WORKER = re.compile(r"(?:^|[-_.])worker[-_.](\d{1,5})(?:-[a-z0-9]{5})?$")
_INDEX = re.compile(r"-(\d{1,5})(?:-[a-z0-9]{5})?$")  # of a StatefulSet's, a JobSet's or an indexed Job's pod
_OF_SERVICE = re.compile(r"[A-Za-z](\d{1,5})[-_]1$")  # a service of its own for each rank: trainer3-1
_COPY = re.compile(r"[-_.](\d{1,5})(?:\.\w+@.*)?$")  # copies of a service count from 1
# what names of one kind differ by: their numbers, and what Kubernetes and Docker append at random
_OWN = re.compile(r"(?:-[b-df-hj-np-tv-z2-9]{5}|\.\w+@.*)$|\d+")
_MOST = 4096  # labels; what has more counts something else
_LEAST, _MOSTLY = 4, 0.8  # lines with a bare label, and their part of all lines since the first


def node_label(node: int) -> str:
    """Return what madlite puts before each line of a node, where a run is on several."""
    return f"{_NODE}{node}]: "


def nodes_of(lines: Sequence[str], text: str) -> list[int] | None:
    """Return the node that each line names, 0 where it names none; None where no line does."""
    if _NODE not in text:
        return None
    found = (_OUTER.match(line) if line.startswith(_NODE) else None for line in lines)
    return [int(label["node"] or 0) if label is not None else 0 for label in found]


def rank_of(text: str) -> int | None:
    """Return the rank that a line's label names for sure: `[rank0]:`, `[rank-0/8]`, `[1,3]<stdout>:`."""
    at = text.find("[rank", 0, _HEAD)
    if at < 0 and text.find("[default", 0, _HEAD) < 0:
        tag = _TAG.search(text, 0, _HEAD) if text.find("]<std", 0, _HEAD) > 0 else None
        return int(tag[1]) if tag else None
    label = text[at : text.find("]", at, at + _LABEL) + 1] if at >= 0 else ""
    rank = _known_rank(label) if label else None
    if rank is not None:
        return rank
    found = _RANK.search(text, 0, _HEAD)
    return int(found[1]) if found else None


def without_label(line: Line) -> str:
    """Return what the process wrote, of a line that names its rank without the labels, and the time before them."""
    return LABEL.sub("", without_outer(line.text)) if line.rank is not None else line.text


@lru_cache(maxsize=4096)
def _known_rank(label: str) -> int | None:
    """Return the rank that a label such as `[rank-0/8]` names; a log has few of them and millions of lines."""
    found = _RANK.fullmatch(label)
    return int(found[1]) if found else None


class RankLabels:
    """The labels of one log, whose streams share it: names of pods and containers get their rank at first sight."""

    def __init__(self) -> None:
        self._ranks: dict[str, int] = {}  # name of a pod or container → rank
        self._bare: set[int] = set()  # ranks that bare labels name
        self._named: set[int] = set()  # and those that others do
        self._within: set[int] = set()  # of those the ones that the processes' own labels do
        self._alone: frozenset[int] = frozenset()
        self._has_nodes = False  # whether lines name their node
        self._leads = False  # whether a pod is there that leads the workers, as rank 0
        self._labelled = self._others = 0  # lines with a bare label, and those without since the first

    @property
    def bare(self) -> frozenset[int]:
        """The ranks that bare labels alone name."""
        return frozenset(self._bare - self._named)

    @property
    def alone(self) -> frozenset[int]:
        """The ranks of names that no other one is like but for its number: those of one process, and of others' work.

        `[pod/finetune-llama-3-x7k2q/main]` is a Job's only pod, and `redis-1` beside `trainer-1` no rank of a training.
        """
        kinds = Counter(_OWN.sub("", name) for name in self._ranks)
        roles = (_LEADS.search, _WORKER.search)
        return frozenset(
            rank
            for name, rank in self._ranks.items()
            if kinds[_OWN.sub("", name)] == 1 and rank not in self._within and not any(role(name) for role in roles)
        )

    @property
    def surely(self) -> bool:
        """Whether bare labels are a launcher's, as far as lines show: nearly each has one, and they come again."""
        many = self._labelled >= max(_LEAST, 2 * len(self._bare))
        return many and self._labelled >= _MOSTLY * (self._labelled + self._others)

    def read(self, lines: Sequence[str], text: str, node: int | None = None) -> list[int | None] | None:
        """Return the rank of each line, None where no line names one; `text` is all of them together.

        `node` is the one whose label madlite has put before each of them.
        """
        inner = "[rank" in text or "[default" in text or "]<std" in text
        if node is not None and lines:
            self._has_nodes = True
            self._named.add(node)
            return [self._inner(line, node) for line in lines] if inner else [node] * len(lines)
        self._has_nodes = self._has_nodes or _NODE in text
        named = _NODE in text or "[pod/" in text or "| " in text
        begins = _may_begin if named else _may_be_task
        outer = [_OUTER.match(line) if begins(line) else None for line in lines]
        if self._labelled or any(outer):
            ranks = [self._read(line, found) for line, found in zip(lines, outer, strict=True)]
        else:
            ranks = [None] * len(lines)
        if inner:
            ranks = [self._inner(line, rank) for line, rank in zip(lines, ranks, strict=True)]
        return ranks if any(rank is not None for rank in ranks) else None

    def plain(self, lines: Iterable[str]) -> list[str]:
        """Return lines with torchrun's label in place of a pod's, a container's or a task's, where those are labels."""
        self._alone = self.alone
        return (
            [self._canonical(line) for line in lines] if self._ranks or self._bare or self._has_nodes else list(lines)
        )

    def _read(self, line: str, found: re.Match[str] | None) -> int | None:
        """Return the rank of a task's, pod's or container's label, and count those that may be none."""
        if found is None and self._labelled:
            self._others += not line.startswith(("srun: ", "slurmstepd: "))
        return self._of_label(found) if found is not None else None

    def _inner(self, line: str, outer: int | None) -> int | None:
        """Return the rank of the label within, as that of a rank on a node or in a pod, else the outer one's."""
        rank = rank_of(line)
        if rank is not None and len(self._named) < _MOST:
            self._named.add(rank)
            self._within.add(rank)
        return outer if rank is None else rank

    def _canonical(self, line: str) -> str:
        found = _OUTER.match(line) if _may_begin(line) else None
        if found is None or (_is_bare(found) and not self.surely) or (rank := self._known(found)) is None:
            return line
        rest = line[found.end() :]
        label = "" if found["node"] or rank_of(rest) is not None or rank in self._alone else f"[rank{rank}]: "
        return f"{found['time']}{label}{rest}"

    def _of_label(self, found: re.Match[str]) -> int | None:
        rank = self._known(found)
        if rank is None:
            return None
        if _is_bare(found):
            self._labelled += 1
            if len(self._bare) < _MOST:
                self._bare.add(rank)
            return rank if rank in self._bare else None
        self._named.add(rank)
        return rank

    def _known(self, found: re.Match[str]) -> int | None:
        if found["task"] or found["node"]:
            return int(found["task"] or found["node"])
        name = found["pod"] or found["service"] or found["container"]
        if name not in self._ranks and len(self._ranks) < _MOST:
            self._leads = self._leads or _LEADS.search(name) is not None
            wanted, taken = self._wanted(found, name), set(self._ranks.values())
            self._ranks[name] = wanted if wanted not in taken else next(n for n in range(_MOST) if n not in taken)
        return self._ranks.get(name)

    def _wanted(self, found: re.Match[str], name: str) -> int:
        """Return the rank that a name says; beside a pod that leads them workers count from 1."""
        if found["container"] and (own := _OF_SERVICE.search(name)):
            return int(own[1])
        if not found["pod"]:
            return max(0, int(copy[1]) - 1) if (copy := _COPY.search(name)) else 0
        if worker := _WORKER.search(name):
            return int(worker[1]) + self._leads
        return int(index[1]) if (index := _INDEX.search(name)) else 0


def without_outer(line: str) -> str:
    """Return a line without the label of a task, a pod or a container."""
    found = _OUTER.match(line) if line and _may_begin(line) else None
    return line[found.end() :] if found else line


def is_label(text: str, begin: int, end: int) -> bool:
    """Say whether a number of a line is what else would be a task's label: the first of it, before a colon."""
    found = _OUTER.match(text) if text and _may_begin(text) else None
    return found is not None and found["task"] is not None and found.start("task") <= begin < end <= found.end("task")


def _may_be_task(line: str) -> bool:
    return line[0] in "0123456789 "


def _may_begin(line: str) -> bool:
    """Say whether an outer label can be at a line's begin, which is quick to see."""
    first = line[0]
    if first in "0123456789 [":
        return first != "[" or line.startswith(("[pod/", _NODE))
    return line.find("| ", 0, _HEAD) > 0


def _is_bare(found: re.Match[str]) -> bool:
    return found["task"] is not None or found["container"] is not None
