"""`python -m madlite`."""

from __future__ import annotations

from madlite.cli.main import entry

if __name__ == "__main__":
    entry()
