"""The kit's part for runtimes (docs/runtimes.md): what `madlite run --runtime NAME` makes of small scripts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from madlite.model import Runtime
from madlite.testing.members import signatures

_WAITS = "echo ready; n=0; while [ $((n += 1)) -lt 6000 ]; do sleep 0.1; done"  # ten minutes at most
_TWENTY_BEATS = ["/bin/sh", "-c", _WAITS.replace("6000", "20")]
_LOG = "madlite_runs/*/run.log"
_STAYS = f"setsid sh -c '{_WAITS.replace('sleep', 'echo >> beats; sleep')}' > /dev/null 2>&1 & sleep 1"


class RuntimeConformance:
    """Set `runtime`, which an installed plugin brings, and its `image`, if any, in a class whose name begins with Test.

    Every test takes a folder as pytest's `tmp_path`, and raises AssertionError; `limit_s` is what anything may take.
    """

    runtime: ClassVar[Runtime]
    image: ClassVar[str] = ""
    limit_s: ClassVar[float] = 120.0

    def test_start(self, tmp_path: Path) -> None:
        """Its members are there, it can be used, and a script has the plan's workspace and variables."""
        flaws = [f"{what}: {hint}" for _, what, hint in signatures(self.runtime, Runtime, "")]
        _expect(not flaws, "\n".join(flaws))
        _expect((problem := self.runtime.available()) is None, f"it cannot be used here: {problem}")
        (tmp_path / "given.txt").write_text("12.5")
        script = 'echo "performance: $(cat given.txt) $KIT"'
        _, record, _ = self.run(tmp_path, script, "--set", "env.KIT=tokens/s")
        _expect(record["status"] == "SUCCESS", f"a script lacks a file or a variable: {record['reason']}")

    def test_stream(self, tmp_path: Path) -> None:
        """Output arrives while an action runs, which has time for its last words at a stop."""
        _, _, log = self.run(tmp_path, f"trap 'echo last words; exit 7' INT; {_WAITS}", stop=True)
        _expect(b"last words" in log, "a stop is INT to the action's process group, then the grace")

    def test_exit(self, tmp_path: Path) -> None:
        """The exit code is the command's, and all of its output has come, of both streams."""
        _, record, log = self.run(tmp_path, "seq 100000; echo last >&2; exit 3")
        _expect("exit code 3" in record["reason"], f"a script's exit code is 3: {record['reason'] or record['status']}")
        _expect({b"1", b"99999", b"100000", b"last"} <= {*log.split()}, "a part of the output is lost")

    def test_stop(self, tmp_path: Path) -> None:
        """An action that ignores INT and TERM is killed."""
        code, record, _ = self.run(tmp_path, f"trap '' INT TERM HUP; {_WAITS}", "--set", "stop_grace_s=2", stop=True)
        _expect((code, record["cause"]) == (130, "interrupted"), f"a run that is stopped: {code}, {record['reason']}")

    def test_leftovers(self, tmp_path: Path) -> None:
        """No process outlives a run, not even one in a session of its own; seen where files are shared."""
        self.run(tmp_path, _STAYS)
        before = _read(tmp_path, "beats")
        subprocess.run(_TWENTY_BEATS, stdout=subprocess.DEVNULL, check=True)  # which take longer on a busy machine, too
        _expect(_read(tmp_path, "beats") == before, "a process of the run goes on: leaving open() ends each of them")

    def run(self, folder: Path, script: str, *options: str, stop: bool = False) -> tuple[int, dict[str, Any], bytes]:
        """Return exit code, record and log of a run in a workspace; with `stop` it is interrupted once it is ready."""
        (folder / "run.sh").write_text(f"cd ..  # out of the copy of the script's folder\n{script}\n")
        card = {"name": "kit", "scripts": "run.sh", "n_gpus": "0", "tags": ["kit"], "args": "", "image": self.image}
        (folder / "models.json").write_text(json.dumps([card]))
        argv = [sys.executable, "-m", "madlite", "run", "--tags", "kit", "--runtime", self.runtime.name, *options]
        deadline_s = time.monotonic() + self.limit_s
        with subprocess.Popen(argv, cwd=folder, stdout=-1, stderr=subprocess.STDOUT, text=True) as run:
            try:
                while stop and run.poll() is None and b"ready" not in _read(folder, _LOG):
                    _expect(time.monotonic() < deadline_s, "a line did not come while the action ran")
                    time.sleep(0.1)
                if stop:
                    run.send_signal(signal.SIGINT)
                printed, _ = run.communicate(timeout=self.limit_s)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the run has not ended after {self.limit_s:g} s") from None
            finally:
                run.kill()
        records = [json.loads(path.read_bytes()) for path in folder.glob("madlite_runs/*/record.json")]
        _expect(bool(records), f"there was no run: {printed}")
        return run.returncode, records[0], _read(folder, _LOG)


def _expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise AssertionError(what)


def _read(folder: Path, pattern: str) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob(pattern))
