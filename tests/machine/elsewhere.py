"""Have a command of the tests look for GPUs in the files of another machine; all else is as at a prompt."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from madlite.machine import host

LOOK_BELOW = "tests.machine.elsewhere.look_below"
# the same for a started Python: the folder comes before the command's words
ELSEWHERE = (
    "import functools, pathlib, sys; from madlite.machine import host;"
    "host.Host = functools.partial(host.Host, root=pathlib.Path(sys.argv.pop(1)));"
    "from madlite.cli.main import call; sys.exit(call(sys.argv[1:]))"
)


def look_below(root: str) -> None:
    """Have this process look below another folder than `/`, wherever madlite looks at its machine."""
    real = host.Host
    elsewhere = functools.partial(real, root=Path(root))
    for module in [one for one in sys.modules.values() if one.__name__.startswith("madlite")]:
        if getattr(module, "Host", None) is real:
            module.Host = elsewhere  # type: ignore[attr-defined]
