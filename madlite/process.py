"""The only door to subprocesses: argv lists, or calls that may never end; a time limit, and no process left behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeVar, cast

from madlite.model import Completed, Value

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_Answer = TypeVar("_Answer")

_POLL_S = 0.1  # between two questions whether a command is called off, or prints without an end
_LIMIT_BYTES = 64 << 20  # what a short command may print


class Finished(Value, frozen=True):
    """How a short command ended; `timed_out` when its limit was what ended it."""

    code: int
    stdout: str
    stderr: str
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.code == 0 and not self.timed_out


def capture(
    argv: Sequence[str], *, limit_s: float, env: Mapping[str, str] | None = None, cancelled: Event | None = None
) -> Finished:
    """Run a short command and return its output as text; past `limit_s` its whole process group is killed.

    So it is soon after `cancelled` is set by another thread, or where it prints without an end.  A command that cannot
    be started is exit code 127 with the reason on stderr, as a shell would say it.
    """
    try:
        done = complete(argv, limit_s=limit_s, env=env, cancelled=cancelled, limit_bytes=_LIMIT_BYTES)
    except OSError as error:
        return Finished(code=127, stdout="", stderr=str(error))
    code = -signal.SIGKILL if done.code is None else done.code
    return Finished(code=code, stdout=_text(done.stdout), stderr=_text(done.stderr), timed_out=done.code is None)


def complete(
    argv: Sequence[str],
    *,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    cancelled: Event | None = None,
    limit_bytes: int,
) -> Completed:
    """Run a short command and return its output as bytes, at most `limit_bytes` of each stream.

    Past `limit_s`, once `cancelled` is set, or where it prints more, its whole process group is killed.

    Raises:
        OSError: it cannot be started.
    """
    started = start(argv, env=env, cwd=cwd)
    try:
        out, err = _communicate(started, limit_s, cancelled, limit_bytes)
        return Completed(code=started.returncode, stdout=out[:limit_bytes], stderr=err[:limit_bytes])
    except subprocess.TimeoutExpired as running:
        too_much = _is_too_much(running, limit_bytes)
        kill_group(started.pid, signal.SIGKILL)
        out, err = _drain(started)
        notice = f"\nended: it printed more than {limit_bytes >> 20} MiB".encode() if too_much else b""
        code = (started.returncode or 0) if too_much else None
        return Completed(code=code, stdout=out[:limit_bytes], stderr=err[:limit_bytes] + notice)
    except BaseException:
        kill_group(started.pid, signal.SIGKILL)
        raise


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command as the leader of its own process group, without standard input where none is given.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def kill_group(leader: int, number: int) -> bool:
    """Send a signal to a process group we started; False when nothing of it is left."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _communicate(
    started: subprocess.Popen[bytes], limit_s: float, cancelled: Event | None, limit_bytes: int
) -> tuple[bytes, bytes]:
    """Wait for the end of a command, in turns: somebody may call it off, or it may print too much."""
    deadline = time.monotonic() + limit_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            return started.communicate(timeout=max(0.0, min(_POLL_S, left_s)))
        except subprocess.TimeoutExpired as running:
            called_off = cancelled is not None and cancelled.is_set()
            if called_off or left_s <= _POLL_S or _is_too_much(running, limit_bytes):
                raise


def _is_too_much(running: subprocess.TimeoutExpired, limit_bytes: int) -> bool:
    return len(running.stdout or b"") + len(running.stderr or b"") > limit_bytes


def _drain(started: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    try:  # a child in another session can keep the pipe open after the group is dead
        return started.communicate(timeout=1)
    except subprocess.TimeoutExpired as still_open:
        for pipe in filter(None, (started.stdout, started.stderr)):
            pipe.close()
        return still_open.stdout or b"", still_open.stderr or b""


def call_within(limit_s: float, call: Callable[[], _Answer]) -> _Answer:
    """Return what a call returns that may never end: it is made in a process of its own, killed at the limit.

    What it returns or raises is pickled; whatever else it changes stays there.

    Raises:
        TimeoutError: it took longer.
        ChildProcessError: the process ended without an answer.
    """
    from multiprocessing import get_context

    fork = get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(theirs, call, limit_s), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            raise TimeoutError(f"it took longer than {limit_s:.0f} s")
        answer, error = ours.recv()
    except EOFError:
        raise ChildProcessError("its process ended without an answer") from None
    finally:
        child.kill()
        child.join()
        ours.close()
    if error is not None:
        raise error
    return cast("_Answer", answer)


def _answer(pipe: Connection, call: Callable[[], object], limit_s: float) -> None:
    """Send what a call returns or raises; a signal ends it at once, and the limit of its CPU where nobody waits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    own = int(limit_s) + int(time.process_time()) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (own if hard < 0 else min(own, hard), hard))
    try:
        answer: tuple[object, Exception | None] = call(), None
    except Exception as error:  # noqa: BLE001 - the caller gets it
        answer = None, error
    pipe.send(answer)


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")
