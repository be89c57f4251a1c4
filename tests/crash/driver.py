"""Play a scenario at its fail points: `python -m tests.crash.driver SCENARIO FOLDER [WORDS | K/N]`.

Played are all of them, those that have the words, or the K-th of every N.  Each command is a child of this process,
which has imported all of madlite once.  What broke is printed as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from madlite.cli.main import call
from madlite.jobs import job
from tests.commands import import_all
from tests.crash.fail_points import Events, Point, points
from tests.crash.scenarios import SCENARIOS, broken_promises, make_folder

LIMIT_S = 60


def play(name: str, root: Path, only: str = "") -> list[str]:
    """Return what broke, a line for each fail point and promise."""
    scenario = SCENARIOS[name]
    whole = fresh(root / "whole")
    code, names = child(whole, scenario.command, None)
    if broken := broken_promises(whole, screen_of(whole).read_text()):
        return [f"without a fault (exit {code}): {', '.join(broken)}\n{screen_of(whole).read_text()}"]
    found = []
    for number, point in enumerate(points(names)):
        if not is_chosen(number, point, only):
            continue
        folder = fresh(root / f"{number}")
        code, _ = child(folder, scenario.command, point)
        if point.fault != "full" and code != -signal.SIGKILL:
            print(f"{point}: not reached this time, exit {code}", file=sys.stderr)
        for command in scenario.after:
            child(folder, command, None)
        broken = broken_promises(folder, screen_of(folder).read_text())
        found += [f"{point}: {words}" for words in broken]
        if broken:
            print(f"{point}: {broken}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(folder)
    if not only and not found:
        shutil.rmtree(root)
    print(f"{name}: {number + 1} points of {len(set(names))} kinds of events", file=sys.stderr)
    return found


def is_chosen(number: int, point: Point, only: str) -> bool:
    """Return whether a point is to be played."""
    part, _, parts = only.partition("/")
    if part.isdecimal() and parts.isdecimal():
        return number % int(parts) == int(part) - 1
    return only in str(point)


def fresh(folder: Path) -> Path:
    folder.mkdir(parents=True)
    make_folder(folder)
    return folder


def screen_of(folder: Path) -> Path:
    """Return where the commands of a folder print: beside it, so that this is none of its events."""
    return folder.with_name(f"{folder.name}.screen")


def child(folder: Path, command: tuple[str, ...], point: Point | None) -> tuple[int, list[str]]:
    """Run a command in a child of this process, and return its exit code (below 0 a signal) and its events."""
    report = folder.parent / f"{folder.name}.events"
    report.unlink(missing_ok=True)
    if not (pid := os.fork()):
        _run(folder, command, point, report)
    end = time.monotonic() + LIMIT_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    names = report.read_text().splitlines() if report.exists() else []
    return os.waitstatus_to_exitcode(ended[1]), names


def _run(folder: Path, command: tuple[str, ...], point: Point | None, report: Path) -> None:
    """Be the child: never returns."""
    screen = os.open(screen_of(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(screen, f"$ madlite {' '.join(command)}    # {point or ''}\n".encode())
    for fd in (1, 2):
        os.dup2(screen, fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    os.environ["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
    events = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write = os.write
    Events(folder, point, lambda name: write(events, f"{name}\n".encode()) and None).install()
    code = 1
    try:
        code = call(list(command))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import_all()
    os.fsync = lambda fd: None  # an event all the same: no point loses the power
    gc.freeze()
    job.GRACE_S = 0.1  # these jobs' files need no time to be seen
    print(json.dumps(play(sys.argv[1], Path(sys.argv[2]).resolve(), *sys.argv[3:]), indent=1))
