"""The command `madlite` for tests, as a process of its own that starts at once.

Most of what a short command costs is the start of Python and the imports.  So each process of tests has one server,
which has imported madlite and forks for every command.  A command has a process id, a session, an environment, a
folder and streams of its own, is killed like any other, and does what `python -m madlite` does.  Where the environment
has what Python reads when it starts, such as PYTHONPATH, a Python is started.
"""

from __future__ import annotations

import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
LIMIT_S = 240.0
_OF_THE_START = ("PYTHON", "LANG", "LC_", "LD_", "TZ", "COVERAGE_", "MALLOC_")
_NOT_OF_THE_START = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
_IMPORTED_LATE = ("docker", "psutil", "requests", "yaml")  # by some commands only
_SIZE_DIGITS = 12
Stream = int | IO[Any]


def run(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], before: Sequence[str] = (), limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return what it printed; with `before` as an argument of that command."""
    started = start(words, cwd, env, before, stderr=subprocess.PIPE)
    try:
        out, err = started.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        started.kill()
        raise
    code = started.returncode
    assert code is not None
    return subprocess.CompletedProcess(["madlite", *words], code, out, err)


def start(
    words: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    before: Sequence[str] = (),
    *,
    stdout: Stream = subprocess.PIPE,
    stderr: Stream = subprocess.STDOUT,
) -> Started:
    """Start a command in a session of its own; unless told otherwise both of its outputs are in one pipe."""
    if not before and _of_the_start(env) == _of_the_start(os.environ):
        return Command(words, cwd, env, stdout, stderr)
    return subprocess.Popen(
        [*before, sys.executable, "-m", "madlite", *words],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _of_the_start(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in env.items() if name.startswith(_OF_THE_START) and name not in _NOT_OF_THE_START
    }


class Command:
    """A command that was started, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, words: Sequence[str], cwd: Path, env: Mapping[str, str], stdout: Stream, stderr: Stream) -> None:
        self.args = ["madlite", *words]
        self.returncode: int | None = None
        self._pipes: dict[str, int] = {}
        request = json.dumps({"words": [*words], "cwd": str(cwd), "env": {**env}}).encode()
        mine, theirs = socket.socketpair()
        self._answers = mine.makefile("r")
        with ExitStack() as after, theirs, mine:
            nothing = os.open(os.devnull, os.O_RDWR)
            after.callback(os.close, nothing)
            out = self._stream("stdout", stdout, nothing, after)
            err = out if stderr == subprocess.STDOUT else self._stream("stderr", stderr, nothing, after)
            server = _server()
            header = b"%*d" % (_SIZE_DIGITS, len(request))
            socket.send_fds(server, [header], [nothing, out, err, theirs.fileno()])
            server.sendall(request)
        self.pid = int(self._answers.readline())

    def _stream(self, name: str, wanted: Stream, nothing: int, after: ExitStack) -> int:
        if wanted == subprocess.PIPE:
            self._pipes[name], write = os.pipe()
            after.callback(os.close, write)
            return write
        if wanted == subprocess.DEVNULL:
            return nothing
        return wanted if isinstance(wanted, int) else wanted.fileno()

    def communicate(self, timeout: float = LIMIT_S) -> tuple[str, str]:
        """Wait for the end of the outputs and of the command, and return what it printed."""
        deadline = time.monotonic() + timeout
        read = {name: bytearray() for name in ("stdout", "stderr")}
        with selectors.DefaultSelector() as selector:
            for name, fd in self._pipes.items():
                selector.register(fd, selectors.EVENT_READ, name)
            while selector.get_map():
                if not (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                    raise subprocess.TimeoutExpired(self.args, timeout)
                for key, _ in ready:
                    if some := os.read(key.fd, 1 << 16):
                        read[key.data] += some
                    else:
                        selector.unregister(key.fd)
        self.wait(max(0.1, deadline - time.monotonic()))
        for name in [*self._pipes]:
            os.close(self._pipes.pop(name))
        out, err = (_text(bytes(read[name])) for name in ("stdout", "stderr"))
        return out, err

    def wait(self, timeout: float = LIMIT_S) -> int:
        """Wait for the end of the command, and return its exit code, below 0 for a signal."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._answers, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._answers.readline())
            self._answers.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, None of a command that runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        for fd in self._pipes.values():
            os.close(fd)


Started = subprocess.Popen[str] | Command


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")  # as Popen's text mode has it


@cache
def _server() -> socket.socket:
    """Return the way to this process's server, which ends with it."""
    ours, theirs = socket.socketpair()
    with theirs:
        argv = [sys.executable, "-m", "tests.commands", str(theirs.fileno())]
        subprocess.Popen(argv, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
    return ours


# The server: what follows runs in its process and in those that it forks.


def _serve(requests: socket.socket) -> Sequence[str]:
    """Fork for every request; return its words in the process that is to do it."""
    while True:
        header, fds, _, _ = socket.recv_fds(requests, _SIZE_DIGITS, 4)
        if not header:
            sys.exit()
        request = json.loads(_exactly(requests, int(header)))
        if not os.fork():
            return _attend(request, requests, *fds)
        for fd in fds:
            os.close(fd)
        with suppress(ChildProcessError):  # those who attended commands that have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _exactly(requests: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        read += requests.recv(size - len(read))
    return read


def _attend(
    request: dict[str, Any], requests: socket.socket, stdin: int, stdout: int, stderr: int, answers: int
) -> Sequence[str]:
    """Report the id and the end of a command; return in its own process, which has become like a Python that began."""
    requests.close()
    if pid := os.fork():
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        with socket.socket(fileno=answers) as asked, suppress(OSError):  # nobody may want to know any more
            asked.sendall(b"%d\n" % pid)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            asked.sendall(b"%d\n" % code)
        os._exit(0)
    os.close(answers)
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for fd, given in enumerate((stdin, stdout, stderr)):
        os.dup2(given, fd)
    for given in {stdin, stdout, stderr} - {0, 1, 2}:
        os.close(given)
    is_buffered = not os.environ.get("PYTHONUNBUFFERED")
    sys.stdout = _writer(1, is_buffered, "strict")
    sys.stderr = _writer(2, is_buffered, "backslashreplace")
    sys.path[0] = request["cwd"]
    words: list[str] = request["words"]
    return words


def _writer(fd: int, is_buffered: bool, errors: str) -> io.TextIOWrapper:
    """Return a standard stream as Python opens it."""
    raw = open(fd, "wb", buffering=-1 if is_buffered else 0, closefd=False)  # noqa: SIM115, PTH123
    is_line_buffered = fd == 2 or os.isatty(fd)
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=is_line_buffered, write_through=not is_buffered)


def _import_all() -> None:
    """Import what commands import, so that none of them has to; nothing of it is called."""
    import madlite
    import madlite_plugins

    for package in (madlite, madlite_plugins):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("madlite.testing") and not module.name.endswith("__main__"):
                import_module(module.name)
    for name in _IMPORTED_LATE:
        import_module(name)


def _main() -> None:
    import gc

    _import_all()
    os.fsync = lambda fd: None  # as in the tests' own process: bytes are left to the system's own time
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        words = _serve(requests)
    from madlite.__main__ import __file__ as program
    from madlite.cli.main import entry

    sys.argv = [program, *words]
    entry()


if __name__ == "__main__":
    _main()
