"""Play a scenario at its fail points: `python -m tests.crash.driver SCENARIO FOLDER [WORDS | K/N]`.

Played are all of them, those that have the words, or the K-th of every N.  What broke is printed as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from tests import commands
from tests.crash.fail_points import Point, points
from tests.crash.scenarios import SCENARIOS, broken_promises, make_folder

INSTALL = "tests.crash.fail_points.install"
# these jobs' files need no time to be seen, and the answers of the stand-ins cost nothing
PAUSES = {"madlite.jobs.job.GRACE_S": 0.1, "madlite.jobs.job.POLL_S": 0.1, "madlite.jobs.follow.TICK_S": 0.02}


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
    """Run a command, and return its exit code (below 0 a signal) and its events.

    Raises:
        subprocess.TimeoutExpired: it did not come to its end.
    """
    report = folder.parent / f"{folder.name}.events"
    report.unlink(missing_ok=True)
    environ = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    first = (INSTALL, str(folder), str(report), *map(str, point or ()))
    with screen_of(folder).open("a") as screen:
        print(f"$ madlite {' '.join(command)}    # {point or ''}", file=screen, flush=True)
        started = commands.start(command, folder, environ, stdout=screen, first=first, constants=PAUSES)
    try:
        code = started.wait(commands.LIMIT_S)
    finally:
        started.kill()
    return code, report.read_text().splitlines() if report.exists() else []


if __name__ == "__main__":
    print(json.dumps(play(sys.argv[1], Path(sys.argv[2]).resolve(), *sys.argv[3:]), indent=1))
