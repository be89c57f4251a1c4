"""The log of one pod from its beginning to its end, each byte once, across connections that break.

Kubernetes puts a time before each line on request.  After a break the log is asked for from the last line's second on
(the API counts in seconds), and the lines that came before are left out by their times: those of a log never go back.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from typing import Any

from madlite.model import Value

_TRIES = 100  # to read the log of a pod that has ended, a second and more apart, where the cluster is busy
_TOLD = 25  # of these count where it says that the log cannot be read
_BUSY = (429, 502, 503, 504)
_TIMED = re.compile(rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) ", re.ASCII)
_FRACTION = re.compile(r"(?:\.(?P<part>\d+))?(?P<zone>Z|[+-]\d\d:\d\d)$")


class LogPosition:
    """How far a log was read: the time of the last line, and how many lines had it."""

    def __init__(self) -> None:
        self.count = 0  # lines that were taken
        self.is_cut = False  # whether the end of the log could not be read
        self._time = ""  # the last whole line's, as the log has it
        self._same = 0
        self._again = 0  # lines of that time that are still to come a second time

    @property
    def since(self) -> str:
        """What to ask the API for: the last line's time without its fraction; "" from the beginning."""
        return _FRACTION.sub(lambda found: found["zone"], self._time) if self._time else ""

    @property
    def seconds(self) -> float | None:
        """The time of the last whole line in seconds since 1970; None before the first."""
        if not self._time:
            return None
        text, part = _key(self._time)
        zone = _FRACTION.search(self._time)
        offset = zone["zone"].replace("Z", "+00:00") if zone else "+00:00"
        return datetime.fromisoformat(f"{text}{offset}").timestamp() + float(f"0.{part or 0}")

    def reconnect(self) -> None:
        """Note that lines may come again from now on."""
        self._again = self._same

    def take(self, line: bytes) -> bytes | None:
        """Return a whole line without its time; None of one that came before."""
        found = _TIMED.match(line)
        if found is None:
            return line
        time = found["time"].decode()
        text = line[found.end() :]
        if self._time and self._again and _key(time) < _key(self._time):
            return None
        if self._time and _key(time) == _key(self._time):
            if self._again:
                self._again -= 1
                return None
            self._same += 1
        else:
            self._time, self._same = time, 1
        self._again = 0
        self.count += 1
        return text


def _key(time: str) -> tuple[str, str]:
    """Return a time of a log to compare: the fraction has as many digits as it needs."""
    found = _FRACTION.search(time)
    return (time[: found.start()], (found["part"] or "").ljust(9, "0")) if found else (time, "")


class Mark(Value, frozen=True):
    """A line of the pod's own script: `begin` and `end` of an action, or a `file` with its content."""

    kind: str
    number: int = -1
    code: int = 0
    name: str = ""
    data: bytes = b""


class MarkReader:
    """Tells the workload's output from the lines that `pod.sh` puts in between, after a line break each.

    Output that ends without one has one more.
    """

    def __init__(self, mark: str) -> None:
        self._begin = f"#madlite {mark} ".encode()
        self._held = b""  # an empty line that may belong to a mark
        self._file: tuple[str, list[bytes]] | None = None

    def feed(self, line: bytes) -> Iterator[bytes | Mark]:
        """Yield output and marks of one line."""
        if line.startswith(self._begin):
            self._held = b""
            yield from self._mark(line[len(self._begin) :].decode("utf-8", "replace").rstrip("\n"))
        elif self._file is not None:
            if line.strip():
                self._file[1].append(line)
        else:
            held, self._held = self._held, line if line == b"\n" else b""
            if held:
                yield held
            if not self._held:
                yield line

    def flush(self) -> bytes:
        """Return output that was held back, at the end of the log."""
        held, self._held = self._held, b""
        return held

    def _mark(self, text: str) -> Iterator[Mark]:
        kind, _, rest = text.partition(" ")
        if kind == "begin" and rest.isdigit():
            yield Mark(kind=kind, number=int(rest))
        elif kind == "end" and re.fullmatch(r"\d+ \d+", rest):
            number, code = map(int, rest.split())
            yield Mark(kind=kind, number=number, code=code)
        elif kind == "file":
            self._file = (rest, [])
        elif kind == "end-of-file" and self._file is not None:
            (name, lines), self._file = self._file, None
            try:
                yield Mark(kind="file", name=name, data=b64decode(b"".join(lines), validate=False))
            except Base64Error:
                return


def follow(
    open_log: Callable[[str], Any],
    is_over: Callable[[], bool],
    pause: Callable[[], None],
    position: LogPosition | None = None,
) -> Iterator[bytes]:
    """Yield the lines of a pod's log, each once; `open_log(since)` opens it, `is_over` says whether more can come.

    `pause` waits between two connections, and raises where nobody wants to go on.  `position` is where it is: at each
    line its time is that line's.  A cluster that does not answer is asked until it does; one that says of a pod that
    has ended that its log cannot be read, for its node is gone, say, a few times: then `position.is_cut` is true.
    """
    position, failed = position or LogPosition(), 0
    while failed < _TRIES:
        over = is_over()  # asked before the log is read: what it printed until then is in it
        before, rest = position.count, None
        try:
            rest = yield from _connection(open_log(position.since), position)
        except _broken() as problem:
            failed = 0 if position.count > before else failed + (over and _weight(problem))
            position.is_cut = over
        if over and rest is not None and position.count == before:  # read once more, and nothing was new: it is whole
            position.is_cut = False
            if rest and (text := position.take(rest)) is not None:
                yield text
            return
        if not over or rest is None:
            pause()


def _weight(problem: BaseException) -> int:
    """Return how much a failure to read the log of a pod that has ended counts; none where nobody answers."""
    status = getattr(problem, "status", None)
    if status is None:  # it was read, and nothing came
        return _TOLD
    return 1 if status in _BUSY else _TOLD if status else 0


def _connection(answer: Any, position: LogPosition) -> Generator[bytes, None, bytes]:
    """Yield the new lines that one connection brings, and return what came after the last line break."""
    position.reconnect()
    parts: list[bytes] = []  # of a line that goes on; one may be megabytes long
    for piece in answer.stream(1 << 16, decode_content=False):
        head, ended, tail = piece.partition(b"\n")
        parts.append(head)
        if not ended:
            continue
        *whole, last = tail.split(b"\n")
        for line in (b"".join(parts), *whole):
            if (text := position.take(line + b"\n")) is not None:
                yield text
        parts = [last]
    return b"".join(parts)


def _broken() -> tuple[type[BaseException], ...]:
    from urllib3.exceptions import HTTPError

    from madlite.platforms.kubernetes.api import Refusal

    return (HTTPError, OSError, Refusal)
