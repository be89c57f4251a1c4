"""The command `madlite` for tests, as a process of its own that starts at once.

Most of what a short command costs is the start of Python and the imports.  So each process of tests has one server,
which has imported madlite and forks for every command.  A command has a process id, a session, an environment, a
folder and streams of its own, is killed like any other, and does what `python -m madlite` does.  Where the environment
has what is read at the start or by an import, such as PYTHONPATH, a Python is started.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import pkgutil
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from tests import compiled_templates

ROOT = Path(__file__).parents[1]
LIMIT_S = 240.0
# MADLITE_TRACK is read by plugins when they are imported
_OF_THE_START = ("PYTHON", "LANG", "LC_", "LD_", "TZ", "COVERAGE_", "MALLOC_", "MADLITE_TRACK")
_NOT_OF_THE_START = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
_IMPORTED_LATE = ("docker", "psutil", "requests", "yaml")  # by some commands only
_SIZE_DIGITS = 12
_ONE_REQUEST = threading.Lock()  # some tests start commands in threads
Stream = int | IO[Any]


def run(
    words: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    before: Sequence[str] = (),
    limit_s: float = LIMIT_S,
    first: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return what it printed; before, first: see `start`."""
    started = start(words, cwd, env, before, stderr=subprocess.PIPE, first=first)
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
    first: Sequence[str] = (),
    constants: Mapping[str, float] | None = None,
) -> Started:
    """Start a command in a session of its own; unless told otherwise both of its outputs are in one pipe.

    before: a command that gets this one as its last arguments.
    first: a function of the tests (`tests.killing.kill_at`) and its arguments, called in the command's process.
    constants: what it has in place of constants of madlite, by their full names: pauses that tests need not wait for.
    """
    if not before and not _is_read_at_the_start(env):
        return Command(words, cwd, env, stdout, stderr, first, constants or {})
    assert not first and not constants, "only what is forked can be changed before it begins"
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


def _is_read_at_the_start(env: Mapping[str, str]) -> bool:
    """Return whether an environment has what Python reads when it starts, and the server has not."""
    names = [name for name in env if name.startswith(_OF_THE_START) and name not in _NOT_OF_THE_START]
    return any(os.environ.get(name) != env[name] for name in names)


class Command:
    """A command that was started, with the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        stdout: Stream,
        stderr: Stream,
        first: Sequence[str],
        constants: Mapping[str, float],
    ) -> None:
        self.args = ["madlite", *words]
        self.returncode: int | None = None
        mine, theirs = socket.socketpair()
        self._answers = mine.makefile("r")
        with ExitStack() as after, theirs, mine:
            nothing = os.open(os.devnull, os.O_RDWR)
            after.callback(os.close, nothing)
            self.stdout, out = _stream(stdout, nothing, after)
            self.stderr, err = (None, out) if stderr == subprocess.STDOUT else _stream(stderr, nothing, after)
            changed = {"first": [*first], "constants": {**constants}}
            request = {"words": [*words], "cwd": str(cwd), "env": {**env}, **changed}
            _ask(request, [nothing, out, err, theirs.fileno()])
        self.pid = int(self._answers.readline())

    def communicate(self, timeout: float = LIMIT_S) -> tuple[str, str]:
        """Wait for the end of the outputs and of the command, and return what it printed."""
        deadline = time.monotonic() + timeout
        printed = {"stdout": "", "stderr": ""}

        def read(name: str, stream: IO[str]) -> None:
            with stream:
                printed[name] = stream.read()

        streams = {"stdout": self.stdout, "stderr": self.stderr}
        readers = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in streams.items()
            if stream is not None and not stream.closed
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(max(0.1, deadline - time.monotonic()))
        return printed["stdout"], printed["stderr"]

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

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


Started = subprocess.Popen[str] | Command


def _stream(wanted: Stream, nothing: int, after: ExitStack) -> tuple[IO[str] | None, int]:
    """Return the end of a pipe to read, where one is wanted, and what the command is to write to."""
    if wanted == subprocess.PIPE:
        read, write = os.pipe()
        after.callback(os.close, write)
        return open(read, errors="replace"), write  # noqa: PTH123
    if wanted == subprocess.DEVNULL:
        return None, nothing
    return None, wanted if isinstance(wanted, int) else wanted.fileno()


def _ask(request: dict[str, Any], fds: list[int]) -> None:
    """Send a request to this process's server."""
    text = json.dumps(request).encode()
    with _ONE_REQUEST:
        socket.send_fds(_server(), [b"%*d" % (_SIZE_DIGITS, len(text))], fds)
        _server().sendall(text)


@cache
def _server() -> socket.socket:
    """Return the way to this process's server, which ends with it."""
    ours, theirs = socket.socketpair()
    with theirs:
        argv = [sys.executable, "-m", "tests.commands", str(theirs.fileno()), compiled_templates.folder]
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


LOOK_IN = "tests.commands.look_in"


def look_in(*folders: str) -> None:
    """Have this process find modules and installed plugins in these folders, as PYTHONPATH does where Python begins."""
    sys.path.extend(folders)


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
    for name, value in request["constants"].items():
        holder, _, constant = name.rpartition(".")
        assert isinstance(getattr(pkgutil.resolve_name(holder), constant), float), name
        setattr(pkgutil.resolve_name(holder), constant, value)
    if request["first"]:
        function, *arguments = request["first"]
        pkgutil.resolve_name(function)(*arguments)
    sys.path[0] = request["cwd"]
    words: list[str] = request["words"]
    return words


def _writer(fd: int, is_buffered: bool, errors: str) -> io.TextIOWrapper:
    """Return a standard stream as Python opens it."""
    raw = open(fd, "wb", buffering=-1 if is_buffered else 0, closefd=False)  # noqa: SIM115, PTH123
    is_line_buffered = fd == 2 or os.isatty(fd)
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=is_line_buffered, write_through=not is_buffered)


def find_plugins_once() -> None:
    """Keep what is asked of all packages, and the compiled patterns of plugins: a third of the time of a short run.

    A folder that was added to Python's path since, such as a command's own, counts where packages are installed in it.
    """
    known, real = {*sys.path}, importlib.metadata.entry_points

    @cache
    def found(path: tuple[str, ...], **asked: str) -> importlib.metadata.EntryPoints:
        return real(**asked)

    def entry_points(**asked: str) -> importlib.metadata.EntryPoints:
        return found(tuple(place for place in sys.path if place in known or any(Path(place).glob("*-info"))), **asked)

    importlib.metadata.entry_points = entry_points  # type: ignore[assignment]
    re._MAXCACHE = 10_000  # type: ignore[attr-defined]  # of which plugins have hundreds, again for each command


def import_all() -> None:
    """Import what commands import, and find the plugins as each of them does, so that none of them has to."""
    import madlite
    import madlite_plugins
    from madlite.backends.loader import load_plugins
    from madlite.backends.recipe_book import LazyBackend, cards_of_book, read_book
    from madlite.measure.rules import compile_rules, with_common

    for package in (madlite, madlite_plugins):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("madlite.testing") and not module.name.endswith("__main__"):
                import_module(module.name)
    for name in _IMPORTED_LATE:
        import_module(name)
    find_plugins_once()
    plugins = load_plugins()
    for backend, _ in plugins.backends().values():  # which compiles their patterns
        if isinstance(backend, LazyBackend):
            cards_of_book(backend.book), read_book(backend.book)
    compile_rules(with_common(plugins.failure_rules()))  # a third of a short run's time


def _main() -> None:
    import gc

    if sys.argv[2]:
        compiled_templates.keep_in(Path(sys.argv[2]))
    import_all()
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
