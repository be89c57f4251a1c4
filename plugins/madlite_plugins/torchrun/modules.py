"""Whether `-m package.module` can be run: searched for in files, for to import a user's package is to run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from madlite import Finding, RunPlan
from madlite_plugins.torchrun.places import is_file

_FOLDERS = ("", "site-packages", "dist-packages")  # below lib/python3.X of an interpreter


def module_findings(plan: RunPlan, name: str) -> Iterator[Finding]:
    """Yield that a module cannot be run; for certain where the run's Python is madlite's own."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        yield Finding(
            message=f"'{name}' is no module's name",
            hint="write it like -m package.module",
            fatal=True,
            keys=("script", "module"),
        )
        return
    root = plan.workspace / str(plan.settings["cwd"])
    if any(_runs(folder, parts) for folder in (root, *_stated(plan, root))):
        return
    if is_file(root / parts[0] / "__init__.py"):
        yield _lacking(root / parts[0], name, parts)
    elif plan.traits.containerised:
        yield Finding(message=f"module {name} is not in {root}: it has to be installed where the run happens")
    else:
        yield from _installed(plan, root, name, parts)


def _installed(plan: RunPlan, root: Path, name: str, parts: Sequence[str]) -> Iterator[Finding]:
    """Yield that the run's Python on this machine has no such module, or may have none."""
    python = str(plan.env.get("MADLITE_PYTHON", ""))
    hint = "install it there, name the folder that it is in (--set cwd=FOLDER), or a file: --set script=FILE"
    if python != sys.executable:
        if not any(_runs(folder, parts) for folder in _sites(python)):
            yield Finding(
                message=f"module {name} is neither in {root} nor seen among the packages of {python}", hint=hint
            )
        return
    folders = _package(parts[0])
    if folders is None:
        message = f"module {name} is not there: {root} has no {parts[0]}, and {python} has none installed"
        yield Finding(message=message, hint=hint, fatal=True, keys=("script", "module", "runtime"))
    elif folders and not any(_runs(folder, ("", *parts[1:])) for folder in folders):
        yield _lacking(folders[0], name, parts)


def _lacking(package: Path, name: str, parts: Sequence[str]) -> Finding:
    path = package.joinpath(*parts[1:])
    would_be = path.with_suffix(".py") if len(parts) > 1 else path / "__main__.py"
    message = f"package {parts[0]} of {package.parent} has no module {name} that can be run"
    return Finding(message=message, hint=f"it would be {would_be}", fatal=True, keys=("script", "module", "runtime"))


def _runs(folder: Path, parts: Sequence[str]) -> bool:
    path = folder.joinpath(*parts)
    return is_file(path / "__main__.py") or (bool(parts[-1]) and is_file(path.with_suffix(".py")))


def _stated(plan: RunPlan, root: Path) -> list[Path]:
    """Return the folders that the run's PYTHONPATH names."""
    return [root / folder for folder in str(plan.env.get("PYTHONPATH", "")).split(os.pathsep) if folder]


def _sites(python: str) -> Iterator[Path]:
    """Yield where another interpreter keeps what is installed for it, as far as its path tells."""
    if Path(python).is_absolute():
        for library in sorted(Path(python).parent.parent.glob("lib/python3*")):
            yield from (library / name for name in _FOLDERS)


def _package(name: str) -> list[Path] | None:
    """Return the folders of a package that madlite's own Python has, [] where they are not told; None without it."""
    try:
        spec = find_spec(name)  # of a name without a dot: nothing is imported
    except (ImportError, ValueError, AttributeError):  # there, and with nothing said of where
        return []
    if spec is None:
        return None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    return folders if all(folder.is_dir() for folder in folders) else []
