"""Why a run is ended before it ends by itself."""

from __future__ import annotations

from madlite.model import Cause, Value


class StopReason(Value, frozen=True):
    """Why a run was ended; `evidence` is the line that shows it, where there is one.

    `short` is what the screen says meanwhile, where it told the rest just before; `hint` is what to do.
    """

    cause: Cause
    text: str
    evidence: str = ""
    short: str = ""
    hint: str = ""
