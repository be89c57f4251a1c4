"""The command line's frame: commands loaded only when used, and one border where every error becomes a sentence."""

from __future__ import annotations

import errno
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from madlite import __version__
from madlite.cli.arguments import MADENGINE, contract_option, in_full, version_line, without
from madlite.cli.arguments import VARIABLE as CONTRACT
from madlite.cli.options import VARIABLE, Command, complete_shell
from madlite.cli.terminal import echo, echo_on, mask, printable_lines, shell_line
from madlite.errors import ExitCode, MadliteError, nearest_words

# name → (module below madlite.cli and its command, its line in --help), so that --help imports none of them
COMMANDS = {
    "run": ("run:command", "Run the models that tags select and append their results to perf.csv."),
    "scaling": ("scaling:command", "Run a tag on several numbers of GPUs or nodes, and show how it scales."),
    "tune": ("tune:command", "Find the fastest configuration of a tag on this machine, as a recipe file."),
    "bisect": ("bisect:command", "Find where a number changed, over images, recipe files or commits."),
    "plan": ("plan:command", "Write the plans of runs to files, one each, for `madlite run --plan`."),
    "build": (
        "build:command",
        "Build the images of the models that tags select, and write a manifest for `madlite run --manifest-file`.",
    ),
    "prepare": ("build:prepare", "Fetch what the models that tags select need: weights, data, image."),
    "discover": ("inventory:discover", "List model cards, all of them or those that tags select."),
    "explain": ("plan:explain", "Show the plan of a run: every value and where it came from."),
    "cluster": ("jobs:cluster", "Make and check cluster.toml, and follow, list or end the jobs of a cluster."),
    "parse": ("parse:command", "Read logs of trainings: steps, steady throughput, verdict."),
    "runs": ("runs:command", "List the runs of this folder, the newest last."),
    "show": ("show:command", "Show a run, or how several differ."),
    "log": ("show:log", "Print a run's log; of a running one, what it has so far."),
    "dashboard": ("watch:dashboard", "Show the runs of this folder in a browser, also as they go on."),
    "reproduce": ("show:reproduce", "Print, or with --run rerun, the pinned command of a run."),
    "compare": ("compare:command", "Compare results: ratio, interval, significance and verdict of each series."),
    "baseline": ("compare:baseline", "Name results that later ones are compared with."),
    "report": ("report:command", "Make pages, Markdown and mails of results; add to perf.csv, or make it again."),
    "export": ("export:command", "Write results for other programs: files, databases, trackers; each result once."),
    "init": ("init:command", "Write a card for a training script of your own into models.json of this folder."),
    "plugin": ("init:plugin", "Make a plugin: a backend in a package of its own."),
    "archive": ("archive:command", "Pack runs into one file, without secrets and weights."),
    "import": ("archive:import_", "Take in the runs of a file that `madlite archive` packed."),
    "verify": ("archive:verify", "Read the logs of runs again, and compare what they give with what is recorded."),
    "doctor": ("doctor:command", "Check this machine before a benchmark, from its GPUs to its network."),
    "clean": ("clean:command", "List, and with --yes remove, what a killed madlite left behind."),
}
# Commands that words behind the name of another one select.  They have options and a --help of their own.
SELECTED = {
    ("runs", "collect"): "runs:collect",
    ("runs", "--watch"): "watch:command",
    ("compare", "published", "--list"): "inventory:references",
    ("doctor", "--gpus"): "inventory:gpus",
    ("doctor", "--plugins"): "inventory:plugins_command",
    ("clean", "--old"): "archive:prune",
}
# older spellings, which stay, and what they are called now
ALIASES = {
    "jobs": "cluster jobs",
    "attach": "cluster attach",
    "cancel": "cluster cancel",
    "collect": "runs collect",
    "watch": "runs --watch",
    "references": "compare published --list",
    "database": "export --to mongodb",
    "gpus": "doctor --gpus",
    "plugins": "doctor --plugins",
    "prune": "clean --old",
}
# how --help groups them; what is in none of these, as commands of plugins, comes last
_GROUPS = {
    "Start here": ("run", "explain", "parse", "compare", "dashboard"),
    "Prepare": ("init", "discover", "prepare", "build", "plan", "cluster", "plugin"),
    "Studies": ("scaling", "tune", "bisect"),
    "Runs": ("runs", "show", "log", "reproduce"),
    "Results": ("baseline", "report", "export"),
    "Archives": ("archive", "import", "verify"),
}
# the next useful command, by the exit code of the one that ended; commands that name theirs themselves are left out
_NEXT = {
    "discover": {0: "madlite explain TAG"},
    "explain": {0: "madlite run --tags TAG"},
    "prepare": {0: "madlite run --tags TAG"},
    "build": {0: "madlite run --manifest-file build_manifest.json"},
    "plan": {0: "madlite run --plan FILE"},
    "cluster": {0: "madlite run --cluster NAME --tags TAG"},
    "run": {0: "madlite show last", 3: "madlite log last", 5: "madlite show last~1 last"},
    "scaling": {0: "madlite show last", 3: "madlite log last"},
    "bisect": {0: "madlite show last~1 last"},
    "runs": {0: "madlite show last, madlite compare last~1 last"},
    "show": {0: "madlite log last, madlite reproduce last"},
    "log": {0: "madlite show last"},
    "reproduce": {0: "madlite compare last~1 last, once it has run again"},
    "parse": {0: "madlite init, for a card of the script that wrote the log"},
    "compare": {0: "madlite report html", 5: "madlite show last~1 last"},
    "baseline": {0: "madlite compare NAME perf.csv"},
    "report": {0: "madlite dashboard, for the runs as they go on"},
    "export": {0: "madlite export --list, for other formats"},
    "archive": {0: "madlite verify FILE"},
    "import": {0: "madlite runs"},
    "verify": {0: "madlite archive last -o run.tar.gz", 5: "madlite show last --all"},
    "doctor": {0: "madlite discover, madlite run --tags demo"},
    "clean": {0: "madlite runs"},
}
# with these the output is no person's screen, or the next command would have to be another one
_NO_NEXT = ("--json", "-h", "--help", "--help-all", "--dry-run", "--dir", "--contract", "collect", "--fix")
# errors of a path that a user gave
_ACCESS_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
_EPILOG = (
    "Exit codes: 0 all succeeded or skipped by rule · 2 only image builds failed · 3 a run failed · 4 wrong usage, "
    "nothing ran · 5 a check of results failed · 6 a check of a machine failed · 1 internal error · 130/143/129 ended "
    "by Ctrl-C, TERM, HUP."
)


class Group(click.Group):
    """Commands under one name; options may be abbreviated, and a mistyped command gets a suggestion."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write out what is abbreviated before the command's name."""
        return super().parse_args(ctx, in_full(self, args, ctx))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, with a suggestion for a mistyped one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = nearest_words(args[0], self.list_commands(ctx), most=1)
            if close:
                raise click.UsageError(f"{error.message} Did you mean '{close[0]}'?", ctx) from None
            raise


class Commands(Group):
    """The built-in commands by name, and those that plugins add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of a user's day, then the plugins'."""
        _add_plugin_commands(self)
        return [*COMMANDS, *sorted(self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module."""
        if cmd_name in COMMANDS:
            return _load(COMMANDS[cmd_name][0])
        _add_plugin_commands(self)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, also by an older spelling or by words behind another command's name."""
        words = [*ALIASES[args[0]].split(), *args[1:]] if args[0] in ALIASES else args
        for (name, *phrases), place in SELECTED.items():
            if words[0] == name and (left := without(phrases, words[1:])) is not None:
                return " ".join((name, *phrases)), _load(place), left
        return super().resolve_command(ctx, words)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups, without importing the built-in ones."""
        grouped = {name for names in _GROUPS.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in grouped]
        for title, names in (*_GROUPS.items(), ("Maintenance", others)):
            with formatter.section(title):
                formatter.write_dl([(f"{name:<10}", self._line(name)) for name in names])

    def _line(self, name: str) -> str:
        return COMMANDS[name][1] if name in COMMANDS else self.commands[name].get_short_help_str(80)


def _load(place: str) -> click.Command:
    module, _, name = place.partition(":")
    command: click.Command = getattr(importlib.import_module(f"madlite.cli.{module}"), name)
    return command


@click.group(
    cls=Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
)
@click.option("-v", "--version", is_flag=True, help="Print the version and exit.")
@contract_option
@click.pass_context
def main(ctx: click.Context, version: bool) -> None:
    """Benchmark LLM and diffusion training on AMD Instinct and NVIDIA GPUs.

    From a tag of the MAD catalogue to a row of perf.csv: madlite run --tags demo
    """
    if version:
        click.echo(version_line())
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def entry() -> None:
    """Run the command line of this process."""
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # an argument may be invalid UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    code = call(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def call(args: Sequence[str]) -> int:
    """Run one command and return its exit code; no error of any kind leaves here as a traceback."""
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(_MaskingFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    logging.addLevelName(logging.WARNING, "warning")
    try:
        code = _run_command(args)
        _print_next(args, code)
        return code
    except MadliteError as error:
        return _madlite_error(error)
    except click.UsageError as error:
        return _usage_error(error)
    except click.ClickException as error:
        _print_error(error.format_message())
        return int(ExitCode.USAGE)
    except (KeyboardInterrupt, click.Abort):
        _print_error("interrupted")
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        return _discard_output()
    except OSError as error:
        return _os_error(error)
    except Exception as error:  # noqa: BLE001 - the last border: a bug becomes a report, not a traceback
        return _internal_error(error)


def _print_next(args: Sequence[str], code: int) -> None:
    """Name the next command to a person at a terminal; no script sees it, nor who reads as with madengine."""
    words = {word.partition("=")[0] for word in args}
    command = _NEXT.get(args[0], {}).get(code, "") if args and words.isdisjoint(_NO_NEXT) else ""
    as_madengine = bool(os.environ.get(CONTRACT)) or Path(sys.argv[0]).name == MADENGINE
    if not command or as_madengine or not (sys.stdout.isatty() and sys.stderr.isatty()):
        return
    from madlite.plan.inputs import RUNS

    if "last" not in command or Path(RUNS).is_dir():
        plain = [word for word in args[1:] if word not in ("-t", "--tags")][:1] if args[0] != "cluster" else []
        tag = "TAG" if not plain or plain[0].startswith("-") else shell_line(plain)
        echo_on(f"next: {command.replace('TAG', tag)}", err=True)


def _run_command(args: Sequence[str]) -> int:
    """Run one command; when the reader of stdout is gone, click ends it and replaces the stream.

    A shell that asks for completions names no command, but a variable of the environment.
    """
    if instruction := os.environ.get(VARIABLE):
        return complete_shell(main, instruction)
    stdout = sys.stdout
    try:
        result = main.main(args=list(args), prog_name="madlite", standalone_mode=False, obj=tuple(args))
    except SystemExit:
        if sys.stdout is stdout:
            raise
        return _discard_output()
    return int(result) if isinstance(result, int) else int(ExitCode.OK)


def _discard_output() -> int:
    """Discard the remaining output: the reader closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return int(ExitCode.OK)


def _open_missing_streams() -> None:
    """Open what the caller closed (`>&-`) on nothing, before a file of ours gets its number."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def _os_error(error: OSError) -> int:
    """Report an OS error that no command handles: a full disk behind stdout, a deleted folder."""
    if error.errno == errno.ENOSPC and error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _print_error("the output cannot be written: no space left on device")
        return int(ExitCode.RUN_FAILED)
    if error.errno == errno.ENOENT and error.filename is None:
        _print_error("the working folder is gone", "cd to a folder that is there")
        return int(ExitCode.USAGE)
    if error.errno in _ACCESS_ERRNOS and error.filename is not None:
        _print_error(f"{_file_name(error.filename)}: {os.strerror(error.errno or 0)}")
        return int(ExitCode.USAGE)
    return _internal_error(error)


def _file_name(name: object) -> str:
    """Return a file's name as text for a message; the system may give it as bytes or as a descriptor."""
    from madlite.files import shown

    return shown(Path(os.fsdecode(name))) if isinstance(name, str | bytes) else f"file {name}"


def _madlite_error(error: MadliteError) -> int:
    for message, hint in ((error.message, error.hint), *error.more):
        _print_error(message, hint)
    return int(error.exit_code)


def _usage_error(error: click.UsageError) -> int:
    command = error.ctx.command_path if error.ctx else "madlite"
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and error.ctx is not None:
        click.echo(error.ctx.get_help())
        _print_error(f"no command of {error.ctx.info_name} is named", f"{command} --help")
        return int(ExitCode.USAGE)
    message = error.format_message()
    _print_error(message[:1].lower() + message[1:].rstrip("."), f"{command} --help")
    return int(ExitCode.USAGE)


def _print_error(message: str, hint: str = "") -> None:
    echo(f"error: {mask(message)}", err=True)
    if hint:
        echo(f" hint: {mask(hint)}", err=True)


class _MaskingFormatter(logging.Formatter):
    """Formats log records without secrets and without terminal control sequences."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(mask(super().format(record)))


def _internal_error(error: Exception) -> int:
    """Write a bug report to a file and print its path."""
    import tempfile

    text = "".join(traceback.format_exception(error))
    stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}"
    report = f"madlite {__version__}, Python {sys.version}\n{' '.join(sys.argv)}\n\n{text}"
    try:
        with tempfile.NamedTemporaryFile(prefix=f"madlite-{stamp}-", suffix=".txt", delete=False) as file:
            file.write(mask(report).encode("utf-8", "backslashreplace"))
        hint = f"please report it with {file.name}"
    except OSError as problem:
        hint = f"please report it; no file of it could be written: {problem.strerror}"
    _print_error(f"internal error: {type(error).__name__}: {error}", hint)
    return int(ExitCode.INTERNAL)


def _add_plugin_commands(group: click.Group) -> None:
    """Let third-party plugins add their commands, once; without any nothing is loaded."""
    memo: dict[str, Any] = group.__dict__
    if memo.get("_asked_plugins") or os.environ.get("MADLITE_DISABLE_PLUGINS") in ("1", "all"):
        return
    memo["_asked_plugins"] = True
    from madlite.backends.loader import load_plugins, third_party_plugins

    if third_party_plugins():
        before = set(group.commands)
        load_plugins(os.environ.get("MADLITE_DISABLE_PLUGINS", "")).notify("madlite_commands", group=group)
        for name in {*COMMANDS, *ALIASES} & (set(group.commands) - before):
            del group.commands[name]  # a plugin may add commands, not replace ours
