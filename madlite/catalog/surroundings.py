"""What a get_models_json.py sees while it runs: madengine's CustomModel, its own folder, the checkout as cwd.

Card authors import `CustomModel` from `madengine.tools.discover_models` (madengine 1) or
`madengine.utils.discover_models` (madengine 2); both are there while the code runs, and only then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass
class CustomModel:
    """A card as Python code; fields and defaults are madengine's, subclasses may add some."""

    name: str
    dockerfile: str = ""
    dockercontext: str = ""
    scripts: str = ""
    url: str = ""
    cred: str = ""
    owner: str = ""
    data: str = ""
    n_gpus: str = "-1"
    timeout: int = 7200
    training_precision: str = ""
    tags: list[str] = field(default_factory=list)
    args: str = ""
    multiple_results: str = ""
    skip_gpu_arch: str = ""

    def update_model(self) -> None:
        """Complete the card; called once it is selected. Subclasses override it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the card's fields, those of subclasses too."""
        return asdict(self)


class Surroundings:
    """The modules, import path, environment and working folder of one file's code, the same each time it is entered."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = str(folder)
        self._root = root
        self._modules = _madengine()
        self._environ: dict[str, str] | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Put the surroundings in place, and these back as they were: modules, import path, environment, folder."""
        environ = dict(os.environ)
        modules, path, cwd = dict(sys.modules), list(sys.path), os.getcwd()  # noqa: PTH109
        bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # leave no __pycache__ in a checkout
        try:
            self._take_over()
            with _stdout_on_stderr():
                yield
        finally:
            self._keep_own(modules, [entry for entry in sys.path if entry not in path])
            sys.path[:], sys.dont_write_bytecode = path, bytecode
            os.chdir(cwd)
            self._environ = dict(os.environ)
            _set_environment(environ)

    def add(self, module: ModuleType) -> None:
        """Make a module importable in these surroundings, from now on."""
        sys.modules[module.__name__] = self._modules[module.__name__] = module

    def _take_over(self) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "madengine"]:
            del sys.modules[name]  # a real one would bring another CustomModel
        sys.modules.update(self._modules)
        sys.path.insert(0, self._folder)
        os.chdir(self._root)
        if self._environ is not None:  # what the code set for itself when it was loaded
            _set_environment(self._environ)

    def _keep_own(self, before: dict[str, ModuleType], folders: list[str]) -> None:
        """Take the code's own modules out again: two folders may each have a module of the same name."""
        for name, module in list(sys.modules.items()):
            if name not in before and _lies_in(module, folders):
                self._modules[name] = module
        for name in self._modules:
            sys.modules.pop(name, None)
        lost = {name: module for name, module in before.items() if name not in sys.modules}
        sys.modules.update(lost)


def _madengine() -> dict[str, ModuleType]:
    names = ("madengine", "madengine.tools", "madengine.utils")
    modules = {name: ModuleType(name) for name in names}
    for parent in names[1:]:
        modules["madengine"].__dict__[parent.rpartition(".")[2]] = modules[parent]
        leaf = modules[f"{parent}.discover_models"] = ModuleType(f"{parent}.discover_models")
        modules[parent].__dict__["discover_models"] = leaf
        leaf.__dict__["CustomModel"] = CustomModel
    for name in names:
        modules[name].__path__ = []  # a package without other modules
    return modules


def _set_environment(wanted: dict[str, str]) -> None:
    if dict(os.environ) != wanted:
        os.environ.clear()
        os.environ.update(wanted)


def _lies_in(module: ModuleType, folders: list[str]) -> bool:
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return any(str(file).startswith(f"{folder}{os.sep}") for folder in folders if folder)


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Send prints, and what started programs print, to standard error: ours may be read by a program."""
    try:
        kept = os.dup(1)
    except OSError:  # closed
        yield
        return
    try:
        sys.stdout.flush()
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()  # what was written past the redirection
        os.dup2(kept, 1)
        os.close(kept)
