"""A run's output on its way: secrets masked, written byte for byte to run.log, then handed on."""

from __future__ import annotations

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
    Live logs are files of their own in the workspace: they have the log's bytes and, besides, what is told to them.
    """

    def __init__(
        self,
        path: Path,
        secrets: Iterable[str],
        sinks: Iterable[Sink],
        follow: Sink = lambda chunk, stream: None,
        *,
        folder: Folder | None = None,
        limit_bytes: int = 0,
    ) -> None:
        self.problem = ""
        self._home = folder
        self._is_own_home = folder is None
        self._sinks = tuple(sinks)
        self._follow = follow
        secrets = tuple(secrets)
        self._redactors = {1: Redactor(secrets), 2: Redactor(secrets)}
        self._limit_bytes = limit_bytes
        self._live: list[LogFile] = []
        self._live_name = ""
        self._main: LogFile | None = None
        try:
            self._home = home = folder or Folder.open(path.parent)
            open_log = home.create if folder is not None else home.open_file
            self._main = LogFile(open_log(path.name, _FLAGS), path.name, home, limit_bytes=limit_bytes)
        except OSError as error:  # a disk without inodes, a folder that is shut: what is to be logged goes on
            self._lack(f"no {path.name}", error)

    def feed(self, chunk: bytes, stream: int) -> None:
        """Take output of the workload; never raises for a full disk, the workload goes on."""
        self._follow(chunk, stream)
        self._pass_on(self._redactors[stream].feed(chunk), stream)

    def say(self, text: str) -> None:
        """Add a line of madlite's own, e.g. of an image build."""
        self._write_line(text, self._files)

    def tell(self, text: str) -> None:
        """Add a line to the live logs alone."""
        self._write_line(text, self._live)

    def keep_as(self, path: Path) -> None:
        """Leave a copy of what the first live log has so far, e.g. of an image's build."""
        if not self._live:
            return
        with _named(path), folder_of(path) as (folder, name):
            folder.write(name, self._live[0].read())

    def begin_live(self, path: Path) -> None:
        """Write from now on to a live log too, which has not what was said before; the last run that starts has it."""
        if self._home is None:
            return
        with _named(path), folder_of(path) as (folder, name):
            with _beside(folder, name) as beside:
                file = LogFile(folder.create(beside, _FLAGS), beside, self._home, limit_bytes=self._limit_bytes)
            self._live.append(file)
            self._live_name = name

    def link_live(self, path: Path) -> None:
        """Give the last live log another name in its folder."""
        if not self._live:
            return
        with _named(path), folder_of(path) as (folder, name), _beside(folder, name) as beside:
            try:  # by its descriptor: its name may be another run's by now
                os.link(f"/proc/self/fd/{self._live[-1].fd}", beside, dst_dir_fd=folder.fd, follow_symlinks=True)
            except OSError:  # a file system without hard links, a machine without /proc
                os.symlink(self._live_name, beside, dir_fd=folder.fd)

    def settle(self) -> None:
        """Pass on what is held back; call it when an action ends."""
        for stream, redactor in self._redactors.items():
            self._pass_on(redactor.flush(), stream)

    def close(self) -> None:
        """Write what is held and close the file, its end joined to its beginning where it had a limit."""
        self.settle()
        self._each(self._files, LogFile.close)
        if self._is_own_home and self._home is not None:
            self._home.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the log should know once it is closed: that it has not all of it, and why."""
        return tuple(filter(None, (self.problem, self._main.words if self._main is not None else "")))

    @property
    def _files(self) -> list[LogFile]:
        return [self._main, *self._live] if self._main is not None else self._live

    def _pass_on(self, data: bytes, stream: int) -> None:
        if not data:
            return
        self._each(self._files, lambda file: file.write(data))
        for sink in self._sinks:
            sink(data, stream)

    def _write_line(self, text: str, files: Iterable[LogFile]) -> None:
        line = self._redactors[1].text(text.rstrip("\n") + "\n").encode("utf-8", "surrogateescape")
        self._each(files, lambda file: file.write_line(line))

    def _each(self, files: Iterable[LogFile], write: Callable[[LogFile], None]) -> None:
        for file in files:
            try:
                write(file)
            except OSError as error:
                self._lack(f"{'the' if file is self._main else 'a live'} log is incomplete", error)

    def _lack(self, what: str, error: OSError) -> None:
        """Note once that the log has not all of it."""
        if not self.problem:
            self.problem = f"{what}: {error.strerror}"
            _log.warning("%s", self.problem)


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
