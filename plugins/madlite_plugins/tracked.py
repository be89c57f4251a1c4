"""Which trackers follow the runs of this process; a module of its own, for every command asks it."""

from __future__ import annotations

import os

VARIABLE = "MADLITE_TRACK"  # names of trackers, with commas


def is_tracked(name: str) -> bool:
    """Return whether runs are to be followed by this tracker: $MADLITE_TRACK names it."""
    return name in os.environ.get(VARIABLE, "").replace(" ", "").split(",")
