"""What can be seen of a hanging run where it runs, by its session's probe: in containers, on other machines.

A POSIX shell script runs there; it uses nothing but the shell and /proc, and the tools that it finds.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from threading import Event

from madlite.errors import RuntimeProblem
from madlite.model import RunPlan, Session, Value
from madlite.run.watchdog.stacks import Dump, main_frames
from madlite.workspace.folder import RUN_MARK

LIMIT_S = 10.0  # of one script
STACKS_S = 25.0  # of the one that dumps every process's stacks
MOST_NODES = 64  # that are looked at, at the same time
_HEAD = re.compile(
    r"^=== pid (?P<pid>\d+) parent (?P<parent>\d+) rank (?P<rank>\d*) local (?P<local>\d*)$", re.MULTILINE
)
_TURN_S = 0.1

# $1: what to show.  $2: what of a process's environment says that it is the run's; "" where all processes there are.
# Session 1 is a container's own, and ours is this script's.
_SCRIPT = r"""
exec 2> /dev/null
look() {
  read -r line < "/proc/$1/stat" || return 1
  set -- ${line##*) }
  state=$1 parent=$2 session=$4
}
ours() {
  [ -z "$mark" ] || tr '\0' '\n' < "/proc/$1/environ" | grep -qxF "$mark"
}
rank_of() {
  rank=$(tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^RANK=//p')
  local_rank=$(tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^LOCAL_RANK=//p')
}
look $$ && own=$session
mark=$2
if [ "$1" = gpus ]; then
  if command -v amd-smi > /dev/null; then amd-smi monitor; amd-smi process
  elif command -v rocm-smi > /dev/null; then rocm-smi; rocm-smi --showpids
  fi
  command -v nvidia-smi > /dev/null && nvidia-smi
  exit 0
fi
[ "$1" != stacks ] || command -v py-spy > /dev/null || exit 3
for entry in /proc/[0-9]*; do
  pid=${entry#/proc/}
  look "$pid" || continue
  [ "$session" = "$own" ] || [ "$session" = 1 ] || [ "$state" = Z ] && continue
  ours "$pid" || continue
  rank_of "$pid"
  if [ "$1" = stacks ]; then
    case "$(readlink "/proc/$pid/exe")" in *python*) ;; *) continue ;; esac
    echo "=== pid $pid parent $parent rank $rank local $local_rank"
    py-spy dump --pid "$pid" 2>&1
  else
    echo "pid $pid parent $parent rank ${rank:--} local_rank ${local_rank:--} state $state" \
      "wchan $(cat "/proc/$pid/wchan") command $(tr '\0' ' ' < "/proc/$pid/cmdline")"
    cat "/proc/$pid/stack"
  fi
done
"""


class Inside(Value, frozen=True):
    """What was shown; "" and () where nothing was."""

    notes: tuple[str, ...] = ()
    processes: str = ""
    dumps: tuple[Dump, ...] = ()
    gpus: str = ""


def look_inside(
    session: Session, plan: RunPlan, wanted: Sequence[str], left_s: Callable[[], float], cancelled: Event
) -> Inside:
    """Return what is seen of what is `wanted`: processes, stacks, gpus; of all nodes at once; never raises.

    `left_s` tells the seconds that are left for all of it.  Once `cancelled` is set nothing is waited for.
    """
    nodes = range(min(len(session.nodes), MOST_NODES))
    looks = [_Look(session, plan, node, wanted, left_s) for node in nodes]
    for look in looks:
        while look.thread.is_alive() and not cancelled.is_set():
            look.thread.join(_TURN_S)
    if cancelled.is_set():  # a probe that is under way ends with its session
        return Inside()
    return _together([look.seen for look in looks])


def _together(seen: Sequence[Inside]) -> Inside:
    """Return what the nodes showed as one; what is told of a node begins with its number where there are several."""
    if len(seen) == 1:
        return seen[0]
    return Inside(
        notes=tuple(f"node {node}: {note}" for node, one in enumerate(seen) for note in one.notes),
        processes=_parts([one.processes for one in seen]),
        dumps=tuple(dump for one in seen for dump in one.dumps),
        gpus=_parts([one.gpus for one in seen]),
    )


def _parts(texts: Sequence[str]) -> str:
    return "\n".join(f"=== node {node}\n{text}" for node, text in enumerate(texts) if text)


class _Look:
    """One node, looked at in a thread of its own: a probe takes as long as its limit."""

    def __init__(
        self, session: Session, plan: RunPlan, node: int, wanted: Sequence[str], left_s: Callable[[], float]
    ) -> None:
        self.seen = Inside()
        self._session, self._node, self._wanted, self._left_s = session, node, wanted, left_s
        self._mark = "" if plan.traits.containerised else f"{RUN_MARK}={plan.id}"
        self.thread = threading.Thread(target=self._run, name="madlite-look", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            told = {what: self._show(what) for what in self._wanted}
        except RuntimeProblem as problem:
            self.seen = Inside(notes=(problem.message,))
        except Exception as error:  # noqa: BLE001 - the border to a plugin's runtime
            self.seen = Inside(notes=(f"its runtime cannot look into it: {type(error).__name__}: {error}",))
        else:
            dumps = tuple(_dumps(told.get("stacks", ""), self._node))
            self.seen = Inside(processes=told.get("processes", ""), dumps=dumps, gpus=told.get("gpus", ""))

    def _show(self, what: str) -> str:
        """Run the script for one thing, as long as there is time, and return what it printed until then."""
        limit_s = min(LIMIT_S if what != "stacks" else STACKS_S, self._left_s())
        argv = ("/bin/sh", "-c", _SCRIPT, "sh", what, self._mark)
        return self._session.probe(argv, self._node, limit_s).stdout.decode("utf-8", "replace")


def _dumps(text: str, node: int) -> Iterator[Dump]:
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True) if heads else ():
        said = text[head.end() : end].strip("\n")
        problem = "" if main_frames(said) else "py-spy where it runs: " + said.partition("\n")[0]
        yield Dump(
            pid=int(head["pid"]),
            parent=int(head["parent"]),
            rank=head["rank"],
            local_rank=head["local"],
            text=said + "\n",
            problem=problem,
            node=node,
        )
