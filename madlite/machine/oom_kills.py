"""How many processes the kernel has ended for want of memory since it started, on this machine.

Format: /proc/vmstat's `oom_kill` (proc(5); Linux 4.13 and later), which counts those of containers too.
"""

from __future__ import annotations

from pathlib import Path

VMSTAT = Path("/proc/vmstat")


def count_oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Return the count; None where the kernel does not tell."""
    try:
        lines = vmstat.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    words = (line.split() for line in lines if line.startswith("oom_kill "))
    return next((int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal()), None)
