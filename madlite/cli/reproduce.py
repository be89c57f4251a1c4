"""`madlite reproduce`: the pinned command of a run, printed or run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli.completion import complete_run
from madlite.cli.options import Command, dir_option, verbose_option
from madlite.cli.terminal import echo, shell_line
from madlite.errors import MadliteError, UsageProblem
from madlite.text import printable

if TYPE_CHECKING:
    from madlite.reports.reproduce import CommandOptions

# options of `run` whose values are pinned otherwise, or that concern the source or the display of the original run
_NOT_REPEATED = frozenset(
    (
        *("tags", "additional_context", "additional_context_file", "sets", "mode", "precision", "seq_len"),
        *("batch_size", "steps", "image_release", "mock_data", "backend", "runtime", "gpus", "gpu_vendor", "image"),
        *("manifest_file", "batch_manifest", "manifest_output", "registry", "clean_docker_cache", "dry_run", "machine"),
        *("live_output", "summary_output", "cleanup_perf", "verbose", "use_image", "target_archs", "timeout"),
        *("build_on_compute", "repeat", "cold", "settle", "settle_timeout", "retry", "retry_wait"),
        *("oom_fallback", "resume", "parallel", "recipe_file", "sweep", "zip_values"),
    )
)


@click.command("reproduce", cls=Command)
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option("--run", "rerun", is_flag=True, help="Run it.")
@click.option("--without-secrets", is_flag=True, help="With --run: start also where secrets of the run are not known.")
@dir_option
@verbose_option
def command(run: str, rerun: bool, without_secrets: bool, directory: Path) -> int:
    """Print, or with --run rerun, the pinned command of a run.

    Values, image digest, args and context are those of the run; what cannot be pinned is said in comments. Secrets
    are in no record: --run takes variables from the environment, and does not start where one is missing. RUN is a
    run's id, a part of it that no other has, last, or last~1.

    \b
    madlite reproduce last
    madlite reproduce 3fa91c --run
    """
    from madlite.cli.main import main
    from madlite.reports.reproduce import reproduce
    from madlite.reports.runs import find_run, open_run, runs_folder

    runs = runs_folder(directory)
    folder = find_run(runs, run)
    record = open_run(folder).record
    if not record.card:
        raise UsageProblem(f"nothing that can be read says what run {folder.name} was", f"ls {folder}")
    found = reproduce(record, command_options(record.command), dict(os.environ), folder)
    elsewhere = runs.parent.resolve() != Path.cwd()
    for note in found.notes:
        echo(f"# {printable(note)}", err=rerun)
    line = shell_line(("madlite", *found.words))
    echo(f"{shell_line(('cd', str(runs.parent)))} && {line}" if elsewhere else line, err=rerun)
    if not rerun:
        return 0
    if found.missing and not without_secrets:
        raise _unknown(folder.name, found.missing)
    os.chdir(runs.parent)
    secrets = [word for name in found.available for word in ("--set", f"env.{name}={os.environ[name]}")]
    words = [*found.words, *secrets]
    code = main.main(args=words, prog_name="madlite", standalone_mode=False, obj=found.words)
    return int(code or 0)


def _unknown(name: str, places: Sequence[str]) -> UsageProblem:
    """Return the error for a rerun whose secrets are missing."""
    what = f"secrets of run {name} are not known here: {', '.join(map(printable, places))}"
    return UsageProblem(
        what,
        "set variables of docker_env_vars and env. under their own names in the environment, "
        "or give all of it with the printed command; --without-secrets starts it so",
    )


def command_options(words: tuple[str, ...]) -> CommandOptions:
    """Return the options of a `run` command that its reproduction repeats; none of another command."""
    from click.core import ParameterSource

    from madlite.cli.run import command as run_command
    from madlite.reports.reproduce import CommandOptions

    if words[:1] != ("run",):
        return CommandOptions()
    try:
        context = _context_of(run_command, words[1:])
    except click.ClickException:  # of another version, with options that this one does not have
        return CommandOptions()
    params = {str(param.name): param for param in reversed(run_command.params)}  # of two for one value the first
    given = [
        (params[name], value)
        for name, value in context.params.items()
        if name in params and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    options = [word for param, value in given if param.name not in _NOT_REPEATED for word in _words(param, value)]
    pairs = (text.partition("=") for text in context.params.get("sets") or ())
    recipe = context.params.get("recipe_file")
    of_file = [(key, value) for _, key, value in recipe.named] if recipe is not None else []
    return CommandOptions(words=tuple(options), sets=(*of_file, *((key, value) for key, _, value in pairs)))


def _context_of(command: click.Command, words: Sequence[str]) -> click.Context:
    """Return the options of a command line; a recipe file that is gone has no values."""
    try:
        return command.make_context(command.name or "", list(words))
    except MadliteError:
        return command.make_context(command.name or "", list(words), resilient_parsing=True)


def _words(param: click.Parameter, value: object) -> Iterator[str]:
    """Yield an option as the command line has it."""
    if not isinstance(param, click.Option):
        return
    if param.is_flag:
        yield _long(param.opts if value or not param.secondary_opts else param.secondary_opts)
    else:
        for one in value if isinstance(value, (tuple, list)) else (value,):
            yield from (_long(param.opts), str(one))


def _long(names: Sequence[str]) -> str:
    return next((name for name in names if name.startswith("--")), names[0])
