"""`madlite run --cluster NAME`: plans → jobs, followed to their rows; `madlite cluster`: the cluster file."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.runner import Batch
from madlite.catalog.sources import template_root
from madlite.cli import setup
from madlite.cli.arguments import FILE, count_option, file_option, whole_number
from madlite.cli.batch_options import EVERY, cluster_names, exclude_option
from madlite.cli.batches import BatchFiles, against_baseline, make_retry, makes_study, note_fallback, print_totals
from madlite.cli.job_screen import ClusterScreen, open_jobs
from madlite.cli.main import Group
from madlite.cli.options import Command, is_given, spelled, verbose_option
from madlite.cli.planning import local_secret_sources, open_cluster, plan_points, planner, preview
from madlite.cli.screens import open_screen
from madlite.cli.setup import home
from madlite.cli.studies import place_text
from madlite.cli.terminal import echo, echo_lines
from madlite.errors import ExitCode, RuntimeProblem, UsageProblem, did_you_mean
from madlite.files import exists, write_named
from madlite.jobs.file import NAME, VARIABLE, check_shared, context_values, read_clusters
from madlite.jobs.outcomes import why_never
from madlite.jobs.submission import Stored, new_submission_id, stored_submissions, submitting
from madlite.jobs.submit import Prepared, prepare, prepare_again, write
from madlite.machine.host import Host
from madlite.machine.products import PRODUCTS, find_product
from madlite.perfcsv.append import check_appendable
from madlite.plan.cluster import Cluster
from madlite.plan.context import ASKED, Options, merge
from madlite.plan.inputs import RUNS, expand_hosts
from madlite.plan.place import serving_note
from madlite.plan.schedulers import JobState, Scheduler, Translation, Unreachable
from madlite.plan.submission import PlannedRun, Submission
from madlite.platforms.node_check import Examination, check_node, failures, held, read_reports, write_request
from madlite.platforms.registry import SCHEDULERS, runtime_values, scheduler_of
from madlite.run.planning import check_plans
from madlite.run.screen import RunOutcome
from madlite.store.events import now
from madlite.store.folder import CHECK_PREFIX, check_runs_folder
from madlite.study.each_node import plan_nodes
from madlite.study.grid import plan_grid
from madlite.text import counted

if TYPE_CHECKING:
    from madlite.cli.scaling import Points
    from madlite.platforms.kubernetes.scheduler import Kubernetes


def planning_options(to: Translation, params: dict[str, Any]) -> Options:
    """Return the options by which runs of a cluster are planned that a command only shows.

    Raises:
        UsageProblem: an option says nothing of the cluster's runs.
    """
    setup.warn(*to.notes)
    params["cluster"] = to.cluster.name
    return _options(params, to, scheduler_of(to.cluster, dict(os.environ)), touch=False)


class _Share(NamedTuple):
    """What one cluster gets of a command: a submission, None where no run can start, and what cannot."""

    prepared: Prepared | None
    blocked: Sequence[PlannedRun]
    options: Options


def run_on_clusters(
    every: Sequence[Translation], plugins: Plugins, params: dict[str, Any], study: Points | None = None
) -> int:
    """Plan, submit and follow; return the exit code of the runs, or with --detach 0.

    Of several clusters each gets the next run in turn, as it is planned for it.
    """
    gpus = {to.cluster.name: to.cluster.gpu or "no GPU" for to in every}
    if len(every) > 1 and (params["sweep"] or params["each_node"]):
        what = f"--sweep or --each-node beside --cluster {','.join(gpus)}: runs that are compared are on one cluster"
        raise UsageProblem(what, f"--cluster {next(iter(gpus))}")
    if len({*gpus.values()}) > 1:
        names = ", ".join(f"{name} {gpu}" for name, gpu in gpus.items())
        setup.warn(f"the clusters have different GPUs, so that their numbers are not comparable: {names}")
    shares = [_share(to, plugins, params, study, slice(turn, None, len(every))) for turn, to in enumerate(every)]
    if not params["dry_run"]:
        return _submit(shares, plugins, params)
    for name, share in zip(gpus, shares, strict=True):
        echo(*([f"# === cluster {name}"] if len(shares) > 1 else []))
        _print_scripts(share.prepared, share.blocked, share.options)
    return int(ExitCode.OK)


def _share(to: Translation, plugins: Plugins, params: dict[str, Any], study: Points | None, share: slice) -> _Share:
    """Return what a cluster gets of a command's runs."""
    cluster = to.cluster
    params = {**params, "cluster": cluster.name}
    touch = not params["dry_run"]
    scheduler = scheduler_of(cluster, dict(os.environ))
    scheduler.exclude(params["exclude"])
    if touch:
        to = replace(to, cluster=scheduler.check_here())
        cluster = to.cluster
    setup.warn(*to.notes)
    scheduler.start({name: params[name] for name in ("dependency", "begin") if params[name]})
    nodes = _each_node(params, scheduler)
    params = {**params, "nodes": 1} if nodes else params
    options = _options(params, to, scheduler, touch)
    check_shared(cluster, options.workspace)
    if touch and study is not None:
        study.check(len(scheduler.nodes()), cluster.name)
    submission_id = new_submission_id()
    planned = _plans(plugins, options, params, submission_id, study, nodes, share)
    blocked = [run for run in planned if run.plan.blocked is not None]
    jobs = [run for run in planned if run.plan.blocked is None]
    prepared = None
    sources = local_secret_sources(options)
    if jobs:
        asked = _asked(submission_id, cluster, options, params)
        templates = [options.workspace / "templates", template_root(home())]
        prepared = prepare(jobs, asked, scheduler, options, templates, sources)
        _check_detach(prepared, params)
        setup.warn(*dict.fromkeys(filter(None, (serving_note(run.plan.launcher) for run in jobs))))
    return _Share(prepared, blocked, options)


def _asked(submission_id: str, cluster: Cluster, options: Options, params: dict[str, Any]) -> Submission:
    """Return what a command asks of a cluster, without the runs."""
    of_jobs = {
        "--no-lint": not params["lint"],
        "--no-plugins": params["no_plugins"],
        "--strict-header": params["strict_header"],
        f"--bind={params['bind']}": params["bind"] != "off",
    }
    return Submission(
        id=submission_id,
        cluster=cluster.name,
        scheduler=cluster.scheduler,
        created=now(),
        command=options.command,
        output=str(options.output),
        runs=(),
        scripts=(),
        columns=options.columns,
        strict_header=options.strict_header,
        retry=make_retry(params),
        options=tuple(option for option, is_set in of_jobs.items() if is_set),
        at_most=params["parallel"] or int(params["parallel"] is None and is_given("parallel")),
        description=cluster,
    )


def _check_detach(prepared: Prepared, params: dict[str, Any]) -> None:
    at_most, count = prepared.submission.at_most, len(prepared.scripts)
    if at_most and params["detach"] and count > 1:
        what = f"{spelled('parallel')} {at_most} beside --detach: nobody submits the later ones of {count} jobs"
        raise UsageProblem(what, "leave --detach out, and end the command with --on-interrupt leave")


def _each_node(params: dict[str, Any], scheduler: Scheduler) -> tuple[str, ...]:
    """Return the nodes of --each-node on which a job can begin; the others are named.

    Raises:
        UsageProblem: one of its list is none of the cluster's, or there is none at all.
        Unreachable: the cluster does not answer.
    """
    asked = params.get("each_node")
    if not asked:
        return ()
    there = scheduler.nodes()
    wanted = [*there] if asked == EVERY else [*dict.fromkeys(expand_hosts(asked))]
    if unknown := [node for node in wanted if node not in there]:
        what = f"--each-node {asked}: {unknown[0]} is none of the cluster's {counted(len(there), 'node')}"
        raise UsageProblem(what, did_you_mean(unknown[0], there) or f"it has {', '.join([*there][:8])}")
    setup.warn(*(f"{node} has no run: it is {there[node]}" for node in wanted if there[node]))
    if not (found := tuple(node for node in wanted if not there[node])):
        raise UsageProblem(f"--each-node {asked}: no job can begin on a node", "sinfo -R says why")
    return found


def _options(params: dict[str, Any], to: Translation, scheduler: Scheduler, touch: bool) -> Options:
    """Return the options of the plans, after the cluster's values went below the context."""
    cluster = to.cluster
    # by now it lacks the nodes of --exclude, and names the context of the kubeconfig that later commands mean
    values = merge(merge(context_values(cluster), to.values), runtime_values(cluster))
    if not cluster.gpu:
        values["gpu_vendor"] = "CPU"
    setup.put_under_context(params, values, f"{cluster.source}: [clusters.{cluster.name}]")
    params["machine"] = cluster.machine
    nodes = params["nodes"] or to.nodes
    options = setup.make_options({**params, "nodes": None, "parallel": None}, touch)
    environ = {**options.environ, "MAD_DEPLOYMENT_TYPE": cluster.scheduler}
    # an allocation that this command is typed in is not that of its jobs
    asked = replace(options, environ=environ, runtime=params["runtime"], runtime_origin=ASKED, nodes=nodes)
    return scheduler.adjust(replace(asked, allocation="", elsewhere=True))


def attach_last(named: str, params: dict[str, Any]) -> int:
    """Go on with the last submission of this folder to each cluster: its runs, and no others.

    With --failed its failed runs are submitted once more.

    Raises:
        UsageProblem: there is none, or without --failed none that has open runs, or the command names runs.
    """
    own = {"resume", "failed", "cluster", "on_interrupt", "verbose"}
    own |= {"detach", "exclude"} if params["failed"] else set()
    every = click.get_current_context().command.params
    if other := [spelled(str(param.name)) for param in every if param.name not in own and is_given(str(param.name))]:
        option = other[0] if other[0].startswith("-") else "a tag"
        what = f"{option} beside --resume --cluster {named}: it goes on with the runs of the last submission"
        raise UsageProblem(what, f"madlite run --resume --cluster {named}   or leave --resume out for new runs")
    last = [_last_submission(name) for name in cluster_names(named)]
    if params["failed"]:
        return _run_failed(last, params)
    going = [stored for stored in last if stored.open_runs]
    if not going:
        raise UsageProblem(f"--resume: the last submission to cluster '{named}' has ended", "madlite runs")
    screen, follower = open_jobs(going, params["on_interrupt"])
    return screen.close(follower, follower.submit_and_follow())


def _last_submission(name: str) -> Stored:
    last = [stored for stored in stored_submissions(Path.cwd()) if stored.submission.cluster == name][-1:]
    if not last:
        open_cluster(name)  # which names one that is unknown
        raise UsageProblem(f"--resume: nothing was submitted to cluster '{name}'", "madlite runs")
    return last[0]


def _run_failed(last: Sequence[Stored], params: dict[str, Any]) -> int:
    """Submit the failed runs of the batches of submissions once more, and follow them with those that go on."""
    here, environ, plugins, new = Path.cwd(), dict(os.environ), setup.load(), []
    batches, ids = {stored.batch for stored in last}, " ".join(stored.submission.id for stored in last)
    every = [stored for stored in stored_submissions(here) if stored.batch in batches]
    screen, follower = open_jobs(every, params["on_interrupt"])
    if follower.open_runs:
        follower.collect()  # what is over has its row before it is looked at
    for own in last:
        options = Options(workspace=here, output=here, environ=environ, command=own.submission.command)
        sources, runtimes = local_secret_sources(options), setup.make_runtimes(plugins)
        batch = [tracker for tracker in follower.trackers if tracker.stored.batch == own.batch]
        stored, scheduler = [tracker.stored for tracker in batch], batch[-1].scheduler
        more, templates = params["exclude"], [here / "templates", template_root(home())]
        try:
            with submitting(own.folder):
                if _last_submission(own.submission.cluster).submission.id != own.submission.id:
                    raise BlockingIOError
                prepared = prepare_again(stored, scheduler, options, templates, sources, runtimes, more)
                if prepared is not None:
                    _check_detach(prepared, params)
                    new.append(write(prepared, options, plugins, sources))
        except BlockingIOError:
            what = f"--resume --failed: another command is submitting runs of submission {own.submission.id}"
            raise UsageProblem(what, "madlite cluster jobs") from None
    going = [tracker.stored for tracker in follower.trackers if tracker.stored.open_runs]
    count = sum(len(stored.submission.runs) for stored in new)
    echo(f"submission {ids}: {counted(count, 'failed run')} to run again, {len(follower.open_runs)} not over")
    if not (new or going):
        return int(ExitCode.OK)
    again = screen.follower([*going, *new], params["on_interrupt"])
    return screen.close(again, again.submit_and_follow(detach=params["detach"], before=False))


def _plans(
    plugins: Plugins,
    options: Options,
    params: dict[str, Any],
    submission_id: str,
    own: Points | None,
    nodes: Sequence[str],
    share: slice,
) -> list[PlannedRun]:
    """Return the plans of a share of the runs, on each of `nodes` where there are some; of a study under its id."""
    touch = not params["dry_run"]
    if own is None:
        planned: Sequence[PlannedRun] = plan_points(plugins, options, params, touch)
    else:
        planned = own.plan(planner(plugins, options, params, touch), options)
    planned = planned[share]
    setup.print_problems(plugins.problems)
    planned, warnings = check_plans(planned, plugins, options.lint)
    for text in (*warnings, *note_fallback(planned, params)):
        setup.warn(text)
    planned = plan_nodes(planned, nodes) if nodes else planned
    if touch:
        check_runs_folder(options.workspace)
        check_appendable(options.output, options.workspace)
    if not makes_study(planned, params):
        return list(planned)
    return [*plan_grid(planned, submission_id, params["repeat"], own_caches=False).planned]


def _print_scripts(prepared: Prepared | None, blocked: Sequence[PlannedRun], options: Options) -> None:
    """Print the plan of each run, once of those that are repeated, which job each has, and the scripts of the jobs."""
    for run in blocked:
        if run.plan.blocked is not None:
            hint = f" ({run.plan.blocked.hint})" if run.plan.blocked.hint else ""
            setup.warn(f"{run.plan.card.name}: would not start: {run.plan.blocked.reason}{hint}")
    if prepared is None:
        return
    for run in prepared.planned:
        is_first = run.plan.study is None or run.plan.study.index in (None, 1)
        if is_first and not run.plan.traits.manifests:  # those are all that the script has
            echo_lines(preview(run, options.environ))
    _print_runs(prepared)
    for number, text in prepared.scripts.items():
        echo(f"# --- job {number} of {len(prepared.scripts)}")
        echo_lines(text)


def _print_runs(prepared: Prepared) -> None:
    echo(f"# --- {counted(len(prepared.planned), 'run')}")
    for script in prepared.submission.scripts:
        for index, run in enumerate(script.of(prepared.planned), 1):
            element = f", element {index}" if script.count > 1 else ""
            echo(f"# {script.first - 1 + index}: {place_text(run)}: job {script.number}{element}")


def _submit(shares: Sequence[_Share], plugins: Plugins, params: dict[str, Any]) -> int:
    options = shares[0].options
    against = against_baseline(params, options)
    planned = [run for share in shares for run in (*(share.prepared.planned if share.prepared else ()), *share.blocked)]
    files = BatchFiles(options, params)
    files.begin()
    outcome = _write_blocked([run for share in shares for run in share.blocked], options, plugins)
    screen = None
    if given := [(share.prepared, share.options) for share in shares if share.prepared is not None]:
        stored = [write(own, of_own, plugins, local_secret_sources(of_own)) for own, of_own in given]
        screen = ClusterScreen(options, plugins)
        follower = screen.follower(stored, params["on_interrupt"])
        code = follower.submit_and_follow(detach=params["detach"]) or int(outcome.exit_code)
        if params["detach"]:
            return screen.close(follower, code)
        screen.write_studies(follower)
        of_jobs = follower.outcome(code)  # what could not start comes before it
        results, left = (*outcome.results, *of_jobs.results), (*outcome.not_started, *of_jobs.not_started)
        outcome = replace(outcome, results=results, not_started=left, exit_code=of_jobs.exit_code)
    for text in files.close(planned, outcome, screen.study if screen is not None else None):
        setup.warn(text)
    if screen is not None:
        lines, version = screen.lines, options.contract
        print_totals(screen.plain, outcome, options.output, lines, version, from_manifest=not files.from_tags)
    return files.exit_code(outcome, against)


def _write_blocked(blocked: Sequence[PlannedRun], options: Options, plugins: Plugins) -> RunOutcome:
    """Write the rows of plans that something keeps from starting; no job is needed for them."""
    if not blocked:
        return RunOutcome(results=(), not_started=(), exit_code=ExitCode.OK)
    with open_screen(live=False) as screen:
        return Batch(blocked, options, plugins, screen).run()


_POLL_S = 2.0
_FILES_S = 5.0  # after the end of the job, for what nodes wrote to be seen here


@click.group("cluster", cls=Group)
def cluster() -> None:
    """Make and check cluster.toml, and follow, list or end the jobs of a cluster.

    \b
    madlite cluster init
    madlite cluster check mi300 --nodes 16 --good-nodes good-nodes.txt
    madlite cluster jobs
    """


@cluster.command("init", cls=Command)
@click.argument("name", required=False, default="")
@click.option("--partition", default="", metavar="NAME", help="Of several, this one.")
@click.option("--gpu", default="", metavar="GPU", help="Its GPU, where sinfo does not name the type: MI300X.")
@click.option("-o", "--output", type=FILE, default=None, metavar="FILE", help="[default: cluster.toml]")
@verbose_option
def init(name: str, partition: str, gpu: str, output: Path | None) -> int:
    """Write a cluster file by asking Slurm: partition, GPUs of a node, limits, container tools.

    NAME is what --cluster will call it, by default the cluster's own name.  What the cluster cannot tell is a comment.
    """
    from madlite.platforms.slurm.context import describe

    file = output or Path(NAME)
    if exists(file):
        raise UsageProblem(f"{file} is there already", f"madlite cluster init -o other.toml   or edit {file}")
    if name and not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UsageProblem(f"cluster name '{name}' is not letters, digits, _ and -", "madlite cluster init my_cluster")
    if gpu and find_product(gpu) is None:
        raise UsageProblem(f"--gpu {gpu} is unknown", f"known: {', '.join(product.device for product in PRODUCTS)}")
    write_named(file, text := describe(name, partition, gpu, dict(os.environ), Path.cwd()))
    read_clusters(file, SCHEDULERS)
    echo(f"{file}:")
    echo_lines(text)
    return int(ExitCode.OK)


@cluster.command("check", cls=Command)
@click.argument("name", required=False, default="")
@count_option("--nodes", 1, "How many nodes.  [default: those that are idle]")
@click.option("--image", default="", metavar="REF", help="Compare this image's digest on the nodes.")
@file_option("--good-nodes", what="Write the nodes that passed to FILE.")
@exclude_option
@click.option("--doctor", is_flag=True, help="Also check on each node what `madlite doctor` does of GPUs and kernel.")
@click.option("--health", is_flag=True, help="Also measure each node's GPUs, a minute or two with torch.")
@click.option("--timeout", type=whole_number(1), default=600, metavar="SECONDS", help="[default: 600]")
@verbose_option
def check(
    name: str,
    nodes: int | None,
    image: str,
    good_nodes: Path | None,
    exclude: list[str],
    doctor: bool,
    health: bool,
    timeout: int,
) -> int:
    """Check nodes by one short job: shared folder, clock, interface, RDMA devices, GPUs, container, image.

    Names the nodes that fail, and then ends with exit code 6 and leaves the folder with what they wrote.  Of
    Kubernetes no job is made: the API server is asked about rights, nodes with GPUs, and the secrets, claims and
    classes that the cluster file names.
    """
    from madlite.platforms.kubernetes.scheduler import Kubernetes
    from madlite.platforms.slurm.scheduler import Slurm

    named = name or os.environ.get(VARIABLE, "").strip()
    if not named:
        raise UsageProblem("which cluster?", f"madlite cluster check NAME, or set {VARIABLE}")
    cluster, here = open_cluster(named), Path.cwd()
    of_pods, environ = cluster.scheduler == Kubernetes.name, dict(os.environ)
    checker = Kubernetes(cluster, environ) if of_pods else Slurm(cluster, environ)
    checker.check_here()
    checker.exclude(exclude)
    if isinstance(checker, Kubernetes):
        return _check_pods(checker, nodes or 1)
    check_shared(cluster, here)
    count = nodes or len(checker.idle_nodes())
    if not count:
        other = f" other than {', '.join(exclude)} (--exclude)" if exclude else ""
        raise UsageProblem(f"no node{other} is idle", "--nodes N waits for N nodes")
    folder = here / RUNS / f"{CHECK_PREFIX}{new_submission_id()}"
    write_request(folder, cluster, image, doctor=doctor, health=health)
    with held(folder):
        try:
            job = checker.submit_check(folder, count, [template_root(home())])
            echo(f"job {job}: {counted(count, 'node')}")
            asked = _wait(checker, job, timeout)
            code = _report(folder, asked, count, good_nodes)
        except BaseException:
            setup.warn(f"the check's files stay: {folder} (madlite clean removes them)")
            raise
        if code == int(ExitCode.OK):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            echo(f"{folder} has the job's script, its output and the nodes' reports; madlite clean removes it")
    return code


def _check_pods(pods: Kubernetes, nodes: int) -> int:
    """Print what the API server says of runs on so many nodes.

    Raises:
        UsageProblem: there is an option of what only a job finds.
    """
    for name in ("image", "good_nodes", "doctor", "health"):
        if is_given(name):
            what = f"{spelled(name)} with scheduler '{pods.name}': no job is made on its nodes"
            raise UsageProblem(what, f"leave {spelled(name)} out")
    examined = pods.examine(nodes)
    for one in examined:
        echo(f"{one.state:8} {one.text}")
        if one.hint:
            echo(f"         try: {one.hint}")
    return int(ExitCode.DOCTOR if any(one.state == "fail" for one in examined) else ExitCode.OK)


_FIGURE = re.compile(r"\d{1,3}(?:,\d{3})*(?:\.\d+)?")  # what the value of a measurement begins with


def _wait(scheduler: Scheduler, job: str, limit_s: int) -> tuple[str, ...]:
    """Wait for the end of a job, and return its nodes; one that does not begin or end in time is cancelled."""
    deadline, nodes = time.monotonic() + limit_s, ""
    try:
        while (state := scheduler.queue([job]).get(job)) is not None:
            nodes = state.nodes or nodes
            if never := why_never(state):
                raise UsageProblem(never.reason, never.hint)
            if time.monotonic() > deadline:
                what = f"job {job} did not end in {limit_s:g} s ({state.reason or 'running'})"
                raise UsageProblem(what, "--nodes fewer, or a longer --timeout")
            time.sleep(_POLL_S)
        return expand_hosts(nodes or scheduler.ended([job]).get(job, JobState()).nodes)
    except BaseException:  # Ctrl-C, a cluster that does not answer: nobody would read what the job finds
        with suppress(Unreachable):
            scheduler.cancel([job])
        raise


def _report(folder: Path, asked: Sequence[str], count: int, good_nodes: Path | None) -> int:
    reports, until_s = read_reports(folder), time.monotonic() + _FILES_S
    while len(reports) < count and time.monotonic() < until_s:
        time.sleep(0.5)
        reports = read_reports(folder)
    failed = failures(reports, asked)
    for node in dict.fromkeys((*asked, *reports)):
        digest = f", image {reports[node].digest}" if node in reports and reports[node].digest else ""
        echo(f"{node}: {'failed' if node in failed else f'passed{digest}'}")
        for problem in failed.get(node, ()):
            echo(f"  {problem}")
    good = [node for node in reports if node not in failed]
    if good_nodes is not None and good:
        write_named(good_nodes, "".join(f"{node}\n" for node in good))
        echo(f'{good_nodes}: {len(good)} nodes; good_nodes = "{good_nodes}" in the cluster file gives jobs no others')
    missing = max(0, count - len(dict.fromkeys((*asked, *reports))))
    if missing or not reports:
        setup.warn(f"no report of {missing or count} nodes")
    return int(ExitCode.DOCTOR if failed or missing or not reports else ExitCode.OK)


@cluster.command("probe", cls=Command, hidden=True)
@click.argument("folder", type=FILE)
@click.option("--refuse", is_flag=True, help="Fail where the node does.")
@count_option("--run", 0, "The number of the run that is to begin.", default=0)
def probe(folder: Path, refuse: bool, run: int) -> int:
    """Check this node, for `madlite cluster check` and before a run."""
    report = check_node(folder, dict(os.environ), _examine_node, run)
    if refuse and report.problems:
        raise RuntimeProblem(f"node {report.node} fails its check: {'; '.join(report.problems)}")
    return int(ExitCode.OK)


def _examine_node(health: bool) -> Examination:
    """Return what `madlite doctor` finds of this node: failures, what has to be alike, and speeds with `health`."""
    from madlite.doctor.examine import examine, lasting, make_target

    environ = dict(os.environ)
    target = make_target(Host(path=environ.get("PATH", ""), env=environ), Path.cwd())
    outcomes = examine(target, "compare", health=health)
    of_node = lasting(outcomes)
    speeds = {item.name: _FIGURE.match(item.value) for item in outcomes if item.group == "health"}
    failed = [outcome for outcome in outcomes if outcome.fails and (outcome in of_node or outcome.name in speeds)]
    return Examination(
        problems=tuple(f"{item.name} {item.value}; right: {item.right} ({item.source})" for item in failed),
        values={outcome.name: outcome.value for outcome in of_node if outcome.state != "unknown"},
        figures={name: float(found[0].replace(",", "")) for name, found in speeds.items() if found},
    )
