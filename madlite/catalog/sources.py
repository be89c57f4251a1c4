"""Where cards come from: the working folder and its get_models_json.py, plugins, and madlite itself."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from madlite.catalog.cards import Catalog, FoundCard, make_card, read_cards, refuse_duplicates, to_plain
from madlite.errors import CatalogError, inline_hint
from madlite.files import read_plain
from madlite.model import Card, CardItem, Json, Problem, TreeCards

PluginCards: TypeAlias = tuple[str, Path, Iterable[CardItem]]
"""A plugin's name, the folder its paths are relative to, and what its `madlite_cards` returned."""


def load_catalog(
    workspace: Path,
    bundled: Path | None,
    plugin_cards: Sequence[PluginCards] = (),
    wanted: Collection[str] | None = None,
) -> Catalog:
    """Return all cards, and the problems of those that were left out.

    A nearer card hides those of its name farther off: first the working folder's, then plugins', then madlite's own
    in the file `bundled`.  Each get_models_json.py of the working folder is executed; where only some cards are
    `wanted`, by the names or tags given, those alone that may list one of them, and the cards of others are left out.

    Raises:
        CatalogError: a models.json of the working folder or `bundled` is broken, or there is no card at all.
    """
    workspace = workspace.absolute()  # programs run with it as their working folder
    problems: list[Problem] = []
    near = _first_of_each(_of_checkout(workspace, wanted), problems)
    far = _first_of_each((item for plugin in plugin_cards for item in _of_plugin(*plugin)), problems)
    for found in _read(bundled, "bundled models.json", bundled.absolute().parent) if bundled else ():
        far.setdefault(found.card.name, found)
    installed = tuple(found for name, found in far.items() if name not in near)
    catalog = Catalog(checkout=tuple(near.values()), installed=installed, problems=tuple(problems))
    _refuse_empty(catalog, workspace)
    return catalog


def _of_checkout(workspace: Path, wanted: Collection[str] | None) -> Iterator[FoundCard | Problem]:
    file = workspace / "models.json"
    own = _read(file, "models.json", workspace) if os.path.lexists(file) else ()
    folders = {name: _static_of(workspace, name) for name in _folders(workspace / "scripts")}
    names = {found.card.name for cards in (own, *folders.values()) for found in cards or ()}
    programs = {name for name, cards in folders.items() if cards is None}
    run = programs if wanted is None else _needed(wanted, names, programs)
    yield from own
    for name, cards in folders.items():
        if cards is not None:
            yield from cards
        elif name in run:
            from madlite.catalog.sources import read_dynamic

            where = f"scripts/{name}/get_models_json.py"
            yield from read_dynamic(workspace / where, where, workspace, name)


def _needed(wanted: Iterable[str], names: Collection[str], programs: Collection[str]) -> set[str]:
    """Return the folders whose programs must run to find the wanted cards.

    None for the full name of a card that is written down, one for `folder/name`; a tag may be any folder's, and
    madengine takes them all.
    """
    found: set[str] = set()
    for item in wanted:
        folder, slash, _ = item.partition("/")
        if item in names:
            continue
        found |= {folder} if slash and folder in programs else set(programs)
    return found


def _folders(scripts: Path) -> list[str]:
    try:
        with os.scandir(scripts) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CatalogError(f"scripts/ cannot be read: {error.strerror}", f"look at {scripts}") from error


def _static_of(workspace: Path, scope: str) -> tuple[FoundCard, ...] | None:
    """Return the cards that are written down in a folder of scripts/, None where a program lists them."""
    folder = workspace / "scripts" / scope
    static, program = folder / "models.json", folder / "get_models_json.py"
    has_static, has_program = os.path.lexists(static), os.path.lexists(program)
    if has_static and has_program:
        raise CatalogError(
            f"scripts/{scope} holds both models.json and get_models_json.py", "keep one of them: only one can count"
        )
    if has_static:
        return _read(static, f"scripts/{scope}/models.json", workspace, scope)
    return None if has_program else ()


def _of_plugin(name: str, base: Path, given: Iterable[CardItem]) -> Iterator[FoundCard | Problem]:
    for n, item in enumerate(given):
        where = f"plugin {name}"
        if isinstance(item, TreeCards):
            tree = item.tree.absolute()
            for each, found in enumerate(item.found):
                yield from _of_item(found, str(item.tree), f"cards[{each}]", tree)
        else:
            yield from _of_item(item, where, f"cards[{n}]", base)


def _of_item(
    item: Mapping[str, Json] | Path | Problem, where: str, at: str, root: Path
) -> Iterator[FoundCard | Problem]:
    if isinstance(item, Problem):
        yield item
        return
    try:
        if isinstance(item, Path):
            yield from _read(root / item, where, (root / item).parent)
        elif isinstance(item, Mapping):
            yield FoundCard(card=make_card(to_plain(item), where, at, root))
        else:
            raise TypeError(f"{at} must be a mapping or a Path, found a {type(item).__name__}")
    except (CatalogError, TypeError, ValueError, RecursionError) as error:
        yield Problem(where=where, what=_what(error, f"{where}: "))


def _what(error: Exception, prefix: str) -> str:
    text = str(error).removeprefix(prefix)
    return f"{text} ({inline_hint(error.hint)})" if isinstance(error, CatalogError) and error.hint else text


def _read(file: Path, where: str, root: Path, scope: str = "") -> tuple[FoundCard, ...]:
    try:
        return tuple(FoundCard(card=card) for card in read_cards(read_plain(file), where, root, scope))
    except OSError as error:
        raise CatalogError(f"{where} cannot be read: {error.strerror}", f"look at {file}") from error
    except CatalogError as error:
        raise CatalogError(error.message, f"correct {file}") from error


def _first_of_each(items: Iterable[FoundCard | Problem], problems: list[Problem]) -> dict[str, FoundCard]:
    """Return cards by name; what is broken or comes second goes to `problems`."""
    first: dict[str, FoundCard] = {}
    second: dict[tuple[str, str], list[str]] = {}
    for item in items:
        if isinstance(item, Problem):
            problems.append(item)
        elif (earlier := first.setdefault(item.card.name, item)) is not item:
            second.setdefault((item.card.source, earlier.card.source), []).append(item.card.name)
    problems += [_left_out(names, where, earlier) for (where, earlier), names in second.items()]
    return first


def _left_out(names: Sequence[str], where: str, earlier: str) -> Problem:
    """Return one problem for all hidden cards of a source: two folders of --cards-from may be versions of one."""
    what = f"its card {names[0]!r} is left out: {earlier} has one of that name"
    if len(names) > 1:
        what = f"{len(names)} of its cards are left out, {names[0]!r} first: {earlier} has some of their names"
    return Problem(where=where, what=what)


def _refuse_empty(catalog: Catalog, workspace: Path) -> None:
    if catalog.cards:
        return
    broken = "".join(f"; {problem.where}: {problem.what}" for problem in catalog.problems)
    raise CatalogError(
        f"there is no model card: {workspace} has no models.json or scripts/*/models.json with any, and madlite "
        f"brings none{broken}",
        "run madlite in a MAD checkout, or pip install --force-reinstall madlite for its own cards",
    )


# scripts/<folder>/get_models_json.py → cards: runs the code that MAD's card authors write.
#
# Contract, as madengine 1.0 and 2.1 have it: `list_models()` returns CustomModel objects; names get the folder's prefix
# at once; `update_model()` runs only when its model is selected, and the fields it leaves are the card's.

# The environment of a running get_models_json.py: madengine's CustomModel, its own folder, the checkout as cwd.
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
    """Modules, import path, environment and working folder of one file's code, the same at each activation."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = str(folder)
        self._root = root
        self._modules = _madengine()
        self._environ: dict[str, str] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Activate the context, and restore modules, import path, environment and folder afterwards."""
        environ = dict(os.environ)
        modules, path, cwd = dict(sys.modules), list(sys.path), os.getcwd()  # noqa: PTH109
        bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # leave no __pycache__ in a checkout
        try:
            self._enter()
            with _stdout_on_stderr():
                yield
        finally:
            self._leave(modules, [entry for entry in sys.path if entry not in path])
            sys.path[:], sys.dont_write_bytecode = path, bytecode
            os.chdir(cwd)
            self._environ = dict(os.environ)
            _set_environment(environ)

    def add(self, module: ModuleType) -> None:
        """Make a module importable in this context."""
        sys.modules[module.__name__] = self._modules[module.__name__] = module

    def _enter(self) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "madengine"]:
            del sys.modules[name]  # an installed madengine has another CustomModel
        sys.modules.update(self._modules)
        sys.path.insert(0, self._folder)
        os.chdir(self._root)
        if self._environ is not None:  # variables that the code set when it was loaded
            _set_environment(self._environ)

    def _leave(self, before: dict[str, ModuleType], folders: list[str]) -> None:
        """Remove the code's own modules: two folders may each have a module of the same name."""
        for name, module in list(sys.modules.items()):
            if name not in before and _is_in(module, folders):
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


def _is_in(module: ModuleType, folders: list[str]) -> bool:
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return any(str(file).startswith(f"{folder}{os.sep}") for folder in folders if folder)


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Send prints, and what started programs print, to standard error: ours may be read by a program."""
    try:
        saved = os.dup(1)
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
        os.dup2(saved, 1)
        os.close(saved)


def read_dynamic(file: Path, where: str, root: Path, scope: str) -> tuple[FoundCard | Problem, ...]:
    """Return the cards of a get_models_json.py, or the problem that prevents it.

    `where` names the file in messages, `root` is the checkout and `scope` the sub-folder of its scripts/.
    """
    script = _Script(file, where, root, scope)
    try:
        with script.running():
            models = script.list_models()
            cards = tuple(script.card(model, n) for n, model in enumerate(models))
            refuse_duplicates(cards, where, "list_models()")
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
