"""The index and the dashboard over many runs: python benchmarks/dashboard.py [COUNT] [FOLDER] [--index-only]

The folder is made where it is not there (benchmarks/many_runs.py).  Times are those of the clock and of the processor:
others may use the machine.  A query opens the index, brings it up to date and closes it, as a command does.  Pages are
timed over HTTP, by the process's own clock, once the index is warm and the server idle; the first one right after the
server has started.
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
from typing import TYPE_CHECKING
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.many_runs import make
from madlite.files import Folder
from madlite.store import index as store_index
from madlite.store.events import Started, append
from madlite.store.index import FILE

if TYPE_CHECKING:
    from madlite.reports.index import RunIndex

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
    "1,000 runs on a page": "/?limit=1000",
}


def main(count: int, folder: Path, *, index_only: bool = False) -> None:
    runs = folder / "madlite_runs"
    if not runs.is_dir():
        make(folder, count)
        time.sleep(3)  # what was written a moment ago is read again
    print(f"{count:,} runs\n\n| what | median | worst | CPU |\n|---|--:|--:|--:|")
    index(runs, count)
    if not index_only:
        served(folder)


def index(runs: Path, count: int) -> None:
    from madlite.reports.index import RunFilter, RunIndex
    from madlite.reports.series_key import as_dimensions

    (runs / FILE).unlink(missing_ok=True)
    with RunIndex(runs) as opened:
        wall_s, cpu_s = once("index made anew: every record read", opened.refresh)
        per = 100_000 / count
        print(f"| the same per 100,000 runs | {per * wall_s:.1f} s | | {per * cpu_s:.1f} s |")
        series = opened.summaries()[0]
        print(f"| size of its file | {opened.path.stat().st_size >> 20} MiB | | |")
    queries = {
        "nothing": lambda _: None,
        "the newest 50": lambda index: index.newest(limit=50),
        "how many are in each state": lambda index: index.states(),
        "one series": lambda index: index.results(as_dimensions(series.key)),
        "runs that were interrupted": lambda index: index.newest(RunFilter(status="cut-off")),
        "the newest 20 failures": lambda index: index.newest(RunFilter(status="failure"), 20),
    }
    for name, query in queries.items():
        turns(f"query, with opening and refresh: {name}", partial(one_query, runs, query))
    with RunIndex(runs) as opened:
        once("all runs, as `madlite runs`", opened.newest)
        once("all series, as a comparison reads them", partial(opened.results, {}))
        with mock.patch.object(store_index, "CHECK_S", 0):
            turns("refresh that looks at the file of each record, as once a minute", opened.refresh)
    with Folder.open(runs) as log:
        turns("an append to the log", lambda: append(log, Started(run="20260101T000000-x-000000")))


def one_query(runs: Path, query: Callable[[RunIndex], object]) -> None:
    from madlite.reports.index import RunIndex

    with RunIndex(runs) as opened:
        opened.refresh()
        query(opened)


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
    print(f"| memory of the server | {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10} MiB | | |")


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


def once(name: str, work: Callable[[], object]) -> tuple[float, float]:
    wall_s, cpu_s = timed(work)
    print(f"| {name} | {wall_s:.2f} s | | {cpu_s:.2f} s |", flush=True)
    return wall_s, cpu_s


def turns(name: str, work: Callable[[], object]) -> None:
    walls, cpus = zip(*(timed(work) for _ in range(TURNS)), strict=True)
    median, worst, cpu = 1e3 * statistics.median(walls), 1e3 * max(walls), 1e3 * statistics.median(cpus)
    print(f"| {name} | {median:.2f} ms | {worst:.2f} ms | {cpu:.2f} ms |", flush=True)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


if __name__ == "__main__":
    index_only = "--index-only" in sys.argv
    given = [text for text in sys.argv[1:] if text != "--index-only"]
    count = int(given[0]) if given else 100_000
    if len(given) > 1:
        main(count, Path(given[1]), index_only=index_only)
    else:
        with tempfile.TemporaryDirectory() as name:
            main(count, Path(name), index_only=index_only)
