"""The command `madlite`, also as `python -m madlite`."""

from __future__ import annotations

import sys


def entry() -> None:
    """Run the command line; Ctrl-C while it is being loaded is a word and an exit code too, and no traceback."""
    try:
        from madlite.cli.main import entry as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    entry()
