"""Print a file while another program writes it, from its first line, until a second file says that it is whole.

python3 follow.py FILE WHOLE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

PAUSE_S = 0.2


def main() -> None:
    """Print what comes; nothing of a file that never comes."""
    path, mark = Path(sys.argv[1]), Path(sys.argv[2])
    at, whole = 0, False
    while not whole:
        whole = mark.exists()  # asked before the file is read: what comes before the mark is printed
        if path.exists():
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            at += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        if not whole:
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
