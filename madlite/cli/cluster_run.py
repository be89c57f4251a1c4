"""`madlite run --cluster NAME`: plans → jobs, followed to their rows; with --resume also of an earlier command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.resume import Resumption, is_finished, refuse_other_study, series_of
from madlite.batch.runner import Batch, BatchRuns, requested_run
from madlite.bundled import template_root
from madlite.cli import batches, setup
from madlite.cli.batch_options import named_cluster
from madlite.cli.job_screen import ClusterScreen
from madlite.cli.model_dir import home
from madlite.cli.options import is_given
from madlite.cli.planning import Planner, local_secret_sources, plan_points, planner, preview
from madlite.cli.screens import open_screen
from madlite.cli.studies import place_text
from madlite.cli.terminal import echo, echo_lines
from madlite.errors import ExitCode
from madlite.jobs.file import check_shared, context_values
from madlite.jobs.followers import Followers
from madlite.jobs.submission import Stored, stored_submissions
from madlite.jobs.submit import Prepared, prepare, write
from madlite.perfcsv.append import check_appendable
from madlite.plan.context import ASKED, Options, merge
from madlite.plan.inputs import split_hosts
from madlite.plan.plan_file import plan_digest
from madlite.plan.schedulers import Scheduler, Translation
from madlite.plan.submission import PlannedRun
from madlite.platforms.registry import scheduler_of
from madlite.run.checks import check_plans
from madlite.run.from_plan import inputs_of
from madlite.run.screen import RunOutcome
from madlite.store.batches import BatchLog, LoggedBatch
from madlite.store.folder import check_runs_folder
from madlite.text import counted


class ClusterStudy(Protocol):
    """Runs of one command that are more than its tags; what they come to is told as their records have it."""

    def check(self, nodes: int, cluster: str) -> None:
        """Refuse more nodes than the cluster has."""

    def plan(self, plan: Planner, options: Options) -> Sequence[PlannedRun]:
        """Return the runs, planned with the options of each."""


def run_on_cluster(to: Translation, plugins: Plugins, params: dict[str, Any], study: ClusterStudy | None = None) -> int:
    """Plan, submit and follow; return the exit code of the runs, or with --detach 0."""
    cluster = to.cluster
    named = ("--cluster", cluster.name) if named_cluster(params) and not is_given("cluster") else ()
    params = {**params, "cluster": cluster.name}
    touch = not params["dry_run"]
    scheduler = scheduler_of(cluster, dict(os.environ), Followers())
    if touch:
        to = replace(to, cluster=scheduler.check_here())
        cluster = to.cluster
    setup.warn(*to.notes)
    scheduler.exclude(split_hosts(",".join(params["exclude"])))
    options = options_of_jobs(params, to, scheduler, touch)
    check_shared(cluster, options.workspace)
    if touch and study is not None:
        study.check(len(scheduler.nodes()), cluster.name)
    with BatchLog(options.workspace, (*options.command, *named)) as journal:
        given = _Given(plugins, options, params, journal, scheduler)
        runs, before = _plans(given, study)
        resumption, earlier = _resumed(given, runs, before) if before is not None else (Resumption(), [])
        left = resumption.left(runs.planned)
        prepared = None
        if jobs := [run for run in left if run.plan.blocked is None]:
            search, retry = [options.workspace / "templates", template_root(home())], batches.make_retry(params)
            most, sources = 1 if params["fail_fast"] else params["max_failures"] or 0, local_secret_sources(options)
            prepared = prepare(jobs, journal.id, cluster, scheduler, options, search, sources, retry, most)
        if not touch:
            return _print_scripts(prepared, [run for run in left if run.plan.blocked is not None], options)
        return _submit(given, runs, resumption, prepared, earlier)


class _Given(NamedTuple):
    """What a command was given, and where it notes its runs."""

    plugins: Plugins
    options: Options
    params: dict[str, Any]
    journal: BatchLog
    scheduler: Scheduler


def _resumed(given: _Given, runs: BatchRuns, before: LoggedBatch) -> tuple[Resumption, list[Stored]]:
    """Write the rows of what is over of an earlier command's jobs; return what of its runs is finished or goes on.

    Second are the submissions that had open runs.

    Raises:
        UsageProblem: its runs are another study's.
    """
    refuse_other_study(before, runs.planned)
    asked, every = {run.id for run in before.requested}, stored_submissions(given.options.workspace)
    screen = ClusterScreen(given.options, given.plugins)
    follower = screen.follower([one for one in every if not asked.isdisjoint(run.id for run in one.open_runs)])
    follower.collect()
    before.going = frozenset(run.id for run in follower.open_runs)
    found = batches.resumed(before, runs, given.options, given.journal, screen.plain)
    return found, [tracker.stored for tracker in follower.trackers]


def options_of_jobs(params: dict[str, Any], to: Translation, scheduler: Scheduler, touch: bool) -> Options:
    """Return the options of the plans, after the cluster's values went below the context."""
    cluster = to.cluster
    values = merge(merge(context_values(cluster), to.values), scheduler.context())
    if not cluster.gpu:
        values["gpu_vendor"] = "CPU"
    setup.put_under_context(params, values, f"{cluster.source}: [clusters.{cluster.name}]", to.done)
    params["machine"] = cluster.machine
    nodes = params["nodes"] or to.nodes
    options = setup.make_options({**params, "nodes": None}, touch)
    environ = {**options.environ, "MAD_DEPLOYMENT_TYPE": cluster.scheduler}
    # an allocation that this command is typed in is not that of its jobs
    asked = replace(options, environ=environ, runtime=params["runtime"], runtime_origin=ASKED, nodes=nodes)
    return scheduler.adjust(replace(asked, allocation="", elsewhere=True))


def _plans(given: _Given, own: ClusterStudy | None) -> tuple[BatchRuns, LoggedBatch | None]:
    """Return the plans of the runs, and with --resume the batch that has runs of equal plans.

    Those of a study are of that batch's, else they are one under the submission's id.
    """
    plugins, options, params, journal, _ = given
    touch = not params["dry_run"]
    if own is None:
        planned: Sequence[PlannedRun] = plan_points(plugins, options, params, touch)
    else:
        planned = own.plan(planner(plugins, options, params, touch), options)
    setup.print_problems(plugins.problems)
    planned, warnings = check_plans(planned, plugins, options.lint)
    setup.warn(*warnings, *batches.note_fallback(planned, params))
    if touch:
        check_runs_folder(options.workspace)
        check_appendable(options.output, options.workspace)
    runs = batches.make_batch(planned, params, journal)
    if not params["resume"]:
        return runs, None
    digests = {plan_digest(run.plan) for run in runs.planned}
    before = batches.unfinished(
        options.workspace,
        lambda batch: bool(batch.cluster) and not digests.isdisjoint(run.digest for run in batch.requested),
        " with jobs for runs of this command",
    )
    return batches.make_batch(planned, params, journal, before), before


def _print_scripts(prepared: Prepared | None, blocked: Sequence[PlannedRun], options: Options) -> int:
    """Print the plan of each run, once of those that are repeated, which job each has, and the scripts of the jobs."""
    for run in blocked:
        if run.plan.blocked is not None:
            hint = f" ({run.plan.blocked.hint})" if run.plan.blocked.hint else ""
            setup.warn(f"{run.plan.card.name}: would not start: {run.plan.blocked.reason}{hint}")
    if prepared is None:
        return int(ExitCode.OK)
    for run in prepared.planned:
        is_first = run.plan.study is None or run.plan.study.index in (None, 1)
        if is_first and not run.plan.traits.manifests:  # those are all that the script has
            echo_lines(preview(run, options.environ))
    _print_runs(prepared)
    for number, text in prepared.scripts.items():
        echo(f"# --- job {number} of {len(prepared.scripts)}")
        echo_lines(text)
    return int(ExitCode.OK)


def _print_runs(prepared: Prepared) -> None:
    count = len(prepared.planned)
    echo(f"# --- {counted(count, 'run')}")
    for script in prepared.submission.scripts:
        for index, run in enumerate(script.of(prepared.planned), 1):
            element = f", element {index}" if script.count > 1 else ""
            echo(f"# {script.first - 1 + index}: {place_text(run)}: job {script.number}{element}")


def _submit(given: _Given, runs: BatchRuns, before: Resumption, new: Prepared | None, earlier: list[Stored]) -> int:
    plugins, options, params, _, scheduler = given
    against = batches.against_baseline(params, options)
    files = batches.BatchFiles(before.with_ids(runs.planned), options, params)
    files.begin()
    outcome, submitted = _begin(given, runs, before, new)
    screen = None
    if stored := [*earlier, *submitted]:
        screen = ClusterScreen(options, plugins)
        follower = screen.follower(stored, params["on_interrupt"], scheduler=None if earlier else scheduler)
        for tracker in follower.trackers:
            tracker.before = ()  # they were told
        code = follower.submit_and_follow(detach=params["detach"]) or int(outcome.exit_code)
        if params["detach"]:
            return screen.close(follower, code)
        screen.write_studies(follower)
        of_jobs = follower.outcome(code)  # what could not start comes before it
        results, left = (*outcome.results, *of_jobs.results), (*outcome.not_started, *of_jobs.not_started)
        outcome = replace(outcome, results=results, not_started=left, exit_code=of_jobs.exit_code)
        if left or not all(map(is_finished, results)):
            screen.lines.append("madlite run --resume goes on with what is open or did not come to its own end")
    outcome = before.whole(runs.planned, outcome)
    setup.warn(*files.close(outcome, screen.study if screen is not None else None))
    if screen is not None:
        lines, version = screen.lines, options.contract
        batches.print_totals(screen.plain, outcome, options.output, lines, version, from_manifest=not files.from_tags)
    return files.exit_code(outcome, against)


def _begin(given: _Given, runs: BatchRuns, before: Resumption, new: Prepared | None) -> tuple[RunOutcome, list[Stored]]:
    """Note the runs that are left, write the rows of those that cannot start, and the files of the others' jobs."""
    plugins, options, params, journal, _ = given
    inputs, left = inputs_of(run.plan for run in runs.planned), before.left(runs.planned)
    journal.note(study=runs.study_id, series=series_of(runs.planned), inputs=inputs, cluster=params["cluster"])
    going = (asked for name, asked in before.requested.items() if name not in before.finished)
    journal.request((*going, *map(requested_run, left)))
    outcome = RunOutcome(results=(), not_started=(), exit_code=ExitCode.OK)
    if blocked := [run for run in left if run.plan.blocked is not None]:
        with open_screen(live=False) as screen:
            outcome = Batch(blocked, options, plugins, screen, journal).run()
    stored = [write(new, options, plugins, local_secret_sources(options))] if new is not None else []
    journal.close()
    return outcome, stored
