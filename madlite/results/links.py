"""Links among the files that madlite writes: a user may have laid them, and so may a workload.

One that stays in its folder is followed.  One that leads out of it is followed to a file that is there and is such a
file already; nothing is made outside, and nothing else is written over.
"""

from __future__ import annotations

import os
from pathlib import Path

from madlite.errors import RecordError
from madlite.model import Json
from madlite.results.header import read_header, text_of
from madlite.results.typed import read_json
from madlite.safe_files import folder_of, open_plain, read_limited

_LIMIT_BYTES = 1 << 30
_OF_A_RUN = {"n_gpus", "pipeline"}  # what every object of a side file has


def outside(path: Path, root: Path | None = None) -> Path | None:
    """Return the file outside of its own folder that a link names, there or not; None for all other paths.

    Of a path below `root` as it is written, outside is what a link anywhere in it leads to beyond `root`.
    """
    target = Path(os.path.realpath(path))
    if root is not None and path.is_relative_to(root):
        return None if target.is_relative_to(os.path.realpath(root)) else target
    if not path.is_symlink():
        return None
    return None if target.is_relative_to(os.path.realpath(path.parent)) else target


def check_side_file(path: Path) -> None:
    """Check that what a side file's link leads to outside of its folder is a side file.

    Raises:
        RecordError: it is something else, which is not written over.
        OSError: it cannot be read.
    """
    target = outside(path)
    if target is None or not target.is_file():  # what is not there, or no plain file, is refused where it is opened
        return
    try:
        with folder_of(target) as (folder, name):
            fd = open_plain(folder, name, os.O_RDONLY, make=False)
        with os.fdopen(fd, "rb"):
            known = _is_table(path, fd) if path.suffix == ".csv" else _is_told(path, fd)
    except (RecordError, ValueError, RecursionError):
        known = False
    if not known:
        raise RecordError(f"{path} is a link to {target}, which is no such file: it is left as it is", f"rm {path}")


def _is_table(path: Path, fd: int) -> bool:
    with text_of(fd) as text:
        return read_header(path, text) is not None


def _is_told(path: Path, fd: int) -> bool:
    value: Json = read_json(read_limited(fd, _LIMIT_BYTES, str(path)))
    every = value if isinstance(value, list) else [value]
    return bool(every) and all(isinstance(one, dict) and one.keys() >= _OF_A_RUN for one in every)
