"""Pages of the documentation site that are made from the code: options of all commands, causes of failures."""

from __future__ import annotations

from collections.abc import Iterator

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from madlite.cli.main import COMMANDS, main
from madlite.cli.options import SHOWS_ALL
from madlite.measure.rules import with_common


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, lines in (("options", _options()), ("failures", _failures())):
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines)))
    return files


def _options() -> Iterator[str]:
    yield "# All options\n\nWhat `madlite COMMAND --help-all` prints.\n"
    with click.Context(main, info_name="madlite") as context:
        for name in COMMANDS:
            command = main.get_command(context, name)
            assert command is not None  # noqa: S101 - it is listed
            with click.Context(command, context, name) as own:
                own.meta[SHOWS_ALL] = True
                yield f"\n## {name}\n\n```\n{command.get_help(own)}\n```\n"


def _failures() -> Iterator[str]:
    yield "# Causes of failures\n\nThe rules for logs of failed runs ([failures](../failures.md)).\n"
    yield "| cause | a line that shows it | what to do |\n|---|---|---|"
    for rule in with_common(()):
        cells = (f"`{rule.cause}`", f"`{rule.example}`" if rule.example else "", rule.hint)
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
