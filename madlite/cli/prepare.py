"""`madlite prepare`: what runs need, here before they start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from madlite.cli import setup
from madlite.cli.cards import cards_option
from madlite.cli.options import TagsCommand, common_options, plan_options, tag_words, tags_option
from madlite.cli.sink import Sink

if TYPE_CHECKING:
    from madlite.plan.options import Options
    from madlite.run.resolve import Resolution


@click.command("prepare", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@click.option("-n", "--dry-run", is_flag=True, help="Show what is needed and whether it can be had, and fetch nothing.")
@click.option("-l", "--live-output", is_flag=True, help="Show also what a run prints that prepares data.")
@click.option("--machine", default="", metavar="NxGPU", help="Prepare for this machine, e.g. 8xMI300X.")
@click.option("--offline", is_flag=True, help="Ask nobody: name what is not here.")
@click.option(
    "--refresh", is_flag=True, help="Ask the hub also for what is here, and read it again: branches move, disks err."
)
@click.option("--no-image", is_flag=True, help="Leave container images out.")
@plan_options
@common_options
def command(**given: Any) -> int:
    """Fetch what the models that tags select need: weights, data, image.

    \b
    madlite prepare --tags pyt_train_llama-3.1-8b --dry-run
    madlite prepare --tags pyt_train_llama-3.1-8b --mode pretrain
    madlite prepare --tags pyt_train_llama-3.1-8b --machine 8xMI300X --no-image

    Access to every repository is checked, and room on the disk, before anything is fetched. A run of the same tag and
    options then uses what is here and fetches nothing.
    """
    from madlite.cli.planning import plan_all
    from madlite.cli.prepare_screen import table
    from madlite.run.one import secrets_for
    from madlite.run.resolve import PrepareOptions, resolve
    from madlite.secrets import Redactor

    plugins = setup.load(given["no_plugins"], given["verbose"])
    options = setup.make_options(given)
    planned = plan_all(plugins, options, given)
    wanted = PrepareOptions(offline=given["offline"], refresh=given["refresh"], images=not given["no_image"])
    found = resolve(planned, plugins, options, wanted)
    setup.tell_problems(plugins.problems)
    token = [found.access.token.value.reveal()] if found.access.token else []
    mask = Redactor([*token, *(text for one in planned for text in secrets_for(one, options.environ))]).text
    click.echo(mask(table(found)))
    found.check()
    if given["dry_run"]:
        return 0
    return _prepare(found, options, mask)


def _prepare(found: Resolution, options: Options, mask: Any) -> int:
    from madlite.cli.prepare_screen import PrepareLines
    from madlite.cli.screens import make_screen
    from madlite.run.prepare import prepare_all

    sink = Sink(sys.stdout.fileno())
    screen = make_screen(sink, live=options.live_output)
    try:
        lines = PrepareLines(screen, mask)
        done = prepare_all(found, options, lines, mask)
        lines.total(done)
    finally:
        screen.close()
        sink.close()
    return int(done.exit_code)
