"""Processes with the marks of a run, for tests of who finds and ends them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from madlite.machine.processes import environment_of
from tests.waiting import wait_until


def start_marked(argv: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process and return it once /proc shows its environment and command line.

    Popen returns when the program is loaded, and the kernel shows both a moment later: until then it has no marks.
    """
    process = subprocess.Popen(argv, env={**env}, **options)
    wait_until(lambda: environment_of(process.pid), "the environment of a process")
    return process
