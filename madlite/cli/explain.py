"""`madlite explain`: the plan of a run, each value with its origin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from madlite.cli import setup
from madlite.cli.cards import cards_option
from madlite.cli.check import check_option
from madlite.cli.completion import complete_tags
from madlite.cli.options import TagsCommand, common_options, plan_options, tags_option
from madlite.cli.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from madlite.cli.explain_page import Explained
    from madlite.run.screen import Planned


@click.command("explain", cls=TagsCommand)
@click.argument("tag", nargs=-1, shell_complete=complete_tags)
@tags_option
@cards_option
@click.option("--all", "everything", is_flag=True, help="Show every value of every run.")
@click.option("--json", "as_json", is_flag=True, help="Print the plans, with all values, as a list of JSON objects.")
@click.option("--machine", default="", metavar="NxGPU", help="Pretend this machine, e.g. 8xMI300X.")
@check_option
@plan_options
@common_options
def command(tag: tuple[str, ...], everything: bool, as_json: bool, **given: Any) -> int:
    """Show the plan of a run: every value and where it came from.

    Without --all: of each card what decides its runs, what somebody set, and what differs between them.

    \b
    madlite explain demo
    madlite explain demo_torchtitan_llama_debug --set steps=100 --machine 8xMI300X --all
    madlite explain my_model --check && madlite run --tags my_model
    """
    from madlite.cli.check import check
    from madlite.cli.explain_page import Explained
    from madlite.cli.planning import plan_all
    from madlite.run.lint import in_one_line, look, whose
    from madlite.run.one import secrets_for
    from madlite.secrets import Redactor, masked_json

    plugins = setup.load(given["no_plugins"], given["verbose"])
    given["tags"] = (*tag, *given["tags"])
    options = setup.make_options(given)
    planned = plan_all(plugins, options, given)
    secrets = tuple(text for one in planned for text in secrets_for(one, options.environ))
    mask = Redactor(secrets).text
    refused, warnings = look(planned, plugins, options.lint)
    if as_json:
        click.echo(masked_json([one.plan for one in planned], secrets), nl=False)
        for one, found in zip(planned, refused, strict=True):  # a list of plans has no place for it
            warnings += [f"{whose(one.plan, planned)}would be refused: {in_one_line(finding)}" for finding in found]
    else:
        pairs = zip(planned, refused, strict=True)
        told = [Explained(one.plan, _script(one), tuple(map(in_one_line, found))) for one, found in pairs]
        say(mask("\n\n".join(_pages(told, everything))))
    setup.tell_problems(plugins.problems)
    for text in warnings:
        say(f"warning: {mask(text)}", err=True)
    return check(planned, refused, plugins, options, given) if given["check"] else 0


def _script(one: Planned) -> str:
    return next((file.data.decode("utf-8", "replace") for file in one.files if file.path == "run.sh"), "")


def _pages(explained: Sequence[Explained], everything: bool) -> list[str]:
    from madlite.cli.explain_page import full_page, short_pages

    return [full_page(one) for one in explained] if everything else list(short_pages(explained))
