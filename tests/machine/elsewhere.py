"""Have a command of the tests look for GPUs in the files of another machine; all else is as at a prompt."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from madlite.machine import host

LOOK_BELOW = "tests.machine.elsewhere.look_below"


def look_below(root: str) -> None:
    """Have this process look below another folder than `/`, wherever madlite looks at its machine."""
    real = host.Host
    elsewhere = functools.partial(real, root=Path(root))
    for module in [one for one in sys.modules.values() if one.__name__.startswith("madlite")]:
        if getattr(module, "Host", None) is real:
            module.Host = elsewhere  # type: ignore[attr-defined]
