"""`madlite run`: from tags to rows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.attempts import Standing
from madlite.batch.collect import recover
from madlite.batch.leftovers import end_orphans, recovery_report, still_running
from madlite.batch.resume import failed_before, find_standing, refuse_other_study
from madlite.batch.runner import BatchRuns, BatchSettings, BatchStart, series_of
from madlite.cli import batches, setup
from madlite.cli.arguments import file_option
from madlite.cli.batch_options import (
    check_together,
    cluster_names,
    cluster_options,
    named_cluster,
    parallel_options,
    pretend_options,
    recovery_options,
    repeat_options,
    sweep_options,
)
from madlite.cli.options import (
    TagsCommand,
    batch_options,
    common_options,
    is_given,
    live_option,
    models_options,
    plan_options,
    section,
    spelled,
)
from madlite.cli.planning import check, check_option, plan_of_file, plan_points, preview, translated
from madlite.cli.screens import PlainScreen, open_screen
from madlite.cli.terminal import echo_lines
from madlite.errors import ExitCode, UsageProblem
from madlite.machine.telemetry import Settle, make_settle
from madlite.model import Runtime, Status
from madlite.perfcsv.append import make_folder
from madlite.perfcsv.rows import new_columns
from madlite.plan.context import Options
from madlite.plan.inputs import RUNS
from madlite.plan.submission import PlannedRun
from madlite.platforms.registry import preemption_here
from madlite.run.from_plan import inputs_of
from madlite.run.planning import check_plans, check_start, in_one_line, run_checks
from madlite.run.screen import RunOutcome
from madlite.store.batches import BatchLog, LoggedBatch

if TYPE_CHECKING:
    from madlite.cli.compare import AgainstBaseline
    from madlite.study.engine import Search


@click.command("run", cls=TagsCommand)
@section("Models")
@models_options
@file_option(
    "--plan",
    "plan_file",
    multiple=True,
    callback=lambda ctx, param, files: _only_one(files),
    what="Run this plan of `madlite plan`. A plan file is code with your rights.",
)
@click.option("--again", is_flag=True, hidden=True, help="With --plan: in place of its run that was cut off.")
@click.option("--smaller-plans", is_flag=True, hidden=True, help="With --plan: --oom-fallback, by plans beside it.")
@click.option("--once", is_flag=True, hidden=True, help="With --plan: only if no run of it has begun here.")
@pretend_options("script and container request")
@check_option
@section("Results")
@click.option("--no-rows", is_flag=True, help="Leave the result in the run's folder, for `madlite runs collect`.")
@live_option
@click.option("--baseline", default="", metavar="NAME", help="Compare with this at the end: a BASE of `compare`.")
@click.option("--fail-on", multiple=True, metavar="GATE", help="With --baseline: exit with 5 on 'regression>3%', …")
@click.option("--allow-undecided", is_flag=True, help="With --fail-on: too few runs to decide are not exit code 5.")
@plan_options
@batch_options
@parallel_options
@sweep_options
@repeat_options
@recovery_options
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
    if params["resume"] and params["cluster"] is not None:
        from madlite.cli.submit import attach_last

        return attach_last(named_cluster(params), params)
    if (code := batches.resume_as_begun()) is not None:
        return code
    plugins = setup.load(params["no_plugins"])
    every = [translated(name, params) for name in cluster_names(named_cluster(params)) or [""]]
    clusters = [to for to in every if to is not None]
    check_together(on_cluster=bool(clusters))
    _make_settle(params)
    batches.check_recovery(params)
    if clusters:
        from madlite.cli.submit import run_on_clusters

        return run_on_clusters(clusters, plugins, params)
    if params["plan_file"] is not None:
        _check_frozen()
    touch = not params["dry_run"]
    options = setup.make_options(params, touch)
    journal = BatchLog(options.workspace, options.command)
    with journal, _plans(plugins, options, params) as (planned, own_options, standing):
        setup.print_problems(plugins.problems)
        if not touch:
            return _preview(planned, own_options, plugins, params)
        return run_planned(planned, own_options, plugins, params, journal, standing=standing)


def _only_one(files: Sequence[Path]) -> Path | None:
    """Return the plan file, the only one."""
    if len(files) > 1:
        raise click.UsageError(f"--plan takes one file, not {len(files)}: a command runs one plan")
    return files[0] if files else None


@contextmanager
def _plans(
    plugins: Plugins, options: Options, params: dict[str, Any]
) -> Iterator[tuple[Sequence[PlannedRun], Options, Mapping[str, Standing]]]:
    """Yield the plans to run, of tags, a manifest or a plan file, the options they run with, and what they follow."""
    touch, file = not params["dry_run"], params["plan_file"]
    if file is None:
        yield plan_points(plugins, options, params, touch), options, {}
        return
    if touch:
        setup.copy_model_dir(plugins, None)
    ids = {name: params[name] for name in ("again", "once", "smaller_plans")}
    with plan_of_file(file, plugins, options, touch, **ids) as (run, own_options, notes, standing):
        setup.warn(*notes)
        yield [run], own_options, standing


def _check_frozen() -> None:
    """Refuse what decides a plan beside one that is frozen: the options of `madlite plan`.

    Raises:
        UsageProblem: the command line has such an option.
    """
    from madlite.cli.plan import command as plan

    for param in plan.params:
        name = str(param.name)
        if name not in ("lint", "contract", "no_plugins", "verbose") and is_given(name):
            what = spelled(name) if isinstance(param, click.Option) else "a tag"
            raise UsageProblem(f"{what} beside --plan: a plan is frozen", "madlite plan makes another one")


def _preview(planned: Sequence[PlannedRun], options: Options, plugins: Plugins, params: dict[str, Any]) -> int:
    refused, warnings = run_checks(planned, plugins, options.lint)
    shown: Sequence[PlannedRun] = planned
    if params["repeat"] is not None:
        from madlite.cli.studies import preview_grid

        shown = preview_grid(planned, params)
    for run, found in zip(shown, refused, strict=True):
        echo_lines(preview(run, options.environ, map(in_one_line, found)))
    setup.warn(*warnings)
    if not params["check"]:
        return 0
    check_start(planned, options, pretended=bool(params["machine"]))
    batches.BatchFiles(options, params)  # which finds that a file of its own cannot be written
    return check(planned, refused, plugins, options, params)


class StudyPlan(NamedTuple):
    """What a command makes of its tags: the runs that it begins with, a search, and what prints them for --dry-run."""

    runs: Sequence[PlannedRun]
    preview: Callable[[], None]
    search: Search | None = None


def with_run_options(params: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a study's command, with those of `madlite run` that it does not have."""
    return {**command.make_context("run", [], resilient_parsing=True).params, **params}


def run_search(params: dict[str, Any], plan: Callable[[dict[str, Any], Plugins, Options], StudyPlan]) -> int:
    """Make the runs of a search, or go on with the one that --resume means; return the exit code."""
    if (code := batches.resume_as_begun()) is not None:
        return code
    check_together()
    params = with_run_options(params)
    return run_study(setup.load(params["no_plugins"]), params, partial(plan, params))


def run_study(plugins: Plugins, params: dict[str, Any], plan: Callable[[Plugins, Options], StudyPlan]) -> int:
    """Make the runs of a study, or with --dry-run print what it would do; return the exit code."""
    touch = not params["dry_run"]
    options = setup.make_options(params, touch)
    with BatchLog(options.workspace, options.command) as journal:
        study = plan(plugins, options)
        setup.print_problems(plugins.problems)
        if not touch:
            study.preview()
            return 0
        runs = None
        if study.search is not None:
            from madlite.study.engine import open_search

            runs = open_search(study.search, study.runs[0], options, journal, params["resume_study"])
        return run_planned(study.runs, options, plugins, params, journal, runs)


def run_planned(
    planned: Sequence[PlannedRun],
    options: Options,
    plugins: Plugins,
    params: dict[str, Any],
    journal: BatchLog,
    study: BatchRuns | None = None,
    standing: Mapping[str, Standing] = {},
) -> int:
    """Run plans to their rows with all that is printed meanwhile, and return the exit code.

    `planned` are those of the `study` that is named, which is checked by them, else the options decide what they are.
    `standing` are failed attempts that they follow, by their ids.
    """
    failed = bool(params.get("failed"))
    batch_before = batches.unfinished(options.workspace, failed=failed) if params.get("resume") else None
    against = batches.against_baseline(params, options)
    notes = len(plugins.problems)
    planned, warnings = _checked(planned, options, plugins, params)
    runs = study or batches.make_batch(planned, params, journal, batch_before)
    if batch_before is not None:
        refuse_other_study(batch_before, runs.planned)
    batch = batches.BatchFiles(options, params)
    compare, as_madengine = partial(batches.compare_run, plugins), bool(options.contract)
    with open_screen(live=options.live_output, as_madengine=as_madengine, compare=compare) as screen:
        recovered = tuple(_recover(options, plugins.runtimes(), batch_before))
        for text in (*warnings, *recovered):
            screen.warn(text)
        before = batches.resumed(batch_before, runs, options, journal, screen) if batch_before is not None else None
        planned = before.with_ids(runs.planned) if before is not None else runs.planned
        # without rows it is possibly one of many jobs: `madlite runs collect` reports the others
        study_before = batch_before.study if batch_before is not None else ""
        for text in recovery_report(options.workspace, study_before, recovered) if options.rows else ():
            screen.warn(text)
        journal.note(study=runs.study_id, series=series_of(runs.planned), inputs=inputs_of(run.plan for run in planned))
        batch.begin()
        standing = before.standing if before is not None else standing
        standing = standing or (failed_before(planned[0].plan) if params.get("plan_file") else {})
        ends_alike = study is None and bool(runs.study_id) and not params["keep_going"]
        settings = replace(_make_settings(params, against, standing), ends_alike=ends_alike)
        if params["plan_file"] is not None and not options.rows:  # possibly a job
            settings = replace(settings, preemption=partial(preemption_here, options.environ))
        outcome = runs.run(BatchStart(options, plugins, screen, settings, before))
        problems = (*batch.close(planned, outcome, runs.study), *runs.problems)
        _print_outcome(
            screen, outcome, (*(f"{problem.where}: {problem.what}" for problem in plugins.problems[notes:]), *problems)
        )
        file = options.output if options.rows else None
        kept = journal.close(interrupted=outcome.has_left or outcome.exit_code in _BY_SIGNAL)
        ids = [result.plan_id for result in outcome.results if result.status is Status.SUCCESS]
        slower = _slowdowns(options.workspace, ids) if not against and study is None and options.rows and ids else ()
        lines = (*runs.lines, *slower, *([_GOES_ON] if kept and options.rows else []))
        batches.print_totals(screen, outcome, file, lines, options.contract, from_manifest=not batch.from_tags)
        if outcome.bug is not None:
            raise outcome.bug
    return batch.exit_code(outcome, against)


def _checked(
    planned: Sequence[PlannedRun], options: Options, plugins: Plugins, params: dict[str, Any]
) -> tuple[Sequence[PlannedRun], tuple[str, ...]]:
    """Return the plans as checks leave them, and warnings, once their rows have a place."""
    check_start(planned, options)
    planned, warnings = check_plans(planned, plugins, options.lint)
    warnings = (*warnings, *batches.note_fallback(planned, params))
    if options.rows:
        make_folder(options.output_target or options.output)
    return planned, warnings


def _slowdowns(workspace: Path, ids: Sequence[str]) -> Sequence[str]:
    if len(os.listdir(workspace / RUNS)) <= _FEW_RUNS:  # noqa: PTH208 - how many, at the least cost
        return ()
    from madlite.reports.comparison import slowdowns

    return slowdowns(workspace, ids)


_FEW_RUNS = 5  # which tell nothing of what is usual
_GOES_ON = "madlite run --resume goes on with what was interrupted or never started"
_BY_SIGNAL = (ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.HANGUP)


def _make_settings(
    params: dict[str, Any], against: AgainstBaseline | None, standing: Mapping[str, Standing]
) -> BatchSettings:

    return BatchSettings(
        at_once=1 if params["parallel"] is None else params["parallel"],
        max_failures=1 if params["fail_fast"] else params["max_failures"],
        exclusive=params["exclusive"],
        bind=params["bind"],
        settle=_make_settle(params),
        relative_change=against.cell if against else None,
        retry=batches.make_retry(params),
        micro_batches={} if params["oom_fallback"] else None,
        standing=standing,
        recoverable=bool(params.get("resume")),
    )


def _make_settle(params: dict[str, Any]) -> Settle | None:
    if params["settle"] is None:
        return None

    return make_settle(params["settle"], params["settle_timeout"])


def _print_outcome(screen: PlainScreen, outcome: RunOutcome, problems: Sequence[str]) -> None:
    for text in problems:
        screen.warn(text)
    if outcome.not_started:
        counts = Counter(outcome.not_started).items()
        names = ", ".join(f"{name} ({count} runs)" if count > 1 else name for name, count in counts)
        screen.warn(f"never started: {names}")


def _recover(options: Options, runtimes: Mapping[str, Runtime], before: LoggedBatch | None = None) -> Iterator[str]:
    """End what interrupted earlier runs left running, and add their rows that the results file lacks; yield warnings.

    What is tried again of the batch `before`, which is resumed, is left.
    """
    workspace, output = options.workspace, options.output_target or options.output
    yield from end_orphans(workspace, options.environ, runtimes)
    if options.rows:
        begin = new_columns(options.contract)
        leave = find_standing(before, workspace).values() if before is not None else ()
        yield from recover(workspace, output, begin, still_running(workspace), leave)
