"""The programs of the tests' Python inside a container, whatever system the container is of.

The folders of the interpreter, of its packages and of this machine's libraries are mounted below /host, and the
interpreter is started by the dynamic loader that it has here: the container's own system is neither used nor hidden.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BELOW = "/host"
START = """#!/bin/sh
PYTHONHOME={home} PYTHONPATH={packages} exec {loader} --library-path {libraries} {python} -m {module} "$@"
"""


def offer(module: str, name: str, folder: Path) -> tuple[dict[str, str], str]:
    """Make a module a program of this name in a folder of its own; return its mounts, and the PATH that finds it."""
    mounted = sorted({sys.prefix, sys.base_prefix, "/usr"})
    packages = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix)) and Path(entry).is_dir()]
    loader = _loader()
    text = START.format(
        home=BELOW + sys.base_prefix,
        packages=":".join(BELOW + entry for entry in packages),
        loader=BELOW + str(loader),
        libraries=f"{BELOW}{sys.base_prefix}/lib:{BELOW}{loader.parent}",  # its own libpython first
        python=BELOW + os.path.realpath(sys.executable),
        module=module,
    )
    folder.mkdir()
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    places = {BELOW + place: place for place in mounted} | {f"{BELOW}/bin": str(folder)}
    return places, f"{BELOW}/bin:{USUAL}"


def _loader() -> Path:
    """Return the dynamic loader that started this process; its folder has the system's libraries."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]).resolve() for line in maps if "/ld-linux" in line)
