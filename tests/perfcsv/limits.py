"""Work in a child process whose limits, user or signals are not this one's."""

from __future__ import annotations

import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable

from madlite.errors import RecordError


def with_files_of_at_most(size_bytes: int, work: Callable[[], object]) -> str:
    """Call in a child whose files cannot grow beyond a size; return the message of what it was refused with, if any."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))
        work()

    return in_child(limited)


def in_child(work: Callable[[], object]) -> str:
    """Call in a child; return the message of its RecordError, "" without one.

    Raises:
        AssertionError: the child ended by a signal or by another exception, whose traceback it printed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _reported(work, writing)
        finally:  # whatever happens: never back into the parent's tests
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as stream:
        message = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    return message


def _reported(work: Callable[[], object], writing: int) -> int:
    try:
        work()
    except RecordError as error:
        os.write(writing, error.message.encode())
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0
