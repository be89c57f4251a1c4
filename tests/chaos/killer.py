"""Waits for a round's moment and does to the run what the round says."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.chaos.attacks import Attack
from tests.chaos.daemon import Engine
from tests.chaos.place import Place

_POLL_S = 0.005
_CHUNK = b"\0" * 65536
_NO_INODES = 100_000
_APPENDER = (
    "from pathlib import Path; from madlite.perfcsv.append import append_rows; "
    "append_rows(Path('perf.csv'), [{'model': 'other-tool', 'status': 'SUCCESS', 'other column': 'x'}])"
)


def _is_supervisor(process: psutil.Process) -> bool:
    """Say whether a process is madlite's own among a run's: with it goes what tells a daemon from others."""
    with suppress(psutil.Error):
        return "MADLITE_SUPERVISOR" in process.environ()
    return False


class Killer:
    """Attacks one run; `said` is what could not be done here."""

    def __init__(self, attack: Attack, place: Place, engine: Engine | None) -> None:
        self.said = ""
        self.hit = False
        self._attack, self._place, self._engine = attack, place, engine
        self._over = threading.Event()

    @contextmanager
    def at_work(self, started: subprocess.Popen[bytes]) -> Iterator[None]:
        """Attack while the block waits for the run; all is as it was afterwards."""
        thread = threading.Thread(target=self._work, args=(started,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            if self._engine is not None:
                self._engine.up()

    def _work(self, started: subprocess.Popen[bytes]) -> None:
        self._wait_for_moment(started)
        if started.poll() is not None:
            return
        self.hit = True
        kind = self._attack.kind
        if kind == "signal":
            self._signal(started)
        elif kind == "engine" and self._engine is not None:
            self._engine.kill(signal.Signals[self._attack.word])
            if self._attack.lasts_s is not None:
                self._engine.up()
        elif kind == "container":
            self._kill_containers()
        elif kind == "disk":
            self._fill(self._write_bytes)
        elif kind == "inodes":
            self._fill(self._write_names)
        elif kind == "shut":
            self._shut()
        elif kind == "append":
            subprocess.run([*self._python(), _APPENDER], cwd=self._place.folder, env=self._place.env, check=True)
        elif kind == "rotate":
            with suppress(FileNotFoundError):
                (self._place.folder / "perf.csv").rename(self._place.folder / "perf.moved.csv")

    def _wait_for_moment(self, started: subprocess.Popen[bytes]) -> None:
        seen: Callable[[], bool] = {"result": self._has_result, "append": self._has_row}.get(
            self._attack.moment, lambda: True
        )
        while not seen() and started.poll() is None:
            time.sleep(_POLL_S)
        with suppress(subprocess.TimeoutExpired):
            started.wait(self._attack.wait_s)

    def _has_result(self) -> bool:
        return any(b"ended" in path.read_bytes()[:16] for path in self._place.folder.glob("truth/*"))

    def _has_row(self) -> bool:
        try:
            size = (self._place.folder / "perf.csv").stat().st_size
        except OSError:
            return False
        self._size = getattr(self, "_size", size if self._place.earlier else 0)
        return size != self._size

    def _signal(self, started: subprocess.Popen[bytes]) -> None:
        number = signal.Signals[self._attack.word]
        for wait_s in (0.0, self._attack.again_s):
            if wait_s is None:
                return
            with suppress(subprocess.TimeoutExpired):
                started.wait(wait_s)
            with suppress(ProcessLookupError):
                self._send(started, number)

    def _send(self, started: subprocess.Popen[bytes], number: int) -> None:
        if self._attack.target == "madlite":
            started.send_signal(number)
        elif self._attack.target == "group":
            os.killpg(started.pid, number)
        else:
            found = [process for process in self._place.left_processes() if not _is_supervisor(process)]
            for process in found if self._attack.target == "workload" else found[-1:]:
                with suppress(psutil.Error):
                    process.send_signal(number)

    def _kill_containers(self) -> None:
        import docker
        import docker.errors

        with docker.APIClient(self._place.env["DOCKER_HOST"]) as client:
            for container in client.containers(filters={"label": "madlite.run"}):
                with suppress(docker.errors.APIError):
                    if self._attack.word == "SIGKILL":
                        client.remove_container(container["Id"], force=True)
                    else:
                        client.stop(container["Id"], timeout=1)

    def _lasting(self) -> Iterator[None]:
        """Go on until the attack is over, or the run."""
        begun_s, lasts_s = time.monotonic(), self._attack.lasts_s
        while not self._over.is_set() and (lasts_s is None or time.monotonic() - begun_s < lasts_s):
            yield
            time.sleep(_POLL_S)

    def _fill(self, write: Callable[[Path], None]) -> None:
        """Take every block or name that becomes free."""
        if not self._place.mounted:
            self.said = "no small file system can be mounted here"
            return
        filler = self._place.folder / "filler"
        filler.mkdir(exist_ok=True)
        try:
            for _ in self._lasting():
                with suppress(OSError):
                    write(filler)
        finally:
            for path in filler.iterdir():
                path.unlink()
            filler.rmdir()

    @staticmethod
    def _write_bytes(filler: Path) -> None:
        with (filler / "bytes").open("ab", buffering=0) as file:
            for chunk in (_CHUNK, b"\0" * 512, b"\0"):
                with suppress(OSError):
                    while file.write(chunk) == len(chunk):
                        pass

    @staticmethod
    def _write_names(filler: Path) -> None:
        begin = len(list(filler.iterdir()))
        for number in range(begin, _NO_INODES):
            (filler / str(number)).touch()

    def _shut(self) -> None:
        folder = self._place.folder
        runs = [path.parent for path in folder.glob("madlite_runs/*/lock")]
        path = max(runs, default=folder) if self._attack.word == "the run's folder" else folder / self._attack.word
        if not path.exists():
            return
        if subprocess.run(["chattr", "+i", str(path)], capture_output=True).returncode:
            self.said = "nothing can be made immutable here"
            return
        try:
            for _ in self._lasting():
                pass
        finally:
            subprocess.run(["chattr", "-i", str(path)], capture_output=True)

    @staticmethod
    def _python() -> list[str]:
        import sys

        return [sys.executable, "-c"]
