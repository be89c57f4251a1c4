"""What commands import: each in a fork of one Python that has imported the command line and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_PROGRAM = """
import contextlib, io, json, os, sys
from madlite.cli.main import call

for words, env in json.loads(sys.argv[1]):
    pid = os.fork()
    if not pid:
        os.environ.update(env)
        said = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with contextlib.redirect_stdout(said):
            code = call(words)
            said.flush()
        print(json.dumps([code, said.buffer.getvalue().decode(), [*sys.modules]]), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


class Called(NamedTuple):
    """The exit code of a command, what it printed, and which of some modules it has imported."""

    code: int
    output: str
    imported: list[str]


def calls(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], cwd: Path, of: Collection[str]) -> list[Called]:
    """Call commands, each with variables of its own."""
    argv = [sys.executable, "-c", _PROGRAM, json.dumps(commands)]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    told = map(json.loads, done.stdout.splitlines())
    return [Called(code, output, [name for name in of if name in modules]) for code, output, modules in told]
