"""`progress.json` in a run's folder: how far the run is, for any process that wants to watch it.

It is written whole, at most about once a second and at each change of state, and says nothing that the record does not
say better once there is one: a reader trusts it for the screen alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from madlite.model import Value
from madlite.safe_read import read_regular

PROGRESS = "progress.json"
_LIMIT_BYTES = 64 << 10


class Progress(Value, frozen=True):
    """How far one run is.  Times are UTC.

    `doing` is what it does in words; `speed` is of `unit`, as the training itself says it; `left_s` what its steps will
    still take at the pace of those before.
    """

    version: int = 1
    state: Literal["preparing", "running", "stopping", "ended"] = "preparing"
    doing: str = ""
    step: int | None = None
    steps: int | None = None  # in all, where the plan knows it
    speed: float | None = None
    unit: str = ""
    loss: float | None = None
    left_s: float | None = None
    status: str = ""  # of the verdict, once it has ended
    cause: str = ""
    started: str = ""
    updated: str = ""
    ended: str = ""


def read_progress(folder: Path) -> Progress | None:
    """Return how far a run is; None where nothing, or nothing readable, says it."""
    try:
        return msgspec.json.decode(read_regular(folder / PROGRESS, _LIMIT_BYTES), type=Progress)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
