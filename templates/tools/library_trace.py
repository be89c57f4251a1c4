"""Run a command with the logging of GPU libraries switched on, and count what they were asked to do.

    library_trace.py COMMAND [ARGUMENT ...]

ROCBLAS_TRACE, HIPBLASLT_TRACE, MIOPEN_TRACE, TENSILE_TRACE and RCCL_TRACE say which; `library_trace.csv` in the working
folder gets a line per library and configuration, over all ranks.  Output, exit code (128 + n after signal n) and
signals are the command's.  A library that can log to a file logs into a pipe that is read here, so that neither disk
nor log fills up; MIOpen and Tensile print among the command's output, which is read on its way.
"""

from __future__ import annotations

import csv
import os
import select
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from library_calls import LIBRARIES, Form, Library, find_call

OUTPUT = Path("library_trace.csv")
FIELDS = ("jobid", "created_date", "model", "library", "config", "calls")
INSIDE = "MADLITE_LIBRARY_TRACE"  # set for the command, so that a second tracer in front of it has nothing to do
READ_BYTES = 1 << 16
LONGEST_LINE = 1 << 20  # more than this without a line's end is no log
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    if not argv:
        say("usage: library_trace.py COMMAND [ARGUMENT ...]")
        return 2
    asked = [library for name, library in LIBRARIES.items() if os.environ.get(name, "") not in ("", "0")]
    log = None if INSIDE in os.environ or not asked else make_pipe()
    counts: Counter[tuple[str, str]] = Counter()
    try:
        if log is None:
            os.execvp(argv[0], argv)  # noqa: S606
        code = trace(argv, asked, log, counts)
    except OSError as error:
        say(f"{argv[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126
    finally:
        if log is not None:
            shutil.rmtree(log.parent, ignore_errors=True)
    write_csv(counts)
    return code


def make_pipe() -> Path | None:
    """Return a new named pipe in a folder of its own, None where there can be none."""
    try:
        log = Path(tempfile.mkdtemp(prefix="library_trace."), "log")
        os.mkfifo(log)
    except OSError as error:
        say(f"nothing is traced: {error}")
        return None
    return log


def trace(argv: list[str], asked: list[Library], log: Path, counts: Counter[tuple[str, str]]) -> int:
    """Run the command, its libraries logging into `log`, and return the exit code.

    Raises:
        OSError: it cannot be started.
    """
    twin, bell = Twin(), listen()
    printed = [form for library in asked if not library.has_file for form in library.forms]
    logged = [form for library in asked if library.has_file for form in library.forms]
    # open for both: it needs no writer to be opened, and does not end with the first one
    taps = [Tap(os.open(log, os.O_RDWR | os.O_NONBLOCK), 2, logged, counts, passes_calls=False)]
    process, pipes = start(argv, asked, log, taken=bool(printed))
    taps += [Tap(pipe, sink, printed, counts) for sink, pipe in pipes.items()]
    follow(process, taps, bell, twin)
    twin.end()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def listen() -> int:
    """Return a descriptor that can be read when a signal has come: its number, or one that a child has ended."""
    bell, ring = os.pipe()
    os.set_blocking(bell, False)
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *PASSED_ON):
        if signal.getsignal(number) != signal.SIG_IGN:  # what the caller ignores, the command ignores too
            signal.signal(number, lambda *_: None)
    return bell


def start(
    argv: list[str], asked: list[Library], log: Path, *, taken: bool
) -> tuple[subprocess.Popen[bytes], dict[int, int]]:
    """Start the command; where its output is `taken`, return for our outputs the pipes that it comes through."""
    hidden = {name for library in asked for name in library.hidden_by}
    env = {name: text for name, text in os.environ.items() if name not in hidden}
    for library in asked:
        env.update({name: text.format(log=log) for name, text in library.settings.items()})
    ends = {1: os.pipe()} if taken else {}
    if taken and not os.path.sameopenfile(1, 2):  # one pipe for both keeps their order
        ends[2] = os.pipe()
    out = ends[1][1] if taken else None
    err = ends[2][1] if 2 in ends else out
    process = subprocess.Popen(argv, env={**env, INSIDE: "1"}, stdout=out, stderr=err)
    for _, theirs in ends.values():
        os.close(theirs)
    return process, {sink: ours for sink, (ours, _) in ends.items()}


def follow(process: subprocess.Popen[bytes], taps: list[Tap], bell: int, twin: Twin) -> None:
    """Pass output and signals on until the command has ended."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(bell, selectors.EVENT_READ)
        for tap in taps:
            waiting.register(tap.fd, selectors.EVENT_READ, tap)
        while process.poll() is None:
            for key, _ in waiting.select():
                if key.data is None:
                    pass_on(os.read(bell, READ_BYTES), process, twin)
                elif not key.data.pump():
                    waiting.unregister(key.fd)
                    key.data.close()
    for tap in taps:
        tap.drain()


def pass_on(numbers: bytes, process: subprocess.Popen[bytes], twin: Twin) -> None:
    """Send the command the signals that came to us alone."""
    for number in numbers:
        if number in PASSED_ON and not twin.has_got(number):
            process.send_signal(number)


class Twin:
    """A process of our group that keeps its signals pending: what it has got the whole group got, the command too.

    Without it, a signal to the group would reach the command twice, and a second Ctrl-C cuts its cleaning up short.
    """

    def __init__(self) -> None:
        end, self._lifeline = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._lifeline)
            os.read(end, 1)  # until we are gone
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(end)

    def has_got(self, number: int) -> bool:
        """Say whether the signal has come to the group."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        pending = next(line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:"))
        return bool(int(pending, 16) >> (number - 1) & 1)

    def end(self) -> None:
        """End the process."""
        os.close(self._lifeline)
        os.waitpid(self._pid, 0)


class Tap:
    """What comes out of a pipe: passed on, and searched line by line for calls."""

    def __init__(
        self, fd: int, sink: int, forms: list[Form], counts: Counter[tuple[str, str]], *, passes_calls: bool = True
    ) -> None:
        self.fd = fd
        self._sink = sink
        self._forms = forms
        self._counts = counts
        self._passes_calls = passes_calls  # otherwise only what is no call is passed on, such as a warning
        self._begun = b""
        self._open = True

    def pump(self) -> bool:
        """Take what is there; say whether more can come."""
        try:
            data = os.read(self.fd, READ_BYTES)
            if self._passes_calls:
                write_all(self._sink, data)
        except BlockingIOError:
            return True
        except BrokenPipeError:  # nobody reads our output any more: the command finds out as it would alone
            return False
        lines = (self._begun + data).split(b"\n")
        self._begun = lines.pop() if len(lines[-1]) < LONGEST_LINE else b""
        for line in lines:
            self._take(line + b"\n")
        return bool(data)

    def drain(self) -> None:
        """Take what is still there, without waiting for a process that holds the pipe open."""
        while self._open and select.select([self.fd], [], [], 0)[0]:
            if not self.pump():
                self.close()
        if self._begun:
            self._take(self._begun)

    def close(self) -> None:
        """Read no more."""
        self._open = False
        os.close(self.fd)

    def _take(self, line: bytes) -> None:
        library, config, calls = find_call(line.rstrip(b"\r\n"), self._forms)
        if calls:
            self._counts[library, config] += calls
        elif not self._passes_calls:
            with suppress(BrokenPipeError):
                write_all(self._sink, line)


def write_all(fd: int, data: bytes) -> None:
    """Write everything, however little is taken at a time."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody who shares the pipe set it so
            select.select([], [fd], [])


def write_csv(counts: Counter[tuple[str, str]]) -> None:
    """Write the result, each library's most frequent call first."""
    job, model = os.environ.get("JENKINS_BUILD_NUMBER", "0"), os.environ.get("MAD_MODEL_NAME", "")
    date = time.strftime("%Y-%m-%d %H:%M:%S")
    rows = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
    new = OUTPUT.with_name(f".{OUTPUT.name}.{os.getpid()}")
    try:
        with new.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(FIELDS)
            writer.writerows([job, date, model, library, config, calls] for (library, config), calls in rows)
        new.replace(OUTPUT)
    except OSError as error:
        say(f"{OUTPUT} cannot be written: {error.strerror}")


def say(text: str) -> None:
    """Say something on standard error."""
    sys.stderr.write(f"library_trace: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
