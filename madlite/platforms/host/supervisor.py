"""Stands between madlite and one command of a run: whatever the command starts stays below this process.

A program of its own, without anything of madlite, so that it is there in no time:

    python -I -S host_supervisor.py REPORT RUN < REQUEST

REQUEST has the folder, the command's words and its environment, by `marshal`, which costs no import.  To the descriptor
REPORT goes `pid N`, then `begun 0` or `error ERRNO`, and later `exit CODE`, negative for a signal.  The end of standard
input shows that the exit code was read or that nobody is left to read it; only then does the command's number become
free.  RUN is for people who list processes.

As a subreaper (prctl(2)) it becomes the parent of all that would be init's: of daemons, and of what left its session
with an empty environment.  It lives as long as they do, also without madlite, and so they can be found.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # all that `signal` adds is enum, which takes half the time
import ctypes
import errno
import marshal
import os
import sys

PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 127


def main(report: int) -> None:
    """Start the command, tell how it ended, and wait for all that it left."""
    os.set_inheritable(report, False)
    try:
        with open(0, "rb", closefd=False) as given:
            folder, argv, env = marshal.load(given)  # noqa: S302 - madlite's own
    except EOFError:  # madlite ended before it had said all
        return
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # what ends the run is not to end this
    command, problem = start(report, folder, argv, env, mask)
    let_go_of_output()
    send(report, f"error {problem}" if problem else "begun 0")
    while (ended := wait_for_one()) is not None:
        if ended.si_pid == command:
            exited = ended.si_code == os.CLD_EXITED
            send(report, f"exit {ended.si_status if exited else -ended.si_status}")
            while os.read(0, 1):
                pass
        os.waitpid(ended.si_pid, 0)


def start(report: int, folder: bytes, argv: list[bytes], env: dict[bytes, bytes], mask: set[int]) -> tuple[int, int]:
    """Return the number of the started command and 0, or any number and why it could not be started."""
    failed, failing = os.pipe()
    try:
        command = os.fork()
    except OSError as error:
        return 0, error.errno or errno.EAGAIN
    if command == 0:
        send(report, f"pid {os.getpid()}")  # itself: the command may kill its supervisor as the first thing it does
        try:
            become(folder, argv, env, mask)
        except (OSError, ValueError) as error:
            os.write(failing, b"%d" % (getattr(error, "errno", None) or errno.EINVAL))
        finally:
            os._exit(CANNOT_START)
    os.close(failing)
    problem = int(os.read(failed, 16) or 0)  # nothing is in it once the command has taken the place of Python
    os.close(failed)
    return command, problem


def become(folder: bytes, argv: list[bytes], env: dict[bytes, bytes], mask: set[int]) -> None:
    """Become the command, as the leader of its own session, without standard input.

    Raises:
        OSError: it cannot be started.
    """
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.execvpe(argv[0], argv, env)  # noqa: S606


def let_go_of_output() -> None:
    """Leave the pipes of the output to the command alone: they end when it lets go of them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):
        os.dup2(nowhere, fd)


def send(report: int, word: str) -> None:
    """Tell madlite, if it is still there."""
    try:
        os.write(report, f"{word}\n".encode())
    except OSError:
        return  # nobody needs to know


def wait_for_one() -> os.waitid_result | None:
    """Return which child ended, and leave its number taken; None where there is no child any more."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
