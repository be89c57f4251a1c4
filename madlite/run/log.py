"""A run's output on its way: secrets masked, written byte for byte to run.log, then handed on."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from madlite.run.log_file import LogFile
from madlite.safe_files import Folder, folder_of
from madlite.secrets import Redactor

Sink = Callable[[bytes, int], None]
_FLAGS = os.O_RDWR | os.O_APPEND
_log = logging.getLogger(__name__)


class RunLog:
    """Writes one run's log; `sinks` get every masked chunk with its stream, 1 for stdout and 2 for stderr.

    `follow` gets each chunk as it came, for a secret can be part of a number: what it makes of it is masked later.
    In a run's `folder` the log is a new file; elsewhere it goes on with the one that is there.
    Of a file `limit_bytes` are kept at most, its beginning and its end; 0 keeps all.  Sinks and `follow` get all of it.
    """

    def __init__(
        self,
        path: Path,
        legacy: Iterable[Path],
        secrets: Iterable[str],
        sinks: Iterable[Sink],
        follow: Sink = lambda chunk, stream: None,
        *,
        folder: Folder | None = None,
        limit_bytes: int = 0,
    ) -> None:
        self.problem = ""
        self._path = path
        self._home = folder
        self._is_own_home = folder is None
        self._at_line_start = True
        self._sinks = tuple(sinks)
        self._follow = follow
        secrets = tuple(secrets)
        self._redactors = {1: Redactor(secrets), 2: Redactor(secrets)}
        self._limit_bytes = limit_bytes
        self._files: list[LogFile] = []
        self._main: LogFile | None = None
        try:
            self._home = home = folder or Folder.open(path.parent)
            open_log = home.create if folder is not None else home.open_file
            self._main = LogFile(open_log(path.name, _FLAGS), path.name, home, limit_bytes=limit_bytes)
            self._files.append(self._main)
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
        if self._main is None:
            return
        with _named(path), folder_of(path) as (folder, name):
            folder.write(name, self._main.read())

    def split(self, path: Path) -> None:
        """Write from now on to a second file too, one that has not what was said before."""
        if self._home is None:
            return
        with _named(path), folder_of(path) as (folder, name):
            with _beside(folder, name) as beside:
                file = LogFile(folder.create(beside, _FLAGS), beside, self._home, limit_bytes=self._limit_bytes)
            self._files.append(file)

    def settle(self) -> None:
        """Pass on what is held back; call it when an action ends."""
        for stream, redactor in self._redactors.items():
            self._pass_on(redactor.flush(), stream)

    def close(self) -> None:
        """Write what is held and close the file, its end joined to its beginning where it had a limit."""
        self.settle()
        for file in self._files:
            try:
                file.close()
            except OSError as error:
                self._lack("the log is incomplete", error)
        if self._is_own_home and self._home is not None:
            self._home.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the log should know once it is closed: that it has not all of it, and why."""
        return tuple(filter(None, (self.problem, self._main.words if self._main is not None else "")))

    def _pass_on(self, data: bytes, stream: int) -> None:
        if not data:
            return
        self._write(data)
        for sink in self._sinks:
            sink(data, stream)

    def _write(self, data: bytes) -> None:
        self._at_line_start = data.endswith(b"\n")
        try:
            for file in self._files:
                file.write(data)
        except OSError as error:
            self._lack("the log is incomplete", error)

    def _lack(self, what: str, error: OSError) -> None:
        """Note once that the log has not all of it."""
        if not self.problem:
            self.problem = f"{what}: {error.strerror}"
            _log.warning("%s", self.problem)

    def link(self, legacy: Path) -> None:
        """Give the log its legacy name too; the last run that starts has it."""
        with _named(legacy), folder_of(legacy) as (folder, name), _beside(folder, name) as beside:
            try:
                if self._home is None or self._main is None:
                    raise FileNotFoundError(errno.ENOENT, "there is no log to name")
                os.link(self._path.name, beside, src_dir_fd=self._home.fd, dst_dir_fd=folder.fd, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:  # a file system without hard links
                os.symlink(self._path, beside, dir_fd=folder.fd)


@contextmanager
def _beside(folder: Folder, name: str) -> Iterator[str]:
    """Yield a name for what becomes the file `name` when the block has made it."""
    beside = f".{name}.{os.getpid()}"
    folder.remove(beside)
    try:
        yield beside
        folder.tell_replaced(name)
        folder.rename(beside, name)
    except BaseException:
        folder.remove(beside)
        raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Do without a further name of the log where it cannot be had; nothing half made is left."""
    try:
        yield
    except OSError as error:
        _log.warning("no %s: %s", path.name, error.strerror)
