"""`madlite plugins`: what is installed, what each brings, and what is broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.options import Command, common_options
from madlite.cli.terminal import echo

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins


@click.command("plugins", cls=Command)
@click.option("--hooks", is_flag=True, help="Describe every hook instead.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@common_options
def command(hooks: bool, as_json: bool, no_plugins: bool, verbose: bool) -> int:
    """List plugins, their hooks and what is wrong with them."""
    if hooks:
        click.echo(_hook_page())
        return 0
    plugins = setup.load(no_plugins, verbose)
    backends = {name: plugin.name for name, (_, plugin) in plugins.backends().items()}
    list(plugins.collect("madlite_cards", trees=()))
    runtimes = {name: plugin.name for name, (_, plugin) in plugins.runtimes_of_plugins().items()}
    exporters = {name: plugin.name for name, (_, plugin) in plugins.exporters().items()}
    references = {name: len(found) for name, found in plugins.references().items()}
    if as_json:
        click.echo(json.dumps(_as_json(plugins, backends, runtimes, exporters, references), indent=2))
        return 0
    for plugin in plugins.loaded.values():
        origin = "built in" if plugin.built_in else f"{plugin.distribution} {plugin.version}"
        echo(f"{plugin.name}  ({origin})")
        echo(f"    hooks     {', '.join(plugin.hooks) or 'none'}")
        for word, found in (("backends", backends), ("runtimes", runtimes), ("exports to", exporters)):
            if brought := [name for name, owner in found.items() if owner == plugin.name]:
                echo(f"    {word}  {', '.join(brought)}")
        if plugin.name in references:
            echo(f"    references  {references[plugin.name]}")
    for problem in plugins.problems:
        echo(f"problem: {problem.where}: {problem.what}")
    return 0


def _as_json(
    plugins: Plugins,
    backends: dict[str, str],
    runtimes: dict[str, str],
    exporters: dict[str, str],
    references: dict[str, int],
) -> dict[str, object]:
    return {
        "plugins": [
            {
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "hooks": list(plugin.hooks),
                "backends": [name for name, owner in backends.items() if owner == plugin.name],
                "runtimes": [name for name, owner in runtimes.items() if owner == plugin.name],
                "exporters": [name for name, owner in exporters.items() if owner == plugin.name],
                "references": references.get(plugin.name, 0),
            }
            for plugin in plugins.loaded.values()
        ],
        "problems": [{"where": problem.where, "what": problem.what} for problem in plugins.problems],
    }


def _hook_page() -> str:
    """Return every hook with its documentation."""
    import inspect

    from madlite.hookspecs import Hooks

    pages = []
    for name, function in vars(Hooks).items():
        if name.startswith("madlite_"):
            names = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
            pages.append(f"{name}({', '.join(names)})\n\n{inspect.getdoc(function)}\n")
    return "\n".join(pages)
