"""The ledger and the dashboard over many runs: python benchmarks/dashboard.py [COUNT] [FOLDER]

The folder is made where it is not there (benchmarks/many_runs.py).  Pages are timed over HTTP, by the process's own
clock, once the ledger is warm and the server idle; the first one right after the server has started.
"""

from __future__ import annotations

import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.many_runs import make

TURNS = 7
PAGES = {
    "runs, newest first": "/",
    "runs, 2 filters": "/?status=failure&card=qwen3-8b",
    "runs, a word of a tag": "/?q=llama",
    "runs, page 1,800 of 2,000": "/?offset=90000",
    "runs, by number": "/?order=number",
    "one run, with steps and log": "/runs/last",
    "list of series": "/series",
    "one series with its trend": "/series/1",
    "API: 1,000 runs": "/api/runs?limit=1000",
}


def main(count: int, folder: Path) -> None:
    runs = folder / "madlite_runs"
    if not runs.is_dir():
        make(folder, count)
        time.sleep(3)  # what was written a moment ago is read again
    print(f"{count:,} runs\n\n| what | median | worst |\n|---|--:|--:|")
    ledgers(runs)
    served(folder)


def ledgers(runs: Path) -> None:
    from madlite.reports.ledger import Ledger, RunFilter

    for path in runs.glob(".ledger*"):
        path.unlink()
    with Ledger.open(runs) as ledger:
        once("ledger made: every record read", ledger.refresh)
        turns("ledger brought up to date, nothing new", ledger.refresh)
        once("all runs, as `madlite runs`", ledger.newest)
        turns("the newest 20 failures", lambda: ledger.newest(RunFilter(status="failure"), 20))
        once("all series, as a comparison reads them", ledger.series)
        print(f"| size of its file | {ledger.path.stat().st_size >> 20} MiB | |")


def served(folder: Path) -> None:
    command = [sys.executable, "-m", "madlite", "dashboard", "--dir", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url, token = re.search(r"(http://\S+:\d+)/\?token=(\w+)", server.stdout.readline()).groups()
    get = partial(get_page, headers={"Authorization": f"Bearer {token}"})
    once("first page after the start", lambda: get(url + "/"))
    time.sleep(20)  # the first look at all folders, and its rest
    for name, path in PAGES.items():
        turns(name, lambda path=path: get(url + path))
    server.send_signal(signal.SIGINT)
    server.wait()
    print(f"| memory of the server | {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10} MiB | |")


def get_page(url: str, headers: dict[str, str]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=120) as answer:
                answer.read()
            return
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def once(name: str, work: Callable[[], object]) -> None:
    begun = time.perf_counter()
    work()
    print(f"| {name} | {time.perf_counter() - begun:.2f} s | |", flush=True)


def turns(name: str, work: Callable[[], object]) -> None:
    times = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    print(f"| {name} | {statistics.median(times):.3f} s | {max(times):.3f} s |", flush=True)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    if len(sys.argv) > 2:
        main(count, Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(count, Path(name))
