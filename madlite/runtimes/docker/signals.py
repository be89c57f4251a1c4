"""End what runs inside a container, and only that: INT, TERM, then KILL.

The engine signals a container's first process alone, and stopping a container kills an exec'd workload at once.  So a
small POSIX shell script runs inside; it uses nothing but the shell and /proc, for images without ps, kill or pgrep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from madlite.images.client import Client, said

KILL_LIMIT_S = 5.0  # for processes to vanish after KILL; one that waits for its GPU does not
_LOG = logging.getLogger(__name__)
_NOTHING_LEFT = 1

# The engine starts each exec as the leader of a session, whose parent is outside the container (0).  Session 1 is the
# container's own.  INT and TERM go to the process groups of the exec'd sessions: launchers that give their workers
# sessions of their own pass these on.  KILL goes to every process of the workload.  With $2, the container shares the
# process table of the host, and only that session is ours; 0 and 1 never are.
_SCRIPT = r"""
name=$1 only=$2 sent=1 done=
case "$only" in 0 | 1) exit 1 ;; esac
look() {
  read -r line < "/proc/$1/stat" || return 1
  set -- ${line##*) }
  state=$1 parent=$2 group=$3 session=$4
}
exec 2> /dev/null
look $$ && own=$session
for entry in /proc/[0-9]*; do
  pid=${entry#/proc/}
  look "$pid" || continue
  [ "$state" = Z ] || [ "$session" = "$own" ] && continue
  if [ -n "$only" ]; then [ "$session" = "$only" ] || continue
  elif [ "$session" = 1 ]; then continue
  fi
  if [ "$name" = KILL ]; then
    kill -KILL "$pid" && sent=0
    continue
  fi
  to=$group
  [ -z "$only" ] && look "$session" && [ "$parent" != 0 ] && continue
  case " $done " in *" $to "*) continue ;; esac
  done="$done $to"
  kill "-$name" "-$to" && sent=0
done
exit $sent
"""


def end_workload(client: Client, container: str, session: str, grace_s: float, ended: Callable[[float], bool]) -> None:
    """Send INT, then TERM, each with `grace_s` to end by itself, then KILL whatever is left.

    `session` is the exec's process id where the container shares the host's process table, else "".  `ended(limit_s)`
    waits for the exec'd process.
    """
    for name in ("INT", "TERM"):
        if send(client, container, name, session) != 0 or ended(grace_s):
            break
    deadline = time.monotonic() + KILL_LIMIT_S
    while send(client, container, "KILL", session) == 0 and time.monotonic() < deadline:
        time.sleep(0.1)


def send(client: Client, container: str, name: str, session: str = "") -> int:
    """Send one signal; 0 when something got it, 1 when nothing is left, else what the engine made of the attempt."""
    import docker.errors

    try:
        exec_id = client.exec_create(container, ["/bin/sh", "-c", _SCRIPT, "sh", name, session], user="0")["Id"]
        client.exec_start(exec_id)
        code = int(client.exec_inspect(exec_id)["ExitCode"] or 0)  # null: not known yet, so something may have got it
    except docker.errors.APIError as error:  # the container ended meanwhile
        _LOG.debug("no %s for %s: %s", name, container, said(error))
        return _NOTHING_LEFT
    if code in (126, 127):  # other codes: the attempt itself was killed with the container
        _LOG.warning("%s cannot be sent inside container %s (no /bin/sh?): it will be killed", name, container[:12])
    return code
