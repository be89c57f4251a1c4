"""A Docker Engine of the chaos' own, on a private socket and data root: the only one that is ever attacked."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.engine_fixture import START_LIMIT_S, load_base_image, remove_home, start_engine, wait_until_it_answers

_TRIES = 3
_ORPHAN_S = 10.0


class Engine:
    """An engine that can be killed and comes back."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="madlite-chaos-"))
        self.address = f"unix://{self.home}/sock"
        self._daemon: subprocess.Popen[bytes] | None = None
        self.up()
        load_base_image(self.address)

    def up(self) -> None:
        """Have it running; the first start after a kill can fail over the containerd that was orphaned."""
        for _ in range(_TRIES):
            if self._daemon is None or self._daemon.poll() is not None:
                self._end_orphan()
                self._daemon = start_engine(self.home)
            with suppress(pytest.skip.Exception, pytest.fail.Exception):
                wait_until_it_answers(self.address, self._daemon, self.home / "log")
                return
        raise RuntimeError(f"the engine does not come up again: {self.home}/log")

    def _end_orphan(self) -> None:
        """End the containerd of a daemon that was killed: the next one would wait for it in vain."""
        with suppress(OSError, ValueError, psutil.Error):
            orphan = psutil.Process(int((self.home / "exec/containerd/containerd.pid").read_text()))
            if str(self.home) in " ".join(orphan.cmdline()):
                orphan.kill()
                orphan.wait(_ORPHAN_S)

    def kill(self, number: int) -> None:
        """End it with a signal, and wait until it has ended."""
        if self._daemon is not None:
            self._daemon.send_signal(number)
            self._daemon.wait(timeout=START_LIMIT_S)

    def close(self) -> None:
        """End it, its containers and its containerd, and remove what it wrote."""
        self.up()
        self.kill(signal.SIGTERM)
        remove_home(self.home)
