"""The catalogue of a command line: the working folder's cards, plugins' own and those of `--cards-from`, madlite's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from madlite.backends.loader import Plugins
from madlite.catalog.cards import Catalog
from madlite.errors import UsageProblem
from madlite.model import CardItem, TreeCards

F = TypeVar("F", bound=Callable[..., Any])


def cards_option(function: F) -> F:
    """Add --cards-from, which $MADLITE_CARDS_FROM stands in for."""
    return click.option(
        "--cards-from",
        type=click.Path(path_type=Path),
        multiple=True,
        envvar="MADLITE_CARDS_FROM",
        show_envvar=True,
        metavar="DIR",
        help="Also the cards that a plugin makes of this folder, e.g. a Primus checkout. Repeatable.",
    )(function)


def make_catalog(
    plugins: Plugins, workspace: Path, bundled: Path, trees: Sequence[Path], tags: Sequence[str] | None = None
) -> Catalog:
    """Return every card there is; `trees` are the folders of `--cards-from`.

    With `tags`, programs that list cards are executed only where they may list one that is selected.

    Raises:
        UsageProblem: one of them is no folder, or none that a plugin knows.
        CatalogError: as `load_catalog`.
    """
    from madlite.catalog.select import heads
    from madlite.catalog.sources import load_catalog

    trees = tuple(dict.fromkeys(trees))
    for tree in trees:
        _check_folder(tree)
    shipped: dict[str, tuple[Path, list[CardItem]]] = {}
    for plugin, item in plugins.collect("madlite_cards", trees=trees):
        shipped.setdefault(plugin.name, (plugin.folder or workspace, []))[1].append(item)
    items = [item for _, items in shipped.values() for item in items]
    _refuse_unknown(trees, {item.tree for item in items if isinstance(item, TreeCards)}, plugins)
    wanted = heads(tags) if tags is not None else None
    return load_catalog(workspace, bundled, [(name, *rest) for name, rest in shipped.items()], wanted)


def _check_folder(tree: Path) -> None:
    from madlite.files import is_folder, shown

    if not is_folder(tree):
        raise UsageProblem(f"cards from {shown(tree)}: there is no such folder", "--cards-from DIR")


def _refuse_unknown(trees: Sequence[Path], known: set[Path], plugins: Plugins) -> None:
    from madlite.files import shown

    if unknown := [tree for tree in trees if tree not in known]:
        broken = "".join(f"; {problem.where}: {problem.what}" for problem in plugins.problems)
        raise UsageProblem(
            f"cards from {shown(unknown[0])}: no plugin makes cards of this folder{broken}",
            "name the folder itself that a plugin reads, such as a clone of https://github.com/AMD-AGI/Primus",
        )
