"""`madlite run`: from tags to rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from madlite.cli import setup
from madlite.cli.cards import cards_option
from madlite.cli.check import check, check_option, check_start
from madlite.cli.contract import closing_lines
from madlite.cli.options import TagsCommand, batch_options, common_options, plan_options, tag_words, tags_option
from madlite.cli.sink import Sink
from madlite.cli.terminal import say
from madlite.errors import ExitCode

if TYPE_CHECKING:
    from madlite.cli.screens import PlainScreen
    from madlite.engine.screen import Outcome, Planned
    from madlite.plan.options import Options
    from madlite.plugins import Plugins
    from madlite.run.batch import Batch as Intent


@click.command("run", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@click.option("-n", "--dry-run", is_flag=True, help="Print script and container request, and touch nothing.")
@click.option("-l", "--live-output", is_flag=True, help="Show the workload's output too.")
@click.option("--machine", default="", metavar="NxGPU", help="With --dry-run: pretend this machine, e.g. 8xMI300X.")
@check_option
@plan_options
@batch_options
@common_options
def command(**given: Any) -> int:
    """Run the models that tags select and append their results to perf.csv.

    \b
    madlite run --tags demo
    madlite run --tags pyt_train_llama-3.1-8b --timeout 28800 --live-output
    madlite run --tags demo_hf_lora_tiny:steps=60 --set env.NCCL_DEBUG=INFO --dry-run
    """
    plugins = setup.load(given["no_plugins"], given["verbose"])
    if given["machine"] and not given["dry_run"]:
        raise click.UsageError("--machine only pretends: use it with --dry-run")
    if given["check"] and not given["dry_run"]:
        raise click.UsageError("--check starts nothing: use it with --dry-run")
    from madlite.cli.planning import plan_all

    touch = not given["dry_run"]
    options = setup.make_options(given, touch)
    if given["dry_run"]:
        planned = plan_all(plugins, options, given, touch)
        setup.tell_problems(plugins.problems)
        return _preview(planned, options, plugins, given)
    from madlite.run.batch import Batch as Intent

    with Intent(options.workspace, options.command) as intent:
        planned = plan_all(plugins, options, given, touch)
        setup.tell_problems(plugins.problems)
        return _run(planned, options, plugins, given, intent)


def _preview(planned: Sequence[Planned], options: Options, plugins: Plugins, given: dict[str, Any]) -> int:
    from madlite.cli.batch import Batch
    from madlite.cli.preview import preview
    from madlite.engine.lint import in_one_line, look

    refused, warnings = look(planned, plugins, options.lint)
    for one, found in zip(planned, refused, strict=True):
        say(preview(one, options.environ, map(in_one_line, found)))
    for text in warnings:
        setup.warn(text)
    if not given["check"]:
        return 0
    check_start(planned, options, pretended=bool(given["machine"]))
    Batch(planned, options, given)  # which finds that a file of its own cannot be written
    return check(planned, refused, plugins, options, given)


def _run(planned: Sequence[Planned], options: Options, plugins: Plugins, given: dict[str, Any], intent: Intent) -> int:
    from madlite.cli.batch import Batch
    from madlite.cli.screens import make_screen
    from madlite.engine.lint import check_plans
    from madlite.engine.many import run_many
    from madlite.record.locked import make_folder

    check_start(planned, options)
    told = len(plugins.problems)
    planned, warnings = check_plans(planned, plugins, options.lint)
    make_folder(options.output_target or options.output)
    batch = Batch(planned, options, given)
    sink = Sink(sys.stdout.fileno())
    screen = make_screen(sink, live=options.live_output, as_madengine=bool(options.contract))
    try:
        for text in (*warnings, *_left_over(options)):
            screen.warn(text)
        batch.begin()
        outcome = run_many(planned, options, plugins, screen, batch=intent)
        problems = batch.close(outcome)
        _tell(screen, outcome, (*(f"{one.where}: {one.what}" for one in plugins.problems[told:]), *problems))
        screen.total(outcome, options.output)
        screen.end(closing_lines(options.contract, outcome, from_manifest=not batch.from_tags))
        intent.close()
        if outcome.bug is not None:
            raise outcome.bug
        if sink.dropped_bytes:
            screen.warn(f"{sink.dropped_bytes} bytes were not shown: nobody read them; the log has them")
    finally:
        screen.close()
        sink.close()
    only_builds = outcome.exit_code in (ExitCode.OK, ExitCode.BUILD_FAILED)
    return int(ExitCode.RUN_FAILED if batch.failed and only_builds else outcome.exit_code)


def _tell(screen: PlainScreen, outcome: Outcome, problems: Sequence[str]) -> None:
    for text in problems:
        screen.warn(text)
    if outcome.not_started:
        screen.warn(f"never started: {', '.join(outcome.not_started)}")


def _left_over(options: Options) -> list[str]:
    """Say that earlier runs were cut off, for the next command is the first that can, and end what of them goes on.

    Rows of theirs that the results file did not take are added to it.
    """
    from madlite.engine.kept import add_kept
    from madlite.engine.unfinished import say_undone
    from madlite.record.header import new_columns
    from madlite.run.leftovers import end_orphans

    workspace, output = options.workspace, options.output_target or options.output
    begin = new_columns(options.contract)
    return [*end_orphans(workspace, options.environ), *add_kept(workspace, output, begin), *say_undone(workspace)]
