"""`madlite discover`: the catalogue as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.arguments import cards_text, contract, contract_option
from madlite.cli.options import TagsCommand, common_options, tag_words, tags_option
from madlite.cli.setup import cards_option
from madlite.cli.terminal import printable_lines, without_secrets
from madlite.model import Card, Json
from madlite.text import align

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.catalog.cards import Catalog


@click.command("discover", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@click.option("--all", "every", is_flag=True, help="In a checkout, list also the cards that come with madlite.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of cards in MAD's schema.")
@contract_option
@common_options
def command(
    tags: tuple[str, ...],
    cards_from: tuple[Path, ...],
    every: bool,
    as_json: bool,
    no_plugins: bool,
    verbose: bool,
) -> int:
    """List model cards, all of them or those that tags select.

    In a checkout without tags they are the checkout's, which `run` prefers.

    \b
    madlite discover
    madlite discover --tags demo --json
    """
    from madlite.catalog.select import args_of, select, split_tags

    plugins = setup.load(no_plugins, verbose)
    workspace = setup.find_workspace(touch=False)
    wanted = split_tags(tags)
    catalog = setup.load_cards(plugins, workspace, cards_from, wanted if tags else None)
    if tags:
        requests = select(catalog, wanted)
        cards = [(request.card, args_of(request)) for request in requests]
    else:
        cards = [(card, card.args) for card in (catalog.cards if every else _default_cards(catalog, cards_from))]
    text = _text(cards, plugins, workspace, as_json=as_json, selected=bool(tags))
    if (left := len(catalog.cards) - len(cards)) and not (tags or as_json or contract()):
        text += f" of this checkout; {left} more with --all"
    setup.print_problems(plugins.problems)
    click.echo(without_secrets(text))
    return 0


def _default_cards(catalog: Catalog, trees: Sequence[Path]) -> tuple[Card, ...]:
    """Return the cards of the checkout, which `run` prefers, and of folders that were named; all where it has none."""
    if not catalog.checkout:
        return catalog.cards
    named = {str(tree) for tree in trees}
    far = (found.card for found in catalog.installed if found.card.source in named)
    return (*(found.card for found in catalog.checkout), *far)


def _text(
    cards: Sequence[tuple[Card, str]], plugins: Plugins, workspace: Path, *, as_json: bool, selected: bool
) -> str:
    if as_json:
        return json.dumps([as_mad(card, args) for card, args in cards], indent=4)
    if version := contract():
        return cards_text(version, [as_mad(card, args) for card, args in cards], as_json=selected)
    return printable_lines(_table(cards, plugins, workspace))


def as_mad(card: Card, args: str) -> dict[str, Json]:
    """Return a card in MAD's schema; fields it does not use are left out, unknown ones are kept."""
    own: dict[str, Json] = {
        "name": card.name,
        "url": card.url,
        "dockerfile": card.dockerfile,
        "dockercontext": card.dockercontext,
        "scripts": card.scripts,
        "data": ",".join(card.data),
        "cred": card.cred,
        "n_gpus": card.n_gpus,
        "owner": card.owner,
        "training_precision": card.training_precision,
        "multiple_results": card.multiple_results,
        "tags": list(card.tags),
        "timeout": -1 if card.timeout_s is None else card.timeout_s,
        "args": args,
        "skip_gpu_arch": ",".join(card.skip_gpu_arch),
        "additional_docker_run_options": card.additional_docker_run_options,
        "backend": card.backend,
        "recipe": card.recipe,
        "image": card.image,
        "runtimes": list(card.runtimes),
        "is_deprecated": card.is_deprecated,
    }
    always = {"name", "n_gpus", "tags", "args", "timeout"}
    return {**{key: value for key, value in own.items() if value or key in always}, **card.extra}


def _table(cards: Iterable[tuple[Card, str]], plugins: Plugins, workspace: Path) -> str:
    from madlite.run.backend_choice import claimants

    backends = plugins.backends()
    rows = [("NAME", "GPUS", "PRECISION", "RUNS BY", "FROM", "TAGS")]
    for card, _ in cards:
        gpus = "all" if card.n_gpus == "-1" else card.n_gpus
        owners = [card.backend] if card.backend else claimants(card, backends, plugins, workspace)
        by = _runner(card, owners)
        rows.append((card.name, gpus, card.training_precision or "-", by, card.source, ",".join(card.tags)))
    return "\n".join([*align(rows), "1 model" if len(rows) == 2 else f"{len(rows) - 1} models"])


def _runner(card: Card, owners: Sequence[str]) -> str:
    """Return the backend that would run the card here, or of a card's own script that."""
    if not owners:
        return "a MAD checkout" if card.scripts else "-"
    return card.scripts if list(owners) == ["script"] else "/".join(owners)
