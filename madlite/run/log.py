"""A run's output on its way: secrets masked, written byte for byte to run.log, then handed on."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from madlite.secrets import Redactor

Sink = Callable[[bytes, int], None]
_log = logging.getLogger(__name__)


class RunLog:
    """Writes one run's log; `sinks` get every masked chunk with its stream, 1 for stdout and 2 for stderr.

    `follow` gets each chunk as it came, for a secret can be part of a number: what it makes of it is masked later.
    """

    def __init__(
        self,
        path: Path,
        legacy: Iterable[Path],
        secrets: Iterable[str],
        sinks: Iterable[Sink],
        follow: Sink = lambda chunk, stream: None,
    ) -> None:
        self.problem = ""
        self._path = path
        self._at_line_start = True
        self._sinks = tuple(sinks)
        self._follow = follow
        secrets = tuple(secrets)
        self._redactors = {1: Redactor(secrets), 2: Redactor(secrets)}
        self._fds: list[int] = []
        try:
            self._fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
        except OSError as error:  # a disk without inodes, a folder that is shut: what is to be logged goes on
            self._lack(f"no {path.name}", error)
        for name in legacy:
            self.link(name)

    def feed(self, chunk: bytes, stream: int) -> None:
        """Take output of the workload; never raises for a full disk, the workload goes on."""
        self._follow(chunk, stream)
        self._pass_on(self._redactors[stream].feed(chunk), stream)

    def say(self, text: str) -> None:
        """Add a line of madlite's own, e.g. of an image build."""
        masked = self._redactors[1].text(text.rstrip("\n") + "\n").encode("utf-8", "surrogateescape")
        self._write(masked if self._at_line_start else b"\n" + masked)

    def keep_as(self, path: Path) -> None:
        """Leave a copy of what has been said so far, e.g. of an image's build."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.unlink(missing_ok=True)  # a link of that name would be written through
            with self._path.open("rb") as said, beside.open("xb") as copy:
                shutil.copyfileobj(said, copy)
            beside.replace(path)
        except OSError as error:
            _give_up(beside, path, error)

    def split(self, path: Path) -> None:
        """Write from now on to a second file too, one that has not what was said before."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.unlink(missing_ok=True)
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._fds.append(fd)
            beside.replace(path)
        except OSError as error:
            _give_up(beside, path, error)

    def settle(self) -> None:
        """Pass on what is held back; call it when an action ends."""
        for stream, redactor in self._redactors.items():
            self._pass_on(redactor.flush(), stream)

    def close(self) -> None:
        """Write what is held and close the file."""
        self.settle()
        for fd in self._fds:
            os.close(fd)

    def _pass_on(self, data: bytes, stream: int) -> None:
        if not data:
            return
        self._write(data)
        for sink in self._sinks:
            sink(data, stream)

    def _write(self, data: bytes) -> None:
        self._at_line_start = data.endswith(b"\n")
        try:
            for fd in self._fds:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
        except OSError as error:
            self._lack("the log is incomplete", error)

    def _lack(self, what: str, error: OSError) -> None:
        """Note once that the log has not all of it."""
        if not self.problem:
            self.problem = f"{what}: {error.strerror}"
            _log.warning("%s", self.problem)

    def link(self, legacy: Path) -> None:
        """Give the log its legacy name too; the last run that starts has it."""
        beside = legacy.with_name(f".{legacy.name}.{os.getpid()}")
        try:
            beside.unlink(missing_ok=True)
            try:
                os.link(self._path, beside)
            except FileNotFoundError:  # there is no log to name
                raise
            except OSError:  # a file system without hard links
                beside.symlink_to(self._path)
            beside.replace(legacy)
        except OSError as error:
            _give_up(beside, legacy, error)


def _give_up(beside: Path, path: Path, error: OSError) -> None:
    """Do without a further name of the log, and leave nothing half made."""
    _log.warning("no %s: %s", path.name, error.strerror)
    with suppress(OSError):
        beside.unlink(missing_ok=True)
