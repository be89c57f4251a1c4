"""Which trackers follow the runs of this process; a module of its own, for every command asks it."""

from __future__ import annotations

import logging
import os

VARIABLE = "MADLITE_TRACK"  # names of trackers, with commas
_TRACKERS = ("mlflow", "trackio")


def is_tracked(name: str) -> bool:
    """Return whether runs are to be followed by this tracker: $MADLITE_TRACK names it."""
    return name in _NAMED


_NAMED = tuple(filter(None, os.environ.get(VARIABLE, "").replace(" ", "").split(",")))
for _one in _NAMED:
    if _one not in _TRACKERS:
        _LOG = logging.getLogger("madlite")
        _LOG.warning("%s names '%s', which is no tracker: %s", VARIABLE, _one, ", ".join(_TRACKERS))
