"""Count what the core is made of: modules and code lines per room, and what a one-line run imports and runs.

    python scripts/core_size.py            rooms with their budgets, and what a one-line run imports
    python scripts/core_size.py --check    end with 1 where a room is above its budget; needs no environment

The budgets are the table of docs/architecture.md.  A code line is one that is neither blank nor comment nor docstring.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ROOT / "madlite"
PAGE = ROOT / "docs" / "architecture.md"
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_HEADER = "| room | modules | code lines |\n|---|---|---|\n"
_ROW = re.compile(r"\| (\S.*?) \| (\d+) \| (\d+) \|")
_CARD = [{"name": "one_line", "n_gpus": "0", "scripts": "run.sh", "tags": ["one"]}]
# compiled modules are kept, as where madlite is installed
_ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_TRACED = """
import inspect, json, runpy, sys, threading
from pathlib import Path
seen = set()
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # functions alone: no module, no class body
        seen.add(frame.f_code.co_filename)
threading.setprofile(note)
sys.setprofile(note)
core = sys.argv.pop(1)
answer = sys.argv.pop(1)
try:
    runpy.run_module("madlite", run_name="__main__", alter_sys=True)
finally:
    sys.setprofile(None)
    files = [getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())]
    imported = {name for name in files if name.startswith(core)}
    counts = {"imported": len(imported), "run": len({name for name in seen if name.startswith(core)})}
    Path(answer).write_text(json.dumps(counts))
"""


def code_lines(text: str) -> int:
    """Return how many lines of a module are code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and node.body and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def sizes() -> dict[str, tuple[int, int]]:
    """Return the modules and code lines of the rooms of the core, and of all of it."""
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for file in (*CORE.rglob("*.py"), *CORE.rglob("*.pyi")):
        parts = file.relative_to(CORE).parts
        room = f"{parts[0]}/" if len(parts) > 1 else "beside the rooms"
        modules[room] += file.suffix == ".py"
        lines[room] += code_lines(file.read_text())
    rooms = {room: (modules[room], lines[room]) for room in sorted(modules)}
    return {**rooms, "all": (sum(modules.values()), sum(lines.values()))}


def budgets() -> dict[str, tuple[int, int]]:
    """Return the most modules and code lines of each room, by the table of docs/architecture.md."""
    text = PAGE.read_text().partition(_HEADER)[2].partition("\n\n")[0]
    return {name: (int(modules), int(lines)) for name, modules, lines in _ROW.findall(text)}


def above_budget() -> list[str]:
    """Return what is above its budget, a sentence each."""
    allowed = budgets()
    found = []
    for room, (modules, lines) in sizes().items():
        most_modules, most_lines = allowed.get(room, (0, 0))
        if modules > most_modules or lines > most_lines:
            here, most = f"{modules} modules and {lines} code lines", f"{most_modules} and {most_lines}"
            found.append(f"{room}: {here}, its budget is {most}")
    return found


def one_line_run() -> dict[str, int]:
    """Return how many modules of the core a run of one `echo` on the host imports, and in how many it runs code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models.json").write_text(json.dumps(_CARD))
        (folder / "run.sh").write_text("echo performance: 1 x\n")
        answer = folder / "answer.json"
        words = ["run", "--tags", "one", "--runtime", "host"]
        subprocess.run(
            [sys.executable, "-c", _TRACED, str(CORE), str(answer), *words],
            cwd=folder,
            check=True,
            capture_output=True,
            env=_ENVIRON,
        )
        found: dict[str, int] = json.loads(answer.read_text())
        return found


def start_ratio(turns: int = 15) -> float:
    """Return the least time of `discover` over that of a bare interpreter, taken in turns."""
    least = {"discover": 9.0, "bare": 9.0}
    commands = {"discover": ["-m", "madlite", "discover"], "bare": ["-c", "pass"]}
    for _ in range(turns):
        for name, words in commands.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True, env=_ENVIRON)
            least[name] = min(least[name], time.perf_counter() - start)
    return least["discover"] / least["bare"]


def main() -> int:
    """Print rooms, budgets and figures, or check the budgets."""
    if "--check" in sys.argv:
        problems = above_budget()
        for text in problems:
            print(f"error: {text} ({PAGE.relative_to(ROOT)})", file=sys.stderr)  # noqa: T201
        return 1 if problems else 0
    allowed = budgets()
    for room, (modules, lines) in sizes().items():
        most = allowed.get(room, (0, 0))
        print(f"{room:17} {modules:4} modules of {most[0]:4}  {lines:6} code lines of {most[1]:6}")  # noqa: T201
    run = one_line_run()
    print(f"one-line run: {run['run']} modules run, {run['imported']} imported")  # noqa: T201
    print(f"discover: {start_ratio():.1f} times a bare interpreter's start")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
