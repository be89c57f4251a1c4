"""Shell completion by click's own mechanism: tags, cards and ids of runs, read from files alone.

No code of a card or a plugin is executed, no engine and no network is queried, and on any error nothing is completed:
a completion cannot show a message.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

VARIABLE = "_MADLITE_COMPLETE"  # click's name of it for a program that is called madlite
_WORDS = "madlite.words"  # in a context's meta: the words of the command before click reads them
# What every shell puts on its line as it stands: a card of a checkout may have the name `$(rm -rf ~)`.
_SAFE = re.compile(r"[\w@%+.,/-]+", re.ASCII)


def complete_shell(group: click.Group, instruction: str) -> int:
    """Print the completion that a shell requests, `bash_source` or `bash_complete`; nothing on an error (code 1)."""
    shell, _, what = instruction.partition("_")
    kind = get_completion_class(shell)
    if kind is None or what not in ("source", "complete"):
        return 1
    completer = kind(group, {}, "madlite", VARIABLE)
    if what == "source":
        click.echo(completer.source())
        return 0
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            text = _completions(completer)
    except Exception:  # noqa: BLE001 - a broken folder or plugin completes nothing; its command reports why
        return 1
    if text:
        sys.stdout.write(f"{text}\n")
    return 0


def _completions(completer: ShellComplete) -> str:
    """Return click's answer; bash hands `--tags=a` over as three words, and what follows a colon is no name."""
    words, incomplete = completer.get_completion_args()
    if words[-1:] == [":"] or incomplete == ":":
        return ""
    if incomplete == "=":
        incomplete = ""
    elif words[-1:] == ["="]:
        words = words[:-1]
    return "\n".join(map(completer.format_completion, completer.get_completions(words, incomplete)))


def store_args(ctx: click.Context, words: Sequence[str]) -> None:
    """Store the arguments of a command that is being completed."""
    ctx.meta[_WORDS] = tuple(words)


def is_value_of(ctx: click.Context, options: Iterable[str]) -> bool:
    """Return whether the argument to complete belongs to one of these options, which take several values."""
    words: tuple[str, ...] = ctx.meta.get(_WORDS, ())
    last = next((at for at in range(len(words) - 1, -1, -1) if words[at].startswith("-")), None)
    return last is not None and words[last].partition("=")[0] in options


def complete_tags(ctx: click.Context, param: click.Parameter | None, incomplete: str) -> list[CompletionItem]:
    """Return names and tags of cards; of words with commas the last is completed."""
    before, comma, part = incomplete.rpartition(",")
    names = (name for name in dict.fromkeys(_names_of_cards()) if name.startswith(part) and _SAFE.fullmatch(name))
    return [CompletionItem(f"{before}{comma}{name}") for name in names]


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return ids of runs, the newest first, by how they begin or else by any part, and `last`."""
    from madlite.reports.runs import LAST, names_with

    names = _ids(ctx)
    found = names_with(names, incomplete) if incomplete else names
    last = [LAST] if names and LAST.startswith(incomplete) else []
    return [CompletionItem(name) for name in (*last, *found)]


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return files, and of what begins as the id of a run those ids."""
    names = complete_run(ctx, param, incomplete) if incomplete else []
    names = [item for item in names if item.value.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *names]


def _ids(ctx: click.Context) -> list[str]:
    from madlite.reports.runs import run_names, runs_folder

    folder = ctx.params.get("directory") or Path()
    return [name for name in reversed(run_names(runs_folder(Path(folder)))) if _SAFE.fullmatch(name)]


def _names_of_cards() -> Iterator[str]:
    """Yield the names of all cards that are written down, then their tags; no program that lists cards is executed."""
    from madlite.bundled import bundled_models
    from madlite.catalog.sources import load_catalog
    from madlite.cli.model_dir import find_workspace, home

    shipped = [(entry.name, folder, [Path("models.json")]) for entry in _plugins() for folder in _card_folders(entry)]
    catalog = load_catalog(find_workspace(touch=False), bundled_models(home()), shipped, wanted=())
    yield from (card.name for card in catalog.cards)
    yield from (tag for card in catalog.cards for tag in card.tags)


def _plugins() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group="madlite")


def _card_folders(entry: EntryPoint) -> Iterator[Path]:
    """Yield the folder of a plugin that has a models.json beside its module; the module is looked for, not imported."""
    from importlib.util import find_spec

    package, *below = entry.module.split(".")
    spec = find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place, *below)
        if (folder / "models.json").is_file():
            yield folder
            return
