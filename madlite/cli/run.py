"""`madlite run`: from tags to rows."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from madlite.batch.collect import collect_recoverable, recover_cut_off
from madlite.batch.recovery.leftovers import end_orphans, still_running
from madlite.batch.recovery.unfinished import append_pending, complete_side_files, recovery_report
from madlite.batch.resume import inputs_of_all, refuse_other_study, series_of, standing_before
from madlite.batch.runner import BatchSettings, BatchStart
from madlite.cli import setup
from madlite.cli.batch_options import (
    NOT_MEASURED,
    check_pretended,
    cluster_options,
    named_cluster,
    parallel_options,
    pretend_options,
    refuse,
    repeat_options,
    resume_option,
    retry_options,
    sweep_options,
)
from madlite.cli.batches import (
    StudyBatch,
    check_retry,
    is_alone,
    left_by,
    make_batch,
    make_retry,
    note_fallback,
    resume_last,
    resumed,
    unfinished,
)
from madlite.cli.options import (
    TagsCommand,
    batch_options,
    common_options,
    decides_plan,
    is_given,
    live_option,
    plan_options,
    tag_words,
    tags_option,
)
from madlite.cli.planning import check, check_option, check_start, preview
from madlite.cli.screens import Sink
from madlite.cli.setup import cards_option
from madlite.cli.terminal import echo, echo_lines
from madlite.errors import ExitCode, UsageProblem
from madlite.perfcsv.header import new_columns
from madlite.perfcsv.locked import make_folder
from madlite.run.checks import check_plans, in_one_line, run_checks
from madlite.run.screen import PlannedRun

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.batch.attempts import Standing
    from madlite.batch.resume import Resumption
    from madlite.cli.compare import AgainstBaseline
    from madlite.cli.screens import PlainScreen
    from madlite.machine.telemetry.sampler import Settle
    from madlite.model import Runtime
    from madlite.plan.context import Options
    from madlite.run.screen import RunOutcome
    from madlite.store.batches import BatchLog, UnfinishedBatch


@click.command("run", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@click.option(
    "--plan",
    "plan_file",
    multiple=True,
    type=click.Path(path_type=Path),
    callback=lambda ctx, param, files: _only_one(files),
    metavar="FILE",
    help="Run this plan of `madlite plan`. A plan file is code with your rights.",
)
@click.option("--again", is_flag=True, hidden=True, help="With --plan: in place of its run that was cut off.")
@click.option("--attempt", default="", hidden=True, help="With --plan: run it under this id, after a failed attempt.")
@click.option("--smaller-plans", is_flag=True, hidden=True, help="With --plan: --oom-fallback, by plans beside it.")
@click.option("--once", is_flag=True, hidden=True, help="With --plan: only if no run of it has begun here.")
@click.option("--no-rows", is_flag=True, help="Leave the result in the run's folder, for `madlite collect`.")
@pretend_options("script and container request")
@live_option
@check_option
@click.option("--baseline", default="", metavar="NAME", help="Compare with this at the end: a BASE of `compare`.")
@click.option("--fail-on", multiple=True, metavar="GATE", help="With --baseline: exit with 5 on 'regression>3%', …")
@click.option("--allow-undecided", is_flag=True, help="With --fail-on: too few runs to decide are not exit code 5.")
@plan_options
@batch_options
@parallel_options
@sweep_options
@repeat_options
@retry_options
@resume_option
@cluster_options
@common_options
def command(**params: Any) -> int:
    """Run the models that tags select and append their results to perf.csv.

    \b
    madlite run --tags demo
    madlite run --tags pyt_train_llama-3.1-8b --timeout 28800 --live-output
    madlite run --tags demo_hf_lora_tiny:steps=60 --set env.NCCL_DEBUG=INFO --dry-run
    madlite run --cluster mi300 --nodes 4 --tags primus_pyt_train_llama-3.1-8b
    """
    from madlite.cli.submit import refuse_without_cluster, run_on_cluster, translated

    if params["resume"] and is_alone("resume"):
        return resume_last()
    plugins = setup.load(params["no_plugins"], params["verbose"])
    if (to := translated(named_cluster(params), params)) is not None:
        _check_options(params)
        return run_on_cluster(to, plugins, params)
    refuse_without_cluster(params)
    _check_options(params)
    if params["plan_file"] is not None:
        refuse_with_plan(click.get_current_context())
    from madlite.store.batches import BatchLog

    touch = not params["dry_run"]
    options = setup.make_options(params, touch)
    with ExitStack() as opened:
        journal = opened.enter_context(BatchLog(options.workspace, options.command)) if touch else None
        planned, options = opened.enter_context(_plans(plugins, options, params))
        setup.print_problems(plugins.problems)
        if journal is None:
            return _preview(planned, options, plugins, params)
        return run_planned(planned, options, plugins, params, journal)


def _check_options(params: dict[str, Any]) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageProblem, click.UsageError: they do not.
    """
    check_pretended(params)
    if params["check"] and not params["dry_run"]:
        raise click.UsageError("--check starts nothing: use it with --dry-run")
    if params["no_rows"] and is_given("output"):
        raise click.UsageError("--no-rows writes no results file: madlite collect -o FILE does")
    if params["fail_on"] and not params["baseline"]:
        raise click.UsageError("--fail-on needs what to compare with: --baseline NAME")
    _check_repeat(params)
    check_retry(params)
    _check_several(params)
    if params["zip_values"] and not params["sweep"]:
        raise UsageProblem("--zip without --sweep: there is nothing to pair", "add --sweep KEY=A,B")
    for name in ("again", "attempt", "once"):
        if params[name] and not (params["plan_file"] is not None and params["no_rows"]):
            raise click.UsageError(f"--{name} is about a plan's run in its job: use it with --plan and --no-rows")
    if params["sweep"] and params["plan_file"] is not None:
        raise UsageProblem("--sweep beside --plan: a plan is frozen", "leave one of them out")


def _only_one(files: Sequence[Path]) -> Path | None:
    """Return the plan file, the only one."""
    if len(files) > 1:
        raise click.UsageError(f"--plan takes one file, not {len(files)}: a command runs one plan")
    return files[0] if files else None


@contextmanager
def _plans(
    plugins: Plugins, options: Options, params: dict[str, Any]
) -> Iterator[tuple[Sequence[PlannedRun], Options]]:
    """Yield the plans to run, of tags, a manifest or a plan file, and the options that they run with."""
    from madlite.cli.planning import plan_of_file, plan_points

    touch, file = not params["dry_run"], params["plan_file"]
    if file is None:
        yield plan_points(plugins, options, params, touch), options
        return
    if touch:
        setup.copy_model_dir(plugins, None)
    ids = {name: params[name] for name in ("again", "attempt", "once", "smaller_plans")}
    with plan_of_file(file, plugins, options, touch, **ids) as (one, own_options, notes):
        for text in notes:
            setup.warn(text)
        yield [one], own_options


def refuse_with_plan(ctx: click.Context) -> None:
    """Refuse what would decide a plan beside one that is frozen.

    Raises:
        click.UsageError: the command line has such an option.
    """
    for param in ctx.command.params:
        name = param.name or ""
        if decides_plan(name) and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            what = param.opts[-1] if isinstance(param, click.Option) else "a tag"
            raise click.UsageError(f"{what} beside --plan: a plan is frozen; madlite plan makes another one")


def _preview(planned: Sequence[PlannedRun], options: Options, plugins: Plugins, params: dict[str, Any]) -> int:
    from madlite.cli.batches import BatchFiles

    refused, warnings = run_checks(planned, plugins, options.lint)
    shown: Sequence[PlannedRun] = planned
    order: list[str] = []
    if params["repeat"] is not None:
        from madlite.cli.studies import preview_grid

        shown, order = preview_grid(planned, params)
    for one, found in zip(shown, refused, strict=True):
        echo_lines(preview(one, options.environ, map(in_one_line, found)))
    for text in order:
        echo(text)
    for text in warnings:
        setup.warn(text)
    if not params["check"]:
        return 0
    check_start(planned, options, pretended=bool(params["machine"]))
    BatchFiles(planned, options, params)  # which finds that a file of its own cannot be written
    return check(planned, refused, plugins, options, params)


def run_planned(
    planned: Sequence[PlannedRun],
    options: Options,
    plugins: Plugins,
    params: dict[str, Any],
    journal: BatchLog,
    study: StudyBatch | None = None,
) -> int:
    """Run plans to their rows with all that is printed meanwhile, and return the exit code.

    `planned` are those of the `study` that is named, which is checked by them, else the options decide what they are.
    """
    from madlite.cli.batches import BatchFiles, against_baseline, print_totals

    batch_before = unfinished(options.workspace) if params.get("resume") else None
    against = against_baseline(params, options)
    notes = len(plugins.problems)
    planned, warnings = _checked(planned, options, plugins, params)
    runs = study or make_batch(planned, params, journal, batch_before)
    if batch_before is not None:
        refuse_other_study(batch_before, runs.planned)
    batch = BatchFiles(runs.planned, options, params)
    with _shown(options, plugins) as screen:
        recovered = tuple(_recover(options, plugins.runtimes(), batch_before))
        for text in (*warnings, *recovered):
            screen.warn(text)
        before = resumed(batch_before, runs, options, journal, screen) if batch_before is not None else None
        planned = before.with_ids(runs.planned) if before is not None else runs.planned
        batch = BatchFiles(planned, options, params) if before is not None else batch
        for text in _recovery_report(options, recovered, batch_before.study if batch_before is not None else ""):
            screen.warn(text)
        journal.note(
            study=runs.study_id,
            series=series_of(runs.planned),
            inputs=inputs_of_all(planned, options.workspace),
        )
        batch.begin()
        settings = _make_settings(params, against, _standing(params, planned, options, before), before)
        outcome = runs.run(BatchStart(options, plugins, screen, settings, before))
        problems = (*batch.close(outcome, runs.study), *runs.problems)
        _print_outcome(screen, outcome, (*(f"{one.where}: {one.what}" for one in plugins.problems[notes:]), *problems))
        file = options.output if options.rows else None
        kept = journal.close(interrupted=outcome.has_left or outcome.exit_code in _BY_SIGNAL)
        lines = (*runs.lines, *([_GOES_ON] if kept and options.rows else []))
        print_totals(screen, outcome, file, lines, options.contract, from_manifest=not batch.from_tags)
        if outcome.bug is not None:
            raise outcome.bug
    return batch.exit_code(outcome, against)


def _checked(
    planned: Sequence[PlannedRun], options: Options, plugins: Plugins, params: dict[str, Any]
) -> tuple[Sequence[PlannedRun], tuple[str, ...]]:
    """Return the plans as checks leave them, and warnings, once their rows have a place."""
    check_start(planned, options)
    planned, warnings = check_plans(planned, plugins, options.lint)
    warnings = (*warnings, *note_fallback(planned, params))
    if options.rows:
        make_folder(options.output_target or options.output)
    return planned, warnings


@contextmanager
def _shown(options: Options, plugins: Plugins) -> Iterator[PlainScreen]:
    """Yield the screen of the runs, closed after the block; at its end it says what nobody read."""
    from madlite.cli.batches import compare_run
    from madlite.cli.screens import make_screen

    sink = Sink(sys.stdout.fileno())
    compare = partial(compare_run, plugins)
    screen = make_screen(sink, live=options.live_output, as_madengine=bool(options.contract), compare=compare)
    try:
        yield screen
        if sink.dropped_bytes:
            screen.warn(f"{sink.dropped_bytes} bytes were not shown: the output was not read; the log has them")
    finally:
        screen.close()
        sink.close()


_GOES_ON = "madlite run --resume goes on with what was interrupted or never started"
_BY_SIGNAL = (ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.HANGUP)


def _make_settings(
    params: dict[str, Any],
    against: AgainstBaseline | None,
    standing: Mapping[str, Standing],
    resumed: Resumption | None,
) -> BatchSettings:

    return BatchSettings(
        at_once=1 if params["parallel"] is None else params["parallel"],
        max_failures=1 if params["fail_fast"] else params["max_failures"],
        exclusive=params["exclusive"],
        bind=params["bind"],
        settle=_make_settle(params),
        relative_change=against.cell if against else None,
        retry=make_retry(params),
        standing=standing,
        earlier=resumed.earlier if resumed is not None else {},
        recoverable=bool(params.get("resume")),
    )


def _standing(
    params: dict[str, Any], planned: Sequence[PlannedRun], options: Options, resumed: Resumption | None
) -> Mapping[str, Standing]:
    """Return the failed attempts that are followed by one of these runs."""
    if not params.get("attempt"):
        return resumed.standing if resumed is not None else {}

    return standing_before(planned[0].plan, options.output, new_columns(options.contract))


def _check_repeat(params: dict[str, Any]) -> None:
    """Refuse options of repeated runs that do not go together.

    Raises:
        UsageProblem: they do not, or --settle names no temperature.
    """
    _make_settle(params)
    if is_given("settle_timeout") and params["settle"] is None:
        raise UsageProblem("--settle-timeout without --settle: there is nothing to wait for", "add --settle")
    if params["repeat"] is None and params["cold"]:
        raise UsageProblem("--cold without --repeat: it is about the caches of repeated runs", "add --repeat N")
    study = "--repeat" if params["repeat"] is not None else "--sweep" if params["sweep"] else ""
    if study:
        refuse(params, NOT_MEASURED, f"beside {study}", study)


def _check_several(params: dict[str, Any]) -> None:
    """Refuse options of several runs that do not go together.

    Raises:
        UsageProblem: they do not.
    """
    if params["fail_fast"] and params["max_failures"] not in (None, 1):
        raise UsageProblem(f"--fail-fast is --max-failures 1, not {params['max_failures']}", "leave one of them out")
    if params["parallel"] in (None, 1):
        return
    for option, is_there, why in (
        ("--repeat", params["repeat"] is not None, "the runs of a series would disturb each other"),
        ("--exclusive", params["exclusive"], "each run is to have the machine to itself"),
        ("--keep-alive", params["keep_alive"], "what a run leaves running would be on the GPUs of the next one"),
    ):
        if is_there:
            raise UsageProblem(f"--parallel beside {option}: {why}", f"leave --parallel or {option} out")


def _make_settle(params: dict[str, Any]) -> Settle | None:
    if params["settle"] is None:
        return None
    from madlite.machine.telemetry.sampler import make_settle

    return make_settle(params["settle"], params["settle_timeout"])


def _print_outcome(screen: PlainScreen, outcome: RunOutcome, problems: Sequence[str]) -> None:
    for text in problems:
        screen.warn(text)
    if outcome.not_started:
        counts = Counter(outcome.not_started).items()
        names = ", ".join(f"{name} ({count} runs)" if count > 1 else name for name, count in counts)
        screen.warn(f"never started: {names}")


def _recover(options: Options, runtimes: Mapping[str, Runtime], before: UnfinishedBatch | None = None) -> Iterator[str]:
    """End what interrupted earlier runs left running, and add their rows that the results file lacks; yield warnings.

    What is tried again of the batch `before`, which is resumed, is left.
    """
    workspace, output = options.workspace, options.output_target or options.output
    yield from end_orphans(workspace, options.environ, runtimes)
    if options.rows:
        begin = new_columns(options.contract)
        yield from append_pending(workspace, output, begin)
        yield from complete_side_files(workspace)
        yield from recover_cut_off(workspace, output, begin, still_running(workspace))
        yield from collect_recoverable(workspace, output, begin, left_by(before, workspace))


def _recovery_report(options: Options, told: Iterable[str], resumed: str = "") -> list[str]:
    """Return warnings about interrupted earlier runs, apart from those `told` and the study that is `resumed`."""
    # without rows it is possibly one of many jobs: `madlite collect` reports the others
    return recovery_report(options.workspace, resumed, told) if options.rows else []
