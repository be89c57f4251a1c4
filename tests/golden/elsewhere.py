"""A forked command sees the /sys and /dev of a stand-in machine, as elsewhere.sh has it for one that is started."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from madlite.run.instrumentation import Instrumentation

ENTER = "tests.golden.elsewhere.enter"
SCRIPT = Path(__file__).with_suffix(".sh")
_CLONE_NEWNS = 0x20000


def enter(machine: str, probes: str = "yes") -> None:
    """Give this process a mount namespace of its own, in which it sees that machine and no GPU of the real one.

    probes: "no" where no run is to ask for its environment, which takes a third of its time.
    """
    if probes == "no":
        Instrumentation.probe = lambda *args: None  # type: ignore[method-assign]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["sh", str(SCRIPT), machine, "true"], check=True)
