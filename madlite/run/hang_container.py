"""What can be seen of a hanging run inside its container: for engines elsewhere, and for callers who are not root.

A POSIX shell script runs inside, as root there; it uses nothing but the shell and /proc, and the tools that it finds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event

from madlite.errors import RuntimeProblem
from madlite.run.docker_client import ANSWER_LIMIT_S, Client, connected
from madlite.run.docker_exec import Exec
from madlite.run.docker_stream import Frames
from madlite.run.hang_stacks import Dump, main_frames
from madlite.run.marks import RUN_LABEL
from madlite.types import Value

LIMIT_S = 10.0  # of one script
STACKS_S = 25.0  # of the one that dumps every process's stacks
_HEAD = re.compile(
    r"^=== pid (?P<pid>\d+) parent (?P<parent>\d+) rank (?P<rank>\d*) local (?P<local>\d*)$", re.MULTILINE
)
MOST_BYTES = 1 << 20
_TURN_S = 0.2

# $1: what to show.  Each process of the workload (session 1 is the container's own, and ours is this script's).
_SCRIPT = r"""
exec 2> /dev/null
look() {
  read -r line < "/proc/$1/stat" || return 1
  set -- ${line##*) }
  state=$1 parent=$2 session=$4
}
mark() {
  rank=$(tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^RANK=//p')
  local_rank=$(tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^LOCAL_RANK=//p')
}
look $$ && own=$session
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
  mark "$pid"
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
    """What the container showed; "" and () where it did not."""

    notes: tuple[str, ...] = ()
    processes: str = ""
    dumps: tuple[Dump, ...] = ()
    gpus: str = ""


def look_inside(
    environ: Mapping[str, str], run_id: str, wanted: Sequence[str], left_s: Callable[[], float], cancelled: Event
) -> Inside:
    """Return what is seen inside the run's container of what is `wanted`: processes, stacks, gpus; never raises.

    `left_s` tells the seconds that are left for all of it.
    """
    try:
        with connected(environ, ANSWER_LIMIT_S) as client:
            found = client.containers(all=True, filters={"label": f"{RUN_LABEL}={run_id}"})
            if not found:
                return Inside(notes=("its container is gone",))
            state = client.inspect_container(found[0]["Id"])["State"]
            if state.get("Paused") or not state.get("Running"):
                return Inside(notes=(f"its container is {'paused' if state.get('Paused') else 'not running'}",))
            told = {what: _show(client, found[0]["Id"], what, left_s, cancelled) for what in wanted}
    except RuntimeProblem as problem:
        return Inside(notes=(f"its container cannot be asked ({problem.message})",))
    return Inside(
        processes=told.get("processes", ""), dumps=tuple(_dumps(told.get("stacks", ""))), gpus=told.get("gpus", "")
    )


def _show(client: Client, container: str, what: str, left_s: Callable[[], float], cancelled: Event) -> str:
    """Run the script for one thing, as long as there is time, and return what it printed until then."""
    pieces: list[bytes] = []
    frames = Frames(lambda data, stream: pieces.append(data))
    deadline = time.monotonic() + min(LIMIT_S if what != "stacks" else STACKS_S, left_s())
    output = Exec(client, container, ("/bin/sh", "-c", _SCRIPT, "sh", what), "/", {}, user="0").start()
    try:
        while time.monotonic() < deadline and not cancelled.is_set() and sum(map(len, pieces)) < MOST_BYTES:
            data = output.read(_TURN_S)
            if data is not None and not data:
                break
            frames.feed(data or b"")
    finally:
        output.close()
    return b"".join(pieces)[:MOST_BYTES].decode("utf-8", "replace")


def _dumps(text: str) -> Iterator[Dump]:
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True) if heads else ():
        said = text[head.end() : end].strip("\n")
        problem = "" if main_frames(said) else "py-spy in the container: " + said.partition("\n")[0]
        yield Dump(
            pid=int(head["pid"]),
            parent=int(head["parent"]),
            rank=head["rank"],
            local_rank=head["local"],
            text=said + "\n",
            problem=problem,
        )
