"""Lists: cards of `madlite discover`, plugins and GPUs of `doctor`, published figures of `compare`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from madlite.backends.loader import Plugin, Plugins
from madlite.catalog.cards import Catalog, args_of, select, split_tags
from madlite.cli import setup
from madlite.cli.arguments import cards_text, contract, contract_option
from madlite.cli.options import Command, TagsCommand, common_options, models_options, section, verbose_option
from madlite.cli.setup import find_workspace, print_problems
from madlite.cli.terminal import echo, echo_json, echo_lines, printable_lines, without_secrets
from madlite.model import Card, Json, Request
from madlite.plan.context import Context
from madlite.text import align


@click.command("discover", cls=TagsCommand)
@models_options
@click.option("--all", "every", is_flag=True, help="In a checkout, list also the cards that come with madlite.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of cards in MAD's schema.")
@section("Results")
@contract_option
@common_options
def discover(tags: tuple[str, ...], cards_from: tuple[Path, ...], every: bool, as_json: bool, no_plugins: bool) -> None:
    """List model cards, all of them or those that tags select.

    In a checkout without tags they are the checkout's, which `run` prefers.

    \b
    madlite discover
    madlite discover --tags demo --json
    """
    plugins = setup.load(no_plugins)
    workspace = find_workspace(touch=False)
    wanted = split_tags(tags)
    catalog = setup.load_cards(plugins, workspace, cards_from, wanted if tags else None)
    print_problems(catalog.problems)
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
    from madlite.plan.manifest import card_entry

    always = {"name", "n_gpus", "tags", "args", "timeout", *card.extra}
    entry = card_entry(Request(card=card, tag=card.name), args)
    entry.setdefault("timeout", -1)
    return {key: value for key, value in entry.items() if value or key in always}


def _table(cards: Iterable[tuple[Card, str]], plugins: Plugins, workspace: Path) -> str:
    from madlite.run.backend_choice import owner_names

    rows = [("NAME", "GPUS", "PRECISION", "RUNS BY", "FROM", "TAGS")]
    for card, _ in cards:
        gpus = "all" if card.n_gpus == "-1" else card.n_gpus
        owners = owner_names(card, plugins, workspace)
        by = _runner(card, owners)
        rows.append((card.name, gpus, card.training_precision or "-", by, card.source, ",".join(card.tags)))
    return "\n".join([*align(rows), "1 model" if len(rows) == 2 else f"{len(rows) - 1} models"])


def _runner(card: Card, owners: Sequence[str]) -> str:
    """Return the backend that would run the card here, or of a card's own script that."""
    if not owners:
        return "a MAD checkout" if card.scripts else "-"
    return card.scripts if list(owners) == ["script"] else "/".join(owners)


@click.command("doctor --plugins", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@common_options
def plugins_command(as_json: bool, no_plugins: bool) -> None:
    """List plugins, their hooks and what is wrong with them."""
    plugins = setup.load(no_plugins)
    listed = _plugin_facts(plugins)
    if as_json:
        problems = [{"where": problem.where, "what": problem.what} for problem in plugins.problems]
        echo_json({"plugins": listed, "problems": problems})
        return
    for facts, plugin in zip(listed, plugins.loaded.values(), strict=True):
        origin = "built in" if plugin.built_in else f"{plugin.distribution} {plugin.version}"
        echo(f"{plugin.name}  ({origin})")
        echo(f"    hooks     {', '.join(plugin.hooks) or 'none'}")
        for word, names in (("backends", "backends"), ("runtimes", "runtimes"), ("exports to", "exporters")):
            if brought := [*facts[names]]:
                echo(f"    {word}  {', '.join(brought)}")
        if facts["references"]:
            echo(f"    references  {facts['references']}")
    for problem in plugins.problems:
        echo(f"problem: {problem.where}: {problem.what}")


def _plugin_facts(plugins: Plugins) -> list[dict[str, Json]]:
    """Return what each plugin brings; cards and all else are collected, which finds what is wrong with them."""
    list(plugins.collect("madlite_cards", trees=()))
    brought: dict[str, Mapping[str, tuple[object, Plugin]]] = {
        "backends": plugins.backends(),
        "runtimes": plugins.runtimes_of_plugins(),
        "exporters": plugins.exporters(),
    }
    references = plugins.references()
    return [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "hooks": list(plugin.hooks),
            **{
                kind: [name for name, (_, owner) in found.items() if owner.name == plugin.name]
                for kind, found in brought.items()
            },
            "references": len(references.get(plugin.name, ())),
        }
        for plugin in plugins.loaded.values()
    ]


@click.command("doctor --gpus", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--clear", type=int, metavar="GPU", multiple=True, help="Free a GPU whose dead run cannot be seen here.")
@verbose_option
def gpus(as_json: bool, clear: tuple[int, ...]) -> None:
    """List the GPUs of this machine, and which run has each of them.

    A GPU on which a run that is over left its container or processes, as a killed one does, is held until they are
    gone: the line names them, and the command that ends them.  Where its processes cannot be seen from here, as from a
    container or with hidepid, it is held until a madlite sees that they are gone, or --clear says so.
    """
    from madlite.batch.gpu_allocator import clear_unseen, lease_facts, lease_states, lease_text
    from madlite.store.gpu_leases import lease_folder

    machine = setup.find_machine(Context(), "")
    print_problems(machine.problems)
    folder = lease_folder(dict(os.environ))
    states = lease_states(folder, machine.gpus)
    if clear:
        clear_unseen(folder, clear, states)
        states = lease_states(folder, machine.gpus)
    if as_json:
        echo_json({"folder": str(folder), "gpus": [*lease_facts(machine.gpus, states)]})
        return
    for gpu in machine.gpus:
        echo(f"GPU {gpu.index:<3} {gpu.bus or gpu.unique_id:13} {lease_text(*states[gpu.index])}")
    echo(f"leases: {folder}" if machine.gpus else "no GPU here")


@click.command("compare published --list", cls=Command)
@click.option("--model", default="", metavar="NAME", help="Only of this model: its name, a part of it, or a card's.")
@click.option("--device", default="", metavar="GPU", help="Only on this GPU.")
@click.option("--precision", default="", metavar="NAME", help="Only in this number format.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
@common_options
def references(as_json: bool, no_plugins: bool, **wanted: Any) -> None:
    """List published figures of trainings, each with its source, date and condition.

    They come from madlite, from plugins, from madlite_references.toml of this folder, and from the files that
    $MADLITE_REFERENCES names.

    \b
    madlite compare published --list --model llama-3.1-8b --device MI300X
    madlite compare published --list --precision FP8 --json
    """
    from madlite.reports.references import as_table, references_by_origin, select

    plugins = setup.load(no_plugins)
    every = references_by_origin(plugins, Path.cwd(), os.environ)
    setup.print_problems(plugins.problems)
    found = {origin: select(references, **wanted) for origin, references in every.items()}
    chosen = [reference for references in found.values() for reference in references]
    count = sum(map(len, every.values()))
    if as_json:
        echo_json([{**to_builtins(one), "from": origin} for origin, references in found.items() for one in references])
    elif chosen:
        echo_lines("\n".join(as_table(chosen)))
    else:
        echo(f"none of {count} published figures is one of those" if count else "there are no published figures")
