"""Speed and memory of reading logs: python benchmarks/reading.py [MiB of the repeated log]

Every log is read by a process of its own, as a run's log and as `madlite parse` read it: with the reader that its
backend brings and with all failure rules.  Seconds are of the processor, for one core; lines are those that are not
blank, those of the file counted without madlite.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
REAL = ROOT / "tests/data/logs/primus-main-megatron-tiny-cpu-1rank.filesink-debug.log"
STEP = (
    "[rank{rank}]:[titan] 2026-11-20 23:57:03,478 - root - INFO - \x1b[31mstep: {n:2d}  \x1b[32mloss:  {loss:.5f}  "
    "\x1b[38;2;180;60;0mgrad_norm:  1.9454  \x1b[38;2;54;234;195mmemory:  0.63GiB(2.67%)  \x1b[34mtps: {tps:,}  "
    "\x1b[36mtflops: 0.08  \x1b[35mmfu: 0.03%\x1b[39m\n"
)
RANKS, STEPS = 8, 125_000
CHUNK_BYTES = 64 * 1024  # as an engine hands output on


def main(size_mib: int) -> None:
    print("| log | backend | MiB | lines | lines read | steps kept | MB/s | peak RSS, MiB |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        data = REAL.read_bytes()
        row("a real log, repeated", write(Path(name, "real.log"), (data for _ in range(size_mib * 2**20 // len(data)))))
        row(f"{RANKS} ranks, {STEPS:,} steps", write(Path(name, "dense.log"), dense()))


def write(path: Path, parts: Iterator[bytes]) -> Path:
    with path.open("wb") as file:
        file.writelines(parts)
    return path


def dense() -> Iterator[bytes]:
    """Yield a torchtitan log that is nothing but steps, each rank's its own."""
    for n in range(1, STEPS + 1):
        lines = (STEP.format(rank=rank, n=n, loss=7 - n / STEPS, tps=2000 + n % 111 + rank) for rank in range(RANKS))
        yield "".join(lines).encode()


def row(title: str, path: Path) -> None:
    with path.open("rb") as file:
        lines = sum(1 for line in file if line.strip())
    command = [sys.executable, __file__, "--read", str(path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seen, size = json.loads(said), path.stat().st_size
    print(
        f"| {title} | {seen['backend']} | {size / 2**20:.0f} | {lines:,} | {seen['lines']:,} | {seen['steps']:,} "
        f"| {size / 1e6 / seen['s']:.0f} | {seen['peak_mib']:.0f} |"
    )
    path.unlink()


def read(path: Path) -> None:
    """Read one log and say what it took, its window included."""
    from madlite.backends.loader import load_plugins
    from madlite.measure.monitor import LogMonitor
    from madlite.measure.parse_log import detect_backend
    from madlite.measure.rules import with_common
    from madlite.measure.steps import steady_window
    from madlite.model import Quantity

    class Counting:
        """The reader of a backend, and how many lines came to it."""

        def __init__(self, reader):
            self.reader, self.lines = reader, 0

        def feed(self, line):
            self.lines += 1
            return self.reader.feed(line)

        def finish(self, outputs):
            return ()

    plugins = load_plugins(only_built_in=True)
    with path.open("rb") as file:
        backend = detect_backend(path.name, [file.read(1 << 20)], plugins)
        file.seek(0)
        reader = Counting(backend.reader(None))
        log = LogMonitor([reader], with_common(plugins.failure_rules()))
        begun = time.process_time()
        while chunk := file.read(CHUNK_BYTES):
            log.feed(chunk)
        log.finish()
        steady_window(log.steps, Quantity.TOKENS_PER_S_PER_GPU, 5)
        took_s = time.process_time() - begun
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    facts = {"backend": backend.name, "lines": reader.lines, "steps": len(log.steps), "s": took_s, "peak_mib": peak_mib}
    print(json.dumps(facts))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        read(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
