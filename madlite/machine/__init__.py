"""What this machine offers: vendor, architecture, product, count, memory and versions of its GPUs.

Sources are the files under /sys, /dev and /proc, and the vendors' tools where they exist; `detect_machine` puts them
together into one `madlite.model.Machine`.
"""

from __future__ import annotations

from madlite.machine.detect import detect_machine
from madlite.machine.host import Host

__all__ = ["Host", "detect_machine"]
