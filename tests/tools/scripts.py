"""madlite's own tools, run as a container runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "templates" / "tools"


def bash(
    script: str, *args: str, cwd: Path, env: Mapping[str, str] | None = None, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end; with `path` no other program is found than those in there."""
    environ = {**os.environ, **(env or {}), **({"PATH": str(path), "ROCM_PATH": "/nonexistent"} if path else {})}
    return subprocess.run(
        ["/bin/bash", str(TOOLS / script), *args], cwd=cwd, env=environ, capture_output=True, text=True, timeout=240
    )


def tracer(*command: str) -> list[str]:
    return [sys.executable, str(TOOLS / "library_trace.py"), *command]


def only(folder: Path, *programs: str) -> Path:
    """Make a folder with links to programs of this machine, to be a whole PATH."""
    folder.mkdir(exist_ok=True)
    for name in programs:
        found = next(Path(place, name) for place in ("/usr/bin", "/bin") if Path(place, name).exists())
        (folder / name).symlink_to(found.resolve())
    return folder


def program(folder: Path, name: str, body: str) -> None:
    """Write a stand-in."""
    place = folder / name
    place.write_text(f"#!/bin/sh\n{body}\n")
    place.chmod(0o755)
