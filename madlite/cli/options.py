"""Options that several commands share, in the spellings of madengine 1 and 2, and how a command reads them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem, shell_complete

from madlite.cli.arguments import (
    CLEANUP,
    FAIL_ON_SUSPECT,
    MANIFEST,
    NAMED,
    RESULTS,
    SUMMARY,
    contract_option,
    directory_option,
    file_option,
    in_full,
    whole_number,
)
from madlite.errors import UsageProblem
from madlite.model import Exported, ExportOptions, ExportRow

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from madlite.plan.recipe_file import RecipeFile


# Shell completion by click's own mechanism: tags, cards and ids of runs, read from files alone.
#
# No code of a card or a plugin is executed, no engine and no network is queried, and on any error nothing is completed:
# a completion cannot show a message.


VARIABLE = "_MADLITE_COMPLETE"  # click's name of it for a program that is called madlite
_WORDS = "madlite.words"  # in a context's meta: the words of the command before click reads them
# What every shell puts on its line as it stands: a card of a checkout may have the name `$(rm -rf ~)`.
_SAFE = re.compile(r"[\w@%+.,/-]+", re.ASCII)


def complete_shell(group: click.Group, instruction: str) -> int:
    """Print the completion that a shell requests, `bash_source` or `bash_complete`; nothing on an error (code 1)."""
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
            return shell_complete(group, {}, "madlite", VARIABLE, instruction)
    except Exception:  # noqa: BLE001 - a broken folder or plugin completes nothing; its command reports why
        return 1


def complete_tags(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return names and tags of cards; of words with commas the last is completed."""
    before, comma, part = incomplete.rpartition(",")
    names = (name for name in dict.fromkeys(_names_of_cards()) if name.startswith(part) and _SAFE.fullmatch(name))
    return [CompletionItem(f"{before}{comma}{name}") for name in names]


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return ids of runs, the newest first, by how they begin or else by any part, and `last`."""
    from madlite.reports.runs import LAST, names_with, run_names, runs_folder

    every = run_names(runs_folder(ctx.params.get("directory") or Path()))
    names = [name for name in reversed(every) if _SAFE.fullmatch(name)]
    found = names_with(names, incomplete) if incomplete else names
    last = [LAST] if names and LAST.startswith(incomplete) else []
    return [CompletionItem(name) for name in (*last, *found)]


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return files, and of what begins as the id of a run those ids."""
    names = complete_run(ctx, param, incomplete) if incomplete else []
    names = [item for item in names if item.value.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *names]


def _names_of_cards() -> Iterator[str]:
    """Yield the names of all cards that are written down, then their tags; no program that lists cards is executed."""
    from importlib.metadata import entry_points

    from madlite.catalog.sources import bundled_models, load_catalog
    from madlite.cli.setup import find_workspace, home

    plugins = entry_points(group="madlite")
    shipped = [(entry.name, folder, [Path("models.json")]) for entry in plugins for folder in _card_folders(entry)]
    catalog = load_catalog(find_workspace(touch=False), bundled_models(home()), shipped, wanted=())
    yield from (card.name for card in catalog.cards)
    yield from (tag for card in catalog.cards for tag in card.tags)


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


# Options in groups.


F = TypeVar("F", bound=Callable[..., Any])

_SECTIONS = (
    *("Models", "Plan", "Image and container", "Data and tools", "Scaling", "Search", "Several runs", "Sweeps"),
    *("Repeats", "Cluster", "Failed runs", "Results", "Options"),
)
# what --help shows of a command with more options than fit a screen, beside what decides the study or search that it is
_MOST_USED = frozenset(
    (
        *("tags", "manifest_file", "dry_run", "everything", "additional_context", "precision", "steps", "sets"),
        *("timeout", "gpus", "image", "repeat", "cluster", "resume", "live_output", "output", "as_json"),
        *("offline", "refresh", "no_image", "plan_output", "help_all", "help"),
    )
)
_OWN_SECTIONS = ("Scaling", "Search")
_FIT_A_SCREEN = 20
SHOWS_ALL = "madlite.help_all"
"""In the meta of a context whose help is to list all options."""
_section_of: dict[click.Parameter, str] = {}
TAG_WORDS = "tag_words"
"""The name of the tags that are given without --tags."""


class Command(click.Command):
    """A command whose long options may be abbreviated, as madengine 1's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write out what is abbreviated before click reads it."""
        ctx.meta[_WORDS] = tuple(args)
        try:
            return super().parse_args(ctx, in_full(self, args, ctx))
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # the hint names this command's help
            raise


class ExportCommand(Command):
    """An exporter that is a command: `madlite export --to NAME` is this one, with its arguments, options and --help.

    Its short help is its line in `madlite export --list`.
    """

    name: str
    options: tuple[str, ...] = ()

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.summary = self.get_short_help_str(200)

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Refuse what is no command line of its own: `--to` is abbreviated, or beside another one.

        Raises:
            UsageProblem: always.
        """
        raise UsageProblem(f"{self.name} has options of its own", f"madlite export --to {self.name} --help")


class TagsCommand(Command):
    """A command on models: `--tags a b`, `--tags a,b`, `--tags a --tags b` and `a b` are one.

    Its --help has sections; that of many options shows those that most runs use, and --help-all all of them.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        if len(self.params) > _FIT_A_SCREEN:
            self.params.append(_help_all())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept positional arguments as tags."""
        left = super().parse_args(ctx, args)
        if words := ctx.params.pop(TAG_WORDS, ()):
            ctx.params["tags"] = (*(ctx.params.get("tags") or ()), *words)
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options section by section, all in the same columns, or those that most runs use as one list."""
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in _SECTIONS}
        is_short = len(self.params) > _FIT_A_SCREEN and not ctx.meta.get(SHOWS_ALL)
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            title = _section_of.get(param, _SECTIONS[-1])
            if record is None or isinstance(param, click.Argument):  # those are in the usage line
                continue
            if not is_short or param.name in _MOST_USED or title in _OWN_SECTIONS:
                rows[title].append(record)
        if is_short:
            rows = {_SECTIONS[-1]: [record for section in rows.values() for record in section]}
        wide = min(30, max(len(name) for section in rows.values() for name, _ in section))
        for title, section in rows.items():
            if section:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(wide), text) for name, text in section])


def _help_all() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[SHOWS_ALL] = True
            click.echo(ctx.get_help())
            ctx.exit()

    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show all options."
    )


class OnOff(click.types.BoolParamType):
    """A switch that can also be given as madengine 1's word: true, 1 and yes are on, anything else is off."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return what the switch or the word means."""
        return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "1", "yes")


def section(title: str) -> Callable[[F], F]:
    """Show the options below it that have no section yet in this one of --help."""

    def add(function: F) -> F:
        for param in getattr(function, "__click_params__", ()):
            _section_of.setdefault(param, title)
        return function

    return add


def group(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator that adds several options, in order; a section among them is of these alone."""

    def add(function: Any) -> Any:
        def own() -> None:
            """Collect the options."""

        for option in reversed(options):
            option(own)
        function.__click_params__ = [*getattr(function, "__click_params__", ()), *vars(own)["__click_params__"]]
        return function

    return add


def _not_an_option(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    if any(word.startswith("-") for word in words) and not ctx.resilient_parsing:
        raise click.UsageError("no model is named after '--tags'", ctx)
    return words


tags_option = group(
    click.argument(TAG_WORDS, nargs=-1, metavar="[TAG]...", shell_complete=complete_tags),
    section("Models"),
    click.option(
        "-t",
        "--tags",
        multiple=True,
        callback=_not_an_option,
        metavar="TAG...",
        shell_complete=complete_tags,
        help="Names or tags of cards: a b, a,b or repeated. NAME:arg=value:flag adds arguments or settings.",
    ),
)
"""Add --tags, also as words without it."""


models_options = group(
    tags_option,
    section("Models"),
    directory_option(
        "--cards-from",
        multiple=True,
        envvar="MADLITE_CARDS_FROM",
        show_envvar=True,
        what="Also the cards that a plugin makes of this folder, e.g. a Primus checkout. Repeatable.",
    ),
)
"""Add both, and --cards-from, which $MADLITE_CARDS_FROM stands in for."""


def is_given(name: str, context: click.Context | None = None) -> bool:
    """Return whether an option was given on the command line."""
    context = context or click.get_current_context()
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def spelled(name: str) -> str:
    """Return an option of the command as its command line has it, or else by its last name."""
    context = click.get_current_context()
    words = {word.partition("=")[0] for word in context.meta.get(_WORDS, ()) if word.startswith("--")}
    names = next(param.opts for param in context.command.params if param.name == name)
    return next((option for option in names if option in words), names[-1])


def option_words(param: click.Parameter, value: object) -> Iterator[str]:
    """Yield an option as a command line has it; nothing of an argument."""
    if not isinstance(param, click.Option):
        return
    names = param.opts if value or not param.secondary_opts else param.secondary_opts
    name = next((name for name in names if name.startswith("--")), names[0])
    for text in value if isinstance(value, (tuple, list)) else (value,):
        yield from (name,) if param.is_flag else (name, str(text))


def read_filters(
    texts: Sequence[str], option: str = "--where", example: str = "device=MI300X"
) -> list[tuple[str, str]]:
    """Return the texts `KEY=VALUE` of an option, as keys and values.

    Raises:
        UsageProblem: one has no value.
    """
    pairs = [text.partition("=") for text in texts]
    for name, sign, _ in pairs:
        if not sign or not name.strip():
            raise UsageProblem(f"{option} {name!r} has no value", f"{option} {example}")
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def read_where(texts: Sequence[str]) -> dict[str, str]:
    """Return the filters of `--where`, where each can be given once.

    Raises:
        UsageProblem: one has no value, or another one for the same key.
    """
    pairs = read_filters(texts)
    for at, (name, value) in enumerate(pairs):
        if not value:
            raise UsageProblem(f"--where '{name}=' has no value", "--where device=MI300X")
        if name in [other for other, _ in pairs[:at]]:
            raise UsageProblem(
                f"--where names {name!r} twice", "one value of each: several commands for several values"
            )
    return dict(pairs)


where_option = click.option(
    "--where", multiple=True, metavar="KEY=VALUE", help="Only results with this dimension, column or fact."
)
"""Add --where, which `read_where` reads."""


def _not_in_full(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        raise UsageProblem(f"{param.opts[0]} cannot be abbreviated", f"madlite {ctx.info_name} {param.opts[0]} --help")


def selecting_option(name: str, what: str) -> Callable[[F], F]:
    """List an option that selects a command of its own: cli.main finds it before the listing command reads it."""
    return click.option(
        name, is_flag=True, expose_value=False, callback=_not_in_full, help=f"{what}; its options: {name} --help."
    )


dir_option = directory_option(
    "--dir", "directory", default=Path(), what="Working folder of the runs.  [default: this one]"
)
"""Add --dir, the working folder of the runs."""


def _set_verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        logging.getLogger("madlite").setLevel(logging.DEBUG)  # a library's own lines can hold what it was given


verbose_option = click.option(
    "-v", "--verbose", is_flag=True, expose_value=False, callback=_set_verbose, help="Say more on stderr."
)
"""Add --verbose."""
folder_options = group(dir_option, verbose_option)
"""Add both, which commands on the runs of a folder have."""


def _read_recipe_file(ctx: click.Context, param: click.Parameter, file: Path | None) -> RecipeFile | None:
    """Return what the file holds: it may be a pipe, which can be read once."""
    if file is None or ctx.resilient_parsing:
        return None
    from madlite.plan.recipe_file import read_recipe_file

    return read_recipe_file(file)


_IMAGE = section("Image and container")
live_option = group(
    section("Results"), click.option("-l", "--live-output", is_flag=True, help="Show the workload's output too.")
)
registry_option = group(
    _IMAGE,
    click.option("-r", "--registry", default="", metavar="HOST", help="Push images to this registry, and pull them."),
)
clean_cache_option = group(
    _IMAGE, click.option("--clean-docker-cache", is_flag=True, help="Build images without Docker's cache.")
)
machine_option = group(
    section("Plan"), click.option("--machine", default="", metavar="NxGPU", help="Plan for this machine: 8xMI300X.")
)
common_options = group(
    section("Options"),
    click.option("--no-plugins", is_flag=True, help="Leave every plugin out that is not part of madlite."),
    verbose_option,
)
"""Add the options that every command with plugins has."""
context_options = group(
    section("Plan"),
    click.option("-c", "--additional-context", default="", metavar="JSON", help="Context; options win over it."),
    file_option("-f", "--additional-context-file", what="Context from a file."),
)
"""Add --additional-context and its file."""
vendor_option = group(
    section("Plan"),
    click.option("--gpu-vendor", default="", metavar="NAME", help="AMD, NVIDIA or CPU; overrides detection."),
)
_GPU_IDS = group(
    section("Plan"),
    click.option("--gpus", default="", metavar="LIST", help="Ids of GPUs the runs may use: 0,2-4; 4 GPUs are 0-3."),
)
_UNMEASURED = group(
    _IMAGE,
    click.option("--keep-alive", is_flag=True, help="Leave the container running and keep the model's folder."),
    section("Plan"),
    click.option("--skip-model-run", is_flag=True, help="Do everything but the model's own step; writes no row."),
)
_DECIDING = group(
    context_options,
    section("Plan"),
    *NAMED,
    click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a value of the plan; explain --all."),
    file_option("--recipe-file", callback=_read_recipe_file, what="Settings; docs/recipe-files.md."),
    vendor_option,
    click.option("--timeout", type=whole_number(-1), metavar="SECONDS", help="Limit of a run; 0 none, -1 the card's."),
    section("Models"),
    click.option("--backend", default="", metavar="NAME", help="Use this backend, whoever claims the card."),
    click.option(
        "--ignore-deprecated/--no-ignore-deprecated", "--ignore-deprecated-flag", help="Run cards marked deprecated."
    ),
    click.option("--disable-skip-gpu-arch", is_flag=True, help="Run cards also on GPUs they want to be skipped on."),
    _IMAGE,
    click.option("--runtime", default="", metavar="NAME", help="docker, host, slurm or kubernetes."),
    click.option("--image", default="", metavar="REF", help="Use this container image and build none."),
    click.option("--keep-model-dir", is_flag=True, help="Keep the model's folder."),
    clean_cache_option,
    section("Data and tools"),
    file_option("--data-config", "--data-config-file-name", what="Data sets.  [default: data.json]"),
    directory_option("--force-mirror-local", what="Keep copies of remote data sets in DIR."),
    file_option("--tools-config", "--tools-json-file-name", what="Profiling tools: a tools.json."),
    click.option(
        "--sys-env-details/--no-sys-env-details",
        "sys_env_details",
        type=OnOff(),
        default=None,
        help="Write the system's details down before the model runs.",
    ),
    click.option(
        "--generate-sys-env-details",
        "sys_env_details",
        type=OnOff(),
        metavar="true|false",
        help="madengine 1's name of it.",
    ),
    section("Results"),
    contract_option,
)
_FROM_MANIFEST = group(
    section("Models"), file_option("-m", "--manifest-file", what="Run what this manifest of a build names.")
)
closing_options = group(
    section("Results"),
    file_option("--manifest-output", default=MANIFEST, what="Manifest of images."),
    SUMMARY,
    FAIL_ON_SUSPECT,
    CLEANUP,
    registry_option,
)
"""Add the options of the files of a batch, and of its registry."""
batch_options = group(_FROM_MANIFEST, closing_options)
"""Add the same, and --manifest-file."""
scaling_options = group(_DECIDING, section("Results"), *RESULTS)
"""Add the options that decide a plan whose GPUs vary, and those of its results."""
study_options = group(scaling_options, _GPU_IDS)
"""Add the options that decide a plan whose number is to be compared, and those of its results."""
plan_options = group(study_options, _UNMEASURED)
"""Add the options that decide a plan, and those of its results."""
frozen_options = group(_DECIDING, _GPU_IDS, _UNMEASURED, _FROM_MANIFEST, registry_option)
"""Add the options that decide a plan and nothing else, for one that is written down."""
