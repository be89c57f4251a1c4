"""A run's processes on this machine, one action after the other."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from madlite.errors import RuntimeProblem
from madlite.process import kill_group, start
from madlite.run.collect import copy_matching
from madlite.run.host_processes import end_processes, marked_processes, with_children
from madlite.run.turn import STOPPED, Turn
from madlite.secrets import reveal
from madlite.types import Action, Cause, Exit

if TYPE_CHECKING:
    import psutil

READ_BYTES = 1 << 18
POLL_S = 0.1
DRAIN_QUIET_S = 2.0  # after the process ended: no output this long, and a child that holds the pipe is left alone
DRAIN_LIMIT_S = 10.0
RETURN_LIMIT_S = 5.0


class HostSession:
    """Runs actions as process groups; every process carries the run's mark in its environment."""

    def __init__(self, run_id: str, workspace: Path, folder: Path, env: Mapping[str, str], grace_s: float) -> None:
        self.handle = run_id
        self._workspace = workspace
        self._folder = folder
        self._env = env
        self._grace_s = grace_s
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = Turn()

    def run(self, action: Action, out: Callable[[bytes, int], None]) -> Exit:
        """Run the action to its end; `out` gets its output as it comes, with 1 for stdout and 2 for stderr.

        Raises:
            RuntimeProblem: the command cannot be started.
        """
        begun = time.monotonic()
        with self._turn.take(action.timeout_s, partial(self._stop, self._grace_s)) as expired:
            code = STOPPED if self._turn.closed.is_set() else self._run(action, out)
        return Exit(code=code, duration_s=time.monotonic() - begun, timed_out=expired.is_set())

    def stop(self, grace_s: float) -> None:
        """End the running action: INT, `grace_s`, TERM, `grace_s`, KILL; nothing starts here any more.

        Safe from another thread.  Without a grace it also hurries a stop that is under way.
        """
        self._turn.closed.set()
        self._stop(grace_s)

    def collect(self, patterns: Sequence[str], into: Path) -> None:
        """Copy the files of the workspace that match into the folder `into`."""
        copy_matching(self._workspace, patterns, into)

    def close(self) -> None:
        """End every process of the run."""
        self._end(self._grace_s)

    def _stop(self, grace_s: float) -> None:
        with self._turn.ending(grace_s):
            if not self._turn.end_until_over(partial(self._end, grace_s), RETURN_LIMIT_S):
                self._turn.given_up.set()

    def _run(self, action: Action, out: Callable[[bytes, int], None]) -> int:
        process = self._start(action)
        try:
            self._pump(process, out)
        finally:
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()
        return self._exit_code(process)

    def _start(self, action: Action) -> subprocess.Popen[bytes]:
        cwd = self._workspace / action.cwd.replace("{folder}", str(self._folder))
        try:
            self._process = start(action.argv, env={**self._env, **reveal(action.env)}, cwd=cwd)
        except OSError as error:
            place = f"folder {cwd}" if not cwd.is_dir() else f"command '{action.argv[0]}'"
            raise RuntimeProblem(
                f"the {action.kind} action cannot be started: {place}: {error.strerror}", cause=Cause.PREPARE
            ) from error
        except ValueError as error:  # what no process can be given: a NUL, half a character, a name with "="
            raise RuntimeProblem(
                f"the {action.kind} action cannot be started: {_unfit(action.argv, self._env) or error}",
                cause=Cause.PREPARE,
            ) from error
        return self._process

    def _pump(self, process: subprocess.Popen[bytes], out: Callable[[bytes, int], None]) -> None:
        """Pass the output on until both pipes end; a child that outlives the process cannot hold them for ever."""
        last_s, ended_s = time.monotonic(), 0.0
        with selectors.DefaultSelector() as pipes:
            for pipe, stream in ((process.stdout, 1), (process.stderr, 2)):
                pipes.register(pipe or -1, selectors.EVENT_READ, stream)
            while pipes.get_map() and not self._turn.given_up.is_set():
                ready = pipes.select(POLL_S)
                for key, _ in ready:
                    if data := os.read(key.fd, READ_BYTES):
                        out(data, key.data)
                    else:
                        pipes.unregister(key.fileobj)
                now_s = time.monotonic()
                last_s = now_s if ready else last_s
                if process.poll() is not None:
                    ended_s = ended_s or now_s
                    if now_s - max(last_s, ended_s) > DRAIN_QUIET_S or now_s - ended_s > DRAIN_LIMIT_S:
                        return

    def _exit_code(self, process: subprocess.Popen[bytes]) -> int:
        while not self._turn.given_up.is_set():
            try:
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:  # it closed its output and works on
                continue
        return -signal.SIGKILL

    def _end(self, grace_s: float) -> None:
        """INT to the process group, TERM and KILL to everything of the run, wherever it went."""
        process = self._process
        family = with_children([process.pid]) if process is not None and process.poll() is None else []
        if process is not None and family:
            kill_group(process.pid, signal.SIGINT)
            self._wait_ended(process, grace_s)

        def left() -> list[psutil.Process]:
            return list({*family, *marked_processes(self.handle)})

        end_processes(left, grace_s, (signal.SIGTERM, signal.SIGKILL), self._turn.hurried)
        if process is not None:
            process.poll()

    def _wait_ended(self, process: subprocess.Popen[bytes], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while process.poll() is None and time.monotonic() < deadline and not self._turn.hurried.is_set():
            time.sleep(POLL_S)


def _unfit(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Name what of a command or its environment cannot be passed on; never a variable's value."""
    if any("\0" in word for word in argv):
        return "its command holds a NUL character"
    names = [name for name, value in env.items() if "=" in name or "\0" in name + value]
    return f"variable {names[0]!r} has a name with '=' or holds a NUL character" if names else ""
