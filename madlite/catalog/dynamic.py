"""scripts/<folder>/get_models_json.py → cards: runs the code that MAD's card authors write.

Contract, as madengine 1.0 and 2.1 have it: `list_models()` returns CustomModel objects; names get the folder's prefix
at once; `update_model()` runs only when its model is selected, and the fields it leaves are the card's.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from madlite.catalog.cards import FoundCard, make_card, refuse_duplicates, to_plain
from madlite.errors import CatalogError
from madlite.files import read_plain
from madlite.model import Card, Problem

# What a running get_models_json.py finds: madengine's CustomModel, its own folder, the checkout as cwd.
#
# Card authors import `CustomModel` from `madengine.tools.discover_models` (madengine 1) or
# `madengine.utils.discover_models` (madengine 2); both are there while the code runs, and only then.


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


class ModuleContext:
    """Modules, import path and working folder of one file's code, the same at each activation."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = str(folder)
        self._root = root
        self._modules = _madengine()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Activate the context, and restore modules, import path and folder afterwards."""
        modules, path, cwd = dict(sys.modules), list(sys.path), os.getcwd()  # noqa: PTH109
        bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # leave no __pycache__ in a checkout
        try:
            sys.modules.update(self._modules)  # an installed madengine has another CustomModel
            sys.path.insert(0, self._folder)
            os.chdir(self._root)
            with redirect_stdout(sys.stderr):  # ours may be read by a program
                yield
        finally:
            for name in sys.modules.keys() - modules.keys():
                if name in self._modules or self._is_own(sys.modules[name]):
                    del sys.modules[name]
            sys.modules.update({name: modules[name] for name in self._modules if name in modules})
            sys.path[:], sys.dont_write_bytecode = path, bytecode
            os.chdir(cwd)

    def add(self, module: ModuleType) -> None:
        """Make a module importable in this context."""
        sys.modules[module.__name__] = self._modules[module.__name__] = module

    def _is_own(self, module: ModuleType) -> bool:
        """Return whether a module is of the file's folder: two folders may each have one of the same name."""
        return str(getattr(module, "__file__", "")).startswith(f"{self._folder}{os.sep}")


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


def read_dynamic(file: Path, where: str, root: Path, scope: str) -> tuple[FoundCard | Problem, ...]:
    """Return the cards of a get_models_json.py, or the problem that prevents it.

    `where` names the file in messages, `root` is the checkout and `scope` the sub-folder of its scripts/.
    """
    script = _Script(file, where, root, scope)
    try:
        with script.running():
            models = script.list_models()
            cards = tuple(script.card(model, n) for n, model in enumerate(models))
            refuse_duplicates(cards, where)
            for model, card in zip(models, cards, strict=True):
                model.name = card.name  # update_model() finds it as madengine leaves it
    except CatalogError as error:
        return (Problem(where=where, what=error.message.removeprefix(f"{where}: ")),)
    finish = [cache(partial(script.finish, model, n)) for n, model in enumerate(models)]
    return tuple(FoundCard(card=card, finish=last) for card, last in zip(cards, finish, strict=True))


class _Script:
    """One get_models_json.py, with the context in which its code runs now and when a card is selected."""

    def __init__(self, file: Path, where: str, root: Path, scope: str) -> None:
        self._file, self._where, self._root, self._scope = file, where, root, scope
        self._context = ModuleContext(file.parent, root)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run code in the context; any exception of the file's code becomes a CatalogError that names the line."""
        try:
            with self._context.active():
                yield
        except (CatalogError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the card author's code: anything can come out of it
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise CatalogError(f"{self._where}: {_line_of(error, str(self._file))}{what}") from error

    def list_models(self) -> list[CustomModel]:
        """Execute the file and return what it lists."""
        module = ModuleType("get_models_json")
        module.__file__ = str(self._file)
        self._context.add(module)  # dataclasses look their module up while they are made
        exec(compile(read_plain(self._file), str(self._file), "exec"), module.__dict__)  # noqa: S102 - the contract
        models = list(module.__dict__["list_models"]()) if "list_models" in module.__dict__ else None
        if models is None:
            raise CatalogError(f"{self._where}: it defines no list_models()")
        for n, model in enumerate(models):
            if not isinstance(model, CustomModel):
                kind = type(model).__name__
                raise CatalogError(f"{self._where}: list_models()[{n}] must be a CustomModel, found a {kind}")
        return models

    def card(self, model: CustomModel, n: int) -> Card:
        """Return the model's card as the model stands."""
        entry = to_plain(model.to_dict())
        if isinstance(name := entry.get("name"), str):
            entry["name"] = name.removeprefix(f"{self._scope}/")  # make_card puts it there
        return make_card(entry, self._where, f"list_models()[{n}]", self._root, self._scope)

    def finish(self, model: CustomModel, n: int) -> Card:
        """Return the card of a model that was selected."""
        with self.running():
            model.update_model()
            return self.card(model, n)


def _line_of(error: BaseException, file: str) -> str:
    lines = [error.lineno] if isinstance(error, SyntaxError) and error.filename == file else []
    frames = traceback.walk_tb(error.__traceback__)
    lines += [line for frame, line in frames if frame.f_code.co_filename == file]
    return f"line {lines[-1]}: " if lines and lines[-1] else ""
