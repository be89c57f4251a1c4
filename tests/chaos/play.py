"""One round from its seed to the rules it broke."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.chaos.attacks import Round, draw
from tests.chaos.daemon import Engine
from tests.chaos.judge import judge
from tests.chaos.killer import Killer
from tests.chaos.place import LIMIT_S, Place
from tests.engine_fixture import remove_built


class Played(NamedTuple):
    """A round and what came of it."""

    round: Round
    broken: list[str]
    code: int | None
    rows: int
    note: str
    took_s: float


def play(seed: int, engine: Engine | None, keep: bool = False) -> Played:
    """Play the round of a seed; its folder goes away unless a rule broke and `keep` asks for it."""
    one, begun_s = draw(seed), time.monotonic()
    home = Path(tempfile.mkdtemp(prefix=f"madlite-chaos-{seed}-"))
    address = engine.address if engine is not None else "unix:///nonexistent/docker.sock"
    place = Place(home / "mad", one, address)
    broken: list[str] = []
    try:
        killer = Killer(one.attack, place, engine if one.runtime == "docker" else None)
        started = place.start_round(one)
        with killer.at_work(started):
            code = _ended(started)
        broken = judge(one, place, code)
        rows = sum(len(table) - 1 for table in place.tables().values() if table)
        note = killer.said or ("" if killer.hit or one.attack.kind == "none" else "too late")
        return Played(one, broken, code, rows, note, time.monotonic() - begun_s)
    finally:
        if one.runtime == "docker" and engine is not None:
            remove_built(engine.address, place.folder)
        if broken and keep:
            shutil.copytree(place.folder, home / "kept", symlinks=True)
        place.remove()
        if not (broken and keep):
            shutil.rmtree(home, ignore_errors=True)


def _ended(started: subprocess.Popen[bytes]) -> int | None:
    try:
        return started.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()
        return None
