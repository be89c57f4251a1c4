"""Which backends the kit tests in full: of those that are as they were when all tests passed a sample does.

scripts/full-test-passed names that commit.  Where git does not know it, as in a shallow clone, nothing is as it was.
"""

from __future__ import annotations

import inspect
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.kit.built_in import ROOT, plugins, subject
from tests.tiers import ALL

ALWAYS = "torchtitan"
PASSED = ROOT / "scripts/full-test-passed"
_PLUGINS = ROOT / "plugins"
_SHARED = ("templates/_",)  # how the names of the templates begin that those of the backends extend
_IMPORT = re.compile(r"^ *(?:from|import) (madlite_plugins[\w.]*)(?: import \(?([\w, ]*))?", re.MULTILINE)


@cache
def is_in_full(name: str) -> bool:
    """Say whether all plans and logs of a backend are tested."""
    changed = _changed(PASSED.read_text().strip())
    return ALL or name == ALWAYS or changed is None or any(path.startswith(_files_of(name)) for path in changed)


@cache
def _changed(commit: str) -> tuple[str, ...] | None:
    """Return the files that differ from a commit, or None where git cannot tell."""
    command = ["git", "-C", str(ROOT), "diff", "--name-only", commit, "--"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return tuple(done.stdout.split())


def _files_of(name: str) -> tuple[str, ...]:
    """Return how the paths begin of what a backend is made of, and of what it is tested with."""
    backend, _ = plugins().backends()[name]
    files = {Path(inspect.getfile(one)) for one in type(backend).__mro__ if one.__module__.startswith("madlite")}
    tested = subject(name, whole=True)
    files |= {*tested.logs, *tested.outputs, *tested.docs, *_imported(files)}
    own = (f"plugins/madlite_plugins/{name}/", f"templates/{name}/")
    return (*own, *_SHARED, *(str(file.resolve().relative_to(ROOT)) for file in files))


def _imported(files: Iterable[Path]) -> set[Path]:
    """Return the plugins' modules that some import, and what those import in turn."""
    found: set[Path] = set()
    coming = {file for file in files if _PLUGINS in file.parents}
    while coming:
        found |= coming
        names = {name for file in coming for match in _IMPORT.finditer(file.read_text()) for name in _named(match)}
        places = {_PLUGINS / name.replace(".", "/") for name in names}
        modules = {place.with_suffix(".py") for place in places} | {place / "__init__.py" for place in places}
        coming = {module for module in modules if module.is_file()} - found
    return found


def _named(match: re.Match[str]) -> list[str]:
    """Return a module that an import names, and what may be modules in it."""
    module, names = match.groups()
    return [module, *(f"{module}.{name.split()[0]}" for name in (names or "").split(",") if name.strip())]
