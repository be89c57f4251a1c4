"""Print a file while another program writes it, from its first line, until this program's input ends.

    exec 4> >(exec python3 follow.py FILE)

Whoever holds the other end of that pipe, and is gone, leaves no follower behind, however it went.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

PAUSE_S = 0.2


def main() -> None:
    """Print what comes; nothing of a file that never comes."""
    path, at, whole = Path(sys.argv[1]), 0, False
    while not whole:
        whole = ended(PAUSE_S)  # asked before the file is read: what was written before the end is printed
        if path.exists():
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            at += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def ended(wait_s: float) -> bool:
    """Say whether the input has ended; waits for it no longer than that."""
    readable, _, _ = select.select([0], [], [], wait_s)
    return bool(readable) and not os.read(0, 4096)


if __name__ == "__main__":
    main()
