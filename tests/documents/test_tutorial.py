"""docs/tutorial.md, done as it says: its commands in a row, each with what it prints and its exit code.

`make test` starts torchrun for the run that fails, whose rank it names; of the others, which a Python without torch
starts as torchrun starts one rank, each imports torch in `make test-all` alone.  There the script has the time of the
machine, too; in `make test` what it sleeps passes at once and lasts as long on a machine that is busy.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands
from tests.tiers import ALL

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"\s+# exit code (\d+)$")
_CLOCK = """
import random

_now_s = 0.0


def sleep(seconds):
    global _now_s
    _now_s += seconds * random.uniform(0.99, 1.01)


def perf_counter():
    return _now_s
"""


def typed_off(block: str) -> list[tuple[str, int, list[str]]]:
    """Return each command with its exit code and the lines of what it prints."""
    found: list[tuple[str, int, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            code = _CODE.search(line)
            found.append((_CODE.sub("", line)[2:], int(code[1]) if code else 0, []))
        else:
            found[-1][2].append(line)
    return found


def shape(text: str) -> str:
    """Return a line in which numbers are alike."""
    return re.sub(r"\d[\d.,]*", "0", text)


def is_printed(line: str, printed: list[str]) -> bool:
    pattern = re.compile(".*".join(map(re.escape, shape(line).split("…"))))
    return any(pattern.fullmatch(shape(other)) for other in printed)


def with_own_clock(script: str) -> str:
    assert script.count("import time\n") == 1
    return script.replace("import time\n", "import steady_clock as time\n")


def typed(command: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does; in `make test` madlite's own without its start."""
    name, *words = shlex.split(command)
    if name == "madlite" and not ALL:
        return commands.run(words, folder, env)
    return subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.host
def test_each_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, words in {"madlite": "-m madlite", "python-without-torch": "-S"}.items():
        (bin_folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (bin_folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    env.pop("MODEL_DIR", None)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "steady_clock.py").write_text(_CLOCK)
    blocks = _BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 6
    for kind, text in blocks:
        if kind == "python":
            name, _, script = text.partition("\n")
            (folder / name.removeprefix("# ")).write_text(script if ALL else with_own_clock(script))
            continue
        for command, code, lines in typed_off(text):
            quick = {} if ALL or code == 3 else {"MADLITE_PYTHON": f"{bin_folder}/python-without-torch"}
            done = typed(command, folder, env | quick)
            assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
            missing = [line for line in lines if line != "…" and not is_printed(line, done.stdout.splitlines())]
            assert not missing, f"{command}\n{done.stdout}{done.stderr}"
