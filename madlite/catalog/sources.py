"""Where cards come from: the working folder, whose programs may list some, plugins, and what comes with madlite."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from madlite.catalog.cards import Catalog, FoundCard, make_card, read_cards, to_plain
from madlite.errors import CatalogError, inline_hint
from madlite.files import read_plain
from madlite.model import CardItem, Json, Problem, TreeCards

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
            where = f"scripts/{name}/get_models_json.py"
            from madlite.catalog.dynamic import read_dynamic

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


# What comes with madlite: the bundled models.json and the templates.


_PACKAGE = Path(__file__).parents[1]


def bundled_models(home: Path | None) -> Path:
    """Return the models.json that comes with madlite; `home` is $MADLITE_HOME, which comes before every other place.

    Raises:
        CatalogError: it is not there.
    """
    return _find_shipped("models.json", home)


def template_root(home: Path | None) -> Path:
    """Return the folder of templates that comes with madlite; `home` is $MADLITE_HOME, as above.

    Raises:
        CatalogError: it is not there.
    """
    return _find_shipped("templates", home)


def _find_shipped(name: str, home: Path | None) -> Path:
    # A wheel carries them as package data; an editable install leaves them where the checkout has them.
    places = [home] if home else [_PACKAGE / "data", _PACKAGE.parent]
    for place in places:
        if (place / name).exists():
            return place / name
    if home:
        raise CatalogError(
            f"MADLITE_HOME={home} holds no {name}", "unset MADLITE_HOME, or put models.json and templates/ there"
        )
    raise CatalogError(
        f"madlite's own {name} is in none of {', '.join(map(str, places))}", "pip install --force-reinstall madlite"
    )
