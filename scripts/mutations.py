"""Break the core in one place per room and show that a test of `make test` notices each.

    python scripts/mutations.py            every mutation: a line each, and 1 at the end where one is not noticed
    python scripts/mutations.py store      those of one room
    python scripts/mutations.py --list     what is replaced by what

A mutation is applied to a copy of what git tracks, as it is in the working tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tomli

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")


def mutations(rooms: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return the table's entries, of some rooms or all: file, old, new, why, and the tests that must fail."""
    entries: list[dict[str, str]] = tomli.loads(TABLE.read_text())["mutation"]
    return [entry for entry in entries if not rooms or entry["file"].split("/")[1].removesuffix(".py") in rooms]


def mutate(entry: dict[str, str], tree: Path) -> str:
    """Replace the entry's text, which has to stand once in its file, and return what stood in the file."""
    path = tree / entry["file"]
    text = path.read_text()
    if text.count(entry["old"]) != 1:
        raise SystemExit(f"error: {entry['file']} has {entry['old']!r} {text.count(entry['old'])} times, not once")
    path.write_text(text.replace(entry["old"], entry["new"]))
    return text


def is_noticed(entry: dict[str, str], tree: Path) -> bool:
    """Return whether one of the tests that the entry names fails in a tree that has its mutation."""
    environ = {**os.environ, "PYTHONPATH": f"{tree}:{tree}/plugins", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    argv += ["-m", "not training and not full and not kubernetes", *entry["tests"].split()]
    done = subprocess.run(argv, check=False, cwd=tree, env=environ, capture_output=True, text=True)
    has_failed = done.returncode == 1 and " failed" in done.stdout
    if done.returncode and not has_failed:  # pytest or the tests themselves are not there
        raise SystemExit(f"error: {' '.join(argv)} ended with {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
    return has_failed


def copy_to(tree: Path) -> None:
    """Copy what git tracks here, as it is in the working tree."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S607
    for name in filter(None, names.decode().split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)


def main(arguments: Sequence[str]) -> int:
    """Apply the mutations of some rooms, or all; return 1 where one is not noticed."""
    chosen = mutations([name for name in arguments if not name.startswith("-")])
    if "--list" in arguments:
        sys.stdout.writelines(f"{entry['file']}: {entry['old']}  →  {entry['new']}\n" for entry in chosen)
        return 0
    missed = 0
    with tempfile.TemporaryDirectory(prefix="madlite_mutations_") as folder:
        tree = Path(folder)
        copy_to(tree)
        for entry in chosen:
            text = mutate(entry, tree)
            noticed = is_noticed(entry, tree)
            (tree / entry["file"]).write_text(text)
            missed += not noticed
            sys.stdout.write(
                f"{'noticed' if noticed else 'MISSED '}  {entry['file']}: {entry['why']} ({entry['tests']})\n"
            )
            sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
