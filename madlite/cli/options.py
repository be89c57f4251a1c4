"""Options that several commands share, and how tags are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_TAGS = ("--tags", "-t")


class TagsCommand(click.Command):
    """A command whose `--tags` takes one or more words: `--tags a b`, `--tags a,b` and `--tags a --tags b` are one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each further word, as click wants it."""
        return super().parse_args(ctx, spread_tags(args))


def spread_tags(args: list[str]) -> list[str]:
    """Return the arguments with `--tags` before each of its words."""
    spread: list[str] = []
    in_tags = False
    for position, word in enumerate(args):
        if word == "--":
            return [*spread, *args[position:]]
        follows = bool(args[position - 1] in _TAGS) if position else False
        if in_tags and not follows and not word.startswith("-"):
            spread += ["--tags", word]
            continue
        spread.append(word)
        in_tags = word in _TAGS or word.startswith("--tags=") or (in_tags and follows)
    return spread


def tags_option(function: F) -> F:
    """Add --tags."""
    return click.option(
        "-t",
        "--tags",
        multiple=True,
        metavar="TAG...",
        help="Names or tags of cards: a b, a,b or repeated. NAME:arg=value:flag adds arguments or settings.",
    )(function)


def plan_options(function: F) -> F:
    """Add the options that decide a plan."""
    for option in reversed(_PLAN):
        function = option(function)
    return function


def common_options(function: F) -> F:
    """Add the options that every command with plugins has."""
    for option in reversed(_COMMON):
        function = option(function)
    return function


_FILE = click.Path(path_type=Path)
_COMMON = (
    click.option("--no-plugins", is_flag=True, help="Leave every plugin out that is not part of madlite."),
    click.option("-v", "--verbose", is_flag=True, help="Say more on stderr."),
)
_PLAN = (
    click.option("-c", "--additional-context", default="", metavar="JSON", help="Context, merged over everything."),
    click.option("-f", "--additional-context-file", type=_FILE, metavar="FILE", help="Context from a file."),
    click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set one value of the plan; see explain."),
    click.option("--backend", default="", metavar="NAME", help="Use this backend, whoever claims the card."),
    click.option("--runtime", default="", metavar="NAME", help="docker or host; else the card and the machine decide."),
    click.option("--gpus", default="", metavar="LIST", help="GPUs the runs may use, e.g. 0,2-4."),
    click.option("--gpu-vendor", default="", metavar="NAME", help="AMD, NVIDIA or CPU, over what is detected."),
    click.option("--image", default="", metavar="REF", help="Use this container image and build none."),
    click.option(
        "--timeout", type=int, metavar="SECONDS", help="Wall clock of a run; 0 none, -1 the card's own (default)."
    ),
    click.option("--keep-alive", is_flag=True, help="Leave the container running and keep the model's folder."),
    click.option("--keep-model-dir", is_flag=True, help="Keep the model's folder."),
    click.option("--skip-model-run", is_flag=True, help="Do everything but the model's own step; writes no row."),
    click.option("--clean-docker-cache", is_flag=True, help="Build images without Docker's cache."),
    click.option(
        "--ignore-deprecated/--no-ignore-deprecated",
        "--ignore-deprecated-flag",
        default=False,
        help="Run cards that are marked deprecated.",
    ),
    click.option("--disable-skip-gpu-arch", is_flag=True, help="Run cards also on GPUs they want to be skipped on."),
    click.option(
        "-o", "--output", type=_FILE, default=Path("perf.csv"), show_default=True, metavar="FILE", help="Results file."
    ),
    click.option("--strict-header", is_flag=True, help="Never add a column to perf.csv."),
)
