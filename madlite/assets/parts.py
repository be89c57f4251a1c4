"""Files of caches that others may write to as well: reached through the descriptors of their folders, no link followed.

A partial file is gone on with only if it is plain, has one name and is ours or the owner's of its folder; what else
lies in its place is taken away, and not written to.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from madlite.safe_files import Folder, kind_of


class Part:
    """A file below an open folder while it comes; `path` is where people find it."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        self.path = folder.path / name

    def settle(self) -> None:
        """Take away what lies in its place and is no file to go on with.

        Raises:
            OSError: it cannot be taken away, or the folder cannot be made.
        """
        with self._folder.parent_of(self._name, make=True) as (folder, last):
            try:
                fd = folder.open_file(last, os.O_RDONLY, make=False)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EMLINK, errno.EINVAL, errno.EPERM):
                    raise
                folder.tell_replaced(last)
                os.unlink(last, dir_fd=folder.fd)
            else:
                os.close(fd)

    def size(self) -> int:
        """Return its bytes, -1 where there is none."""
        with suppress(OSError):
            return self._folder.status(self._name).st_size
        return -1

    def open(self, mode: str) -> IO[bytes]:
        """Open it: `rb` reads it, `ab` goes on with it, `wb` begins it anew.

        Raises:
            OSError: it cannot be opened, or is no such file.
        """
        with self._folder.parent_of(self._name) as (folder, last):
            if mode == "wb":  # another file than before, whoever holds that one open
                with suppress(FileNotFoundError):
                    os.unlink(last, dir_fd=folder.fd)
                return os.fdopen(folder.create(last), "wb")
            flags = os.O_RDONLY if mode == "rb" else os.O_WRONLY | os.O_APPEND
            return os.fdopen(folder.open_file(last, flags, make=False), mode)

    def remove(self) -> None:
        """Take it away.

        Raises:
            OSError: it stays.
        """
        with self._folder.parent_of(self._name) as (folder, last):
            os.unlink(last, dir_fd=folder.fd)

    def become(self, name: str) -> None:
        """Give it another name below the same folder, whose own folder is made; what lies there is replaced.

        Raises:
            OSError: it cannot be renamed, or a link is in the way.
        """
        with (
            self._folder.parent_of(self._name) as (old, last),
            self._folder.parent_of(name, make=True) as (new, to),
        ):
            os.rename(last, to, src_dir_fd=old.fd, dst_dir_fd=new.fd)


def open_own(root: Path, name: str) -> Folder:
    """Open a folder of a cache, made where it is not there; a link in its place counts if who owns the cache laid it.

    Raises:
        OSError: it cannot be made or opened, or somebody else laid a link there.
    """
    root.mkdir(parents=True, exist_ok=True)
    with Folder.open(root) as cache:
        try:
            facts = cache.status(name)
        except FileNotFoundError:
            return cache.below(name, make=True)
        if not stat.S_ISLNK(facts.st_mode):
            return cache.below(name)
        if facts.st_uid not in (os.geteuid(), os.fstat(cache.fd).st_uid):
            raise PermissionError(errno.EPERM, f"it is a link that user {facts.st_uid} laid", str(root / name))
        target = root / os.readlink(name, dir_fd=cache.fd)
        return Folder(root / name, Folder.open(target).fd)


def check_way(folder: Folder, name: str) -> None:
    """Check that somebody who writes a file below a folder by its path would write there, and nowhere else.

    Raises:
        OSError: a link, or what is no plain file with one name, is in its place or on the way.
    """
    try:
        with folder.parent_of(name) as (parent, last):
            facts = parent.status(last)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, f"{kind_of(facts)} is in its place", str(folder.path / name))
    if facts.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has other names too (hard links)", str(folder.path / name))


def check_folder(folder: Folder, name: str) -> None:
    """Check that a folder below another is one, or is not there yet.

    Raises:
        OSError: a link or a file is in its place.
    """
    with suppress(FileNotFoundError), folder.below(name):
        pass
