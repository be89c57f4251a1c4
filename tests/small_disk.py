"""A small disk of its own, a tmpfs, which a test can fill."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_fixture import give_up

_BYTES = 4 << 20


class SmallDisk:
    """A disk that holds `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fill = path / "fill"

    def fill(self) -> None:
        """Leave no room on it; what was freed since the last time is taken, too."""
        fd = os.open(self._fill, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (1 << 16, 1 << 12, 1):
                while _takes(fd, size):
                    pass
        finally:
            os.close(fd)

    def free(self) -> None:
        """Make room again."""
        self._fill.unlink(missing_ok=True)


def _takes(fd: int, size: int) -> bool:
    try:
        return os.write(fd, bytes(size)) == size
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount a disk of 4 MiB, for as long as the test takes."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "small", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        give_up(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False)
