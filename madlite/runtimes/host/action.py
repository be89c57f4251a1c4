"""One command of a run on this machine, below a supervisor that keeps together whatever it starts."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from madlite import process
from madlite.runtimes.host import supervisor as host_supervisor
from madlite.runtimes.process_table import Process, descendants

_PYTHON = "/proc/self/exe"  # where it does not know its own place
_KILLED_S = 5.0  # for a process to be gone after KILL


class HostAction:
    """A command as `subprocess.Popen` has it; at first there is its supervisor alone, and waits for it.

    `pid` is the leader of the command's own session and process group.  Its number stays taken until its exit code was
    read, so that a signal cannot reach another.
    """

    def __init__(self, environ: Mapping[str, str], run: str) -> None:
        """Start a supervisor with the environment `environ`; `run` is what people see of it.

        Raises:
            OSError: it cannot be started.
        """
        report, tell = os.pipe()
        program = [sys.executable or _PYTHON, "-I", "-S", host_supervisor.__file__, str(tell), run]
        try:
            started = process.start(program, env=environ, cwd=Path("/"), stdin=subprocess.PIPE, pass_fds=(tell,))
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(tell)
        self.pid = 0
        self.is_lost = False  # the supervisor was killed: what it kept together is so no more
        self.stdout, self.stderr = started.stdout, started.stderr
        self._supervisor = started
        self._report = os.fdopen(report, "rb", buffering=0)
        self._code: int | None = None
        self._one = threading.Lock()

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        """Start the command as the leader of its own session, without standard input and with no environment but `env`.

        Raises:
            OSError: it cannot be started.
            ValueError: the command, its folder or its environment is nothing that a process can be given.
        """
        request = _request(argv, env, cwd)
        if self._supervisor.stdin is not None:
            with suppress(BrokenPipeError):  # told below
                self._supervisor.stdin.write(b"%d\n%s" % (len(request), request))
                self._supervisor.stdin.flush()
        word, number = self._hear()
        if word == "pid":
            self.pid = number
            word, number = self._hear()  # nothing where the command has killed its supervisor by now
        if word == "error":
            raise OSError(number, os.strerror(number))
        if not self.pid:
            raise OSError(0, "the process that is to watch over it ended at once")

    def is_waiting(self) -> bool:
        """Say whether the supervisor is there and has started nothing yet."""
        return not self.pid and self._supervisor.poll() is None

    def poll(self) -> int | None:
        """Return the exit code, negative for the signal that ended the command; None as long as it goes on."""
        return self.wait(0.0)

    def wait(self, limit_s: float) -> int | None:
        """Return the exit code once the command has ended; None where it goes on for `limit_s`."""
        if self._code is None and self._is_heard(limit_s):
            with self._one:
                if self._code is None:
                    self._code = self._exit_code()
        return self._code

    def interrupt(self) -> bool:
        """Send INT to the command's process group, as a terminal would; False where the command has ended."""
        with self._one:
            return self._code is None and process.kill_group(self.pid, signal.SIGINT)

    def left(self) -> list[Process]:
        """Return what the command started and is still there, itself included, wherever it went."""
        return descendants(self._supervisor.pid) if self._supervisor.poll() is None else []

    def discard(self) -> None:
        """End a supervisor that has nothing below it."""
        self._supervisor.kill()
        self.close(_KILLED_S)

    def close(self, limit_s: float) -> int | None:
        """Let go of the command; return the supervisor's number where that goes on for `limit_s`, for what is left."""
        with self._one:
            self._code = -signal.SIGKILL if self._code is None else self._code
            self._let_go()
        for pipe in filter(None, (self.stdout, self.stderr, self._report)):
            pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(limit_s)
            return None
        return self._supervisor.pid

    def _exit_code(self) -> int:
        word, number = self._hear()
        self._let_go()
        self.is_lost = word != "exit"
        return -signal.SIGKILL if self.is_lost else number

    def _is_heard(self, limit_s: float) -> bool:
        said = select.poll()  # one for each thread that asks
        said.register(self._report, select.POLLIN)
        return bool(said.poll(int(limit_s * 1000)))

    def _hear(self) -> tuple[str, int]:
        """Return what the supervisor says next, nothing where it has ended."""
        word, _, number = self._report.readline().decode().partition(" ")
        return word, int(number or 0)

    def _let_go(self) -> None:
        """Tell the supervisor that nobody signals the command any more."""
        if self._supervisor.stdin is not None:
            with suppress(OSError):
                self._supervisor.stdin.close()


def _request(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> bytes:
    """Return what the supervisor is to start, as it reads it."""
    if why := _unfit(argv, env):
        raise ValueError(why)
    words = [str(len(argv)), str(cwd), *argv, *(f"{name}={value}" for name, value in env.items())]
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _unfit(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Name what of a command or its environment cannot be passed on; never a variable's value."""
    if any("\0" in word for word in argv):
        return "its command holds a NUL character"
    names = [name for name, value in env.items() if "=" in name or "\0" in name + value]
    return f"variable {names[0]!r} has a name with '=' or holds a NUL character" if names else ""
