"""From a command line to plans, which `run` and `explain` share, and what a dry run prints of one."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias, cast

import click
import msgspec

from madlite.backends.loader import Plugins, guard_plugin
from madlite.batch.attempts import Standing, exit_code
from madlite.batch.collect import attempts_of
from madlite.batch.resume import follow_cut_off
from madlite.catalog.cards import split_tags, tag_additions
from madlite.catalog.datasets import read_credentials, read_data_sets, read_services
from madlite.catalog.sources import template_root
from madlite.cli import setup
from madlite.cli.arguments import named_values
from madlite.cli.options import group, section
from madlite.cli.setup import home
from madlite.errors import RuntimeProblem, UsageProblem
from madlite.files import exists
from madlite.jobs.outcomes import name_queued_again
from madlite.machine.host_facts import find_fabric
from madlite.model import Finding, Request, Result, RunPlan
from madlite.model.protocols import ManifestRuntime
from madlite.plan.actions import TOOLS, bind_model_dir, list_tools, make_toolset
from madlite.plan.cluster import Cluster, KubernetesSettings
from madlite.plan.context import Context, Options, context_on
from madlite.plan.fields import canonical_key
from madlite.plan.inputs import RUNS
from madlite.plan.manifest import Manifest, context_over, read_manifest
from madlite.plan.plan_file import read_plan_file, secret_sources
from madlite.plan.recipe_file import refuse_other_cards
from madlite.plan.schedulers import Translation
from madlite.plan.submission import PlannedRun
from madlite.platforms.registry import SCHEDULERS, direct_values, translate
from madlite.run.executor import secrets_for
from madlite.run.from_manifest import plan_manifest
from madlite.run.from_plan import bind_plan, claimed_id, differences, planned_environ
from madlite.run.planning import BatchInputs, check_start, keep_refused, plan_runs, why_unreachable
from madlite.secrets import Redactor
from madlite.store.folder import new_run_id


def find_manifest(params: dict[str, Any], options: Options) -> Manifest | None:
    """Return the manifest to run from; None where tags are to be built and run.

    As in madengine 2, a file that is not there is no reason not to run the tags that are given too.

    Raises:
        MadliteError: the file is no manifest, or there is neither a file nor a tag.
    """
    file = params.get("manifest_file")
    if file is None:
        return None
    if not exists(file):
        if not params["tags"]:
            raise UsageProblem(f"there is no manifest {file}", "madlite build --tags NAME writes one")
        setup.warn(f"there is no manifest {file}: the tags are built and run")
        return None
    if params["tags"]:
        setup.warn(f"--tags has no effect: {file} names the models")

    return read_manifest(file, options.workspace)


def open_cluster(name: str) -> Cluster:
    """Return a cluster of the cluster file: of the working folder, else of the user's configuration folder.

    Raises:
        UsageProblem: there is none of this name, or the file has a mistake.
    """
    from madlite.jobs.file import read_cluster

    return read_cluster(name, [Path.cwd(), Path(click.get_app_dir("madlite"))], SCHEDULERS)


def translated(name: str, params: dict[str, Any]) -> Translation | None:
    """Return the cluster that the command line, or a context or manifest of madengine, sends its runs to.

    None where they stay on this machine.

    Raises:
        UsageProblem: there is no such cluster, or the context does not describe one.
    """
    if params.get("plan_file") is not None or params.get("machine"):
        return None
    file = params.get("manifest_file")
    deployment = dict(read_manifest(file, Path.cwd()).deployment) if file is not None and exists(file) else {}
    base = open_cluster(name) if name else None
    return translate(setup.context_of(params), deployment, base, dict(os.environ), params.get("nodes") or 0)


def local_secret_sources(options: Options) -> dict[str, str]:
    """Return the values that plan files may name as secrets: the environment and credential.json."""
    credentials, services = read_credentials(options.workspace), read_services(options.workspace, options.environ)
    return secret_sources(options.environ, credentials, services)


@contextmanager
def plan_of_file(
    file: Path,
    plugins: Plugins,
    options: Options,
    touch: bool,
    *,
    again: bool = False,
    smaller_plans: bool = False,
    once: bool = False,
) -> Iterator[tuple[PlannedRun, Options, tuple[str, ...], Mapping[str, Standing]]]:
    """Yield the plan of a file bound to this machine, its options, the differences as sentences, and what it follows.

    Without `touch` it is not to be run, and has its own id.  `again` takes the place of its run that was cut off.
    `once` refuses a plan of which a run has begun: a job that a cluster starts twice has one result.  With
    `smaller_plans` the files beside it are of the same run with smaller micro batches.

    Raises:
        MadliteError: it is no plan file, or cannot run here; nothing has been touched but its claim on an id.
    """
    sources = local_secret_sources(options)
    saved = read_plan_file(file, sources)
    environ = planned_environ(saved, options.environ)
    options = msgspec.structs.replace(options, environ=environ, command=saved.command or options.command)
    context = context_on(saved.context, f"plan file {file}", Context())
    settings = setup.settings_of_pods(context)
    machine = setup.find_machine(context, settings.machine if settings else "")
    setup.print_problems(machine.problems)

    def smaller(micro_batch: int) -> PlannedRun | None:
        beside = file.with_name(f"{file.stem}-{micro_batch}.json")
        if not exists(beside):
            return None
        other = read_plan_file(beside, sources)
        bound = bind_plan(other, other.plan.id, options, machine, plugins, runtimes)
        return msgspec.structs.replace(bound, with_micro_batch=smaller)

    runtimes = setup.make_runtimes(plugins, context, options.environ)
    own_id = "" if touch else saved.plan.id
    with nullcontext(own_id) if own_id else claimed_id(saved, options.workspace) as run_id:
        if once and run_id != saved.plan.id:
            what = f"a run of this plan has begun: {RUNS}/{saved.plan.id}; its job does not measure it a second time"
            raise UsageProblem(what, f"madlite show {saved.plan.id}")
        run = bind_plan(saved, run_id, options, machine, plugins, runtimes)
        if smaller_plans:
            run = msgspec.structs.replace(run, with_micro_batch=smaller)
        standing: Mapping[str, Standing] = {}
        if again and run_id != saved.plan.id:
            first = options.workspace / RUNS / saved.plan.id
            for last in attempts_of(first)[-1:]:
                name_queued_again(last)
            standing = follow_cut_off(first, run_id)
        yield run, options, tuple(differences(saved, run.plan, options, plugins)), standing


def plan_points(
    plugins: Plugins, options: Options, params: dict[str, Any], touch: bool = False
) -> Sequence[PlannedRun]:
    """Return the plans of a command's tags or manifest, with `--sweep` those of each point.

    Raises:
        MadliteError: something cannot be used, or a point cannot be planned; nothing has been touched.
    """
    if not params["sweep"]:
        return planner(plugins, options, params, touch)(options)
    from madlite.study.grid import plan_sweep, sweep_points

    points = sweep_points(params["sweep"], zipped=params["zip_values"])
    refuse_given(points[0], "--sweep", params)
    plan = planner(plugins, options, params, touch)
    return plan_sweep(
        points,
        lambda values, refused_as: plan(
            msgspec.structs.replace(options, sets=(*options.sets, *values.items())), refused_as
        ),
    )


def refuse_given(keys: Collection[str], by: str, params: dict[str, Any]) -> None:
    """Refuse a value of the command line for what a study varies, by the option `by`: it would be dropped.

    Raises:
        UsageProblem: there is one, of --set, of an option of its own or behind a tag.
    """
    given = [(f"--set {key}", key) for key in (text.partition("=")[0].strip() for text in params["sets"])]
    given += [(option, key) for option, key, _ in named_values(params)]
    given += [("--timeout", "timeout_s")] if params["timeout"] is not None else []
    given += [("--image", "image")] if params["image"] else []
    given += [(f":{key} of tag {tag}", key) for tag in split_tags(params["tags"]) for key in tag_additions(tag)]
    for what, key in given:
        if canonical_key(key) in keys:
            raise UsageProblem(f"{what} beside {by}, which sets it", f"leave {what} out")


Planner: TypeAlias = Callable[..., list[PlannedRun]]
"""Plans the runs of a command with options; with `refused_as`, its second, cards refused for that are blocked."""


def planner(
    plugins: Plugins, options: Options, params: dict[str, Any], touch: bool = False, probe: bool = False
) -> Planner:
    """Return what plans the runs of a command's tags or manifest with options of a plan, again and again.

    The machine, or the one that `--machine` describes, is looked at and the cards are selected once.  `touch` where the
    plans are to be run, `probe` where they are to be run later: data endpoints are checked then.

    Raises:
        MadliteError: something cannot be used; nothing has been touched.
    """
    from madlite.jobs.allocated import on_pods

    root = template_root(home())
    manifest = find_manifest(params, options)
    context, settings = _read_context(params, options, manifest)
    usual = "k8s of the context" if settings is not None and not params["machine"] else "--machine"
    origin = f"cluster '{params['cluster']}'" if params.get("cluster") else usual
    machine = setup.find_machine(context, params["machine"] or (settings.machine if settings else ""), origin)
    requests = _select(plugins, options, params, touch) if manifest is None else ()
    if touch and manifest is not None:
        setup.copy_model_dir(plugins, None)
    is_known = bool(options.runtime) and manifest is None
    listed = (options.runtime, *(name for request in requests for name in request.card.runtimes)) if is_known else ()
    named, origin = params.get("data_config") is not None, context.origins.get("data", "context")
    inputs = BatchInputs(
        options=options,
        context=context,
        machine=machine,
        plugins=plugins,
        runtimes=setup.make_runtimes(plugins, context, options.environ, listed),
        template_root=root,
        new_run_id=new_run_id,
        credentials=read_credentials(options.workspace),
        services=read_services(options.workspace, options.environ),
        data_sets=read_data_sets(options.data_file, context.typed.data, origin, options.mirror, given=named),
        tools=make_toolset(context, options, root / TOOLS),
        tool_files=list_tools(root / TOOLS),
        fabric=None if machine.pretended else find_fabric(),
        check_endpoint=why_unreachable if touch or probe else lambda endpoint: "",
    )
    setup.print_problems(machine.problems)

    def plan(options: Options, refused_as: str = "") -> list[PlannedRun]:
        options = on_pods(settings, context, options) if settings is not None else options
        again = msgspec.structs.replace(inputs, options=options, refused_as=refused_as)
        return plan_manifest(manifest, again) if manifest is not None else plan_runs(requests, again)

    return plan


def _read_context(
    params: dict[str, Any], options: Options, manifest: Manifest | None
) -> tuple[Context, KubernetesSettings | None]:
    """Return the context of the plans, and what it says of the pods that it gives the runs to.

    Without a cluster of the cluster file, what it or a manifest's deployment says of other machines goes below it.

    Raises:
        UsageProblem: a value cannot be used, or asks for what is not here.
    """
    from madlite.jobs.allocated import check_context_nodes, check_local_target

    if params.get("cluster"):
        context = setup.make_context(params)
    else:
        given, deployment = setup.context_of(params), manifest.deployment if manifest is not None else {}
        if to := direct_values(given, deployment):
            setup.warn(*to.notes)
            setup.put_under_context(params, to.values, "deployment_config")
        context = setup.make_context(params)
        check_local_target(context)
        check_context_nodes(context, options, is_asked=bool(params.get("nodes") or params.get("node_counts")))
    settings = setup.settings_of_pods(context)
    return context_over(manifest, context, options.environ) if manifest is not None else context, settings


def _select(plugins: Plugins, options: Options, params: dict[str, Any], touch: bool) -> tuple[Request, ...]:
    """Return the cards of a command's tags, else of its recipe file; with `touch` $MODEL_DIR is copied before."""
    recipe, trees = params.get("recipe_file"), params["cards_from"]
    tags = params["tags"] or ((recipe.tag,) if recipe is not None else ())
    if touch:
        setup.copy_model_dir(plugins, tags, trees)
    requests = setup.select_requests(plugins, tags, options.workspace, trees)
    if recipe is not None:
        refuse_other_cards(recipe, requests)
    return requests


# `--check`: whether `madlite run` would start the plans, by its own checks and messages.

check_option = group(
    section("Plan"),
    click.option(
        "--check",
        is_flag=True,
        help="End with the exit code that run would: 4 where it refuses, 3 where a run cannot start (2: no image).",
    ),
)
"""Add --check."""


def check(
    planned: Sequence[PlannedRun],
    refused: Sequence[Sequence[Finding]],
    plugins: Plugins,
    options: Options,
    params: dict[str, Any],
) -> int:
    """Return the exit code of a `run` that came no further than its start; makes and changes nothing.

    Whatever `--machine` pretends is taken for this machine.

    Raises:
        MadliteError: `run` would refuse the command, with this error.
    """
    check_start(planned, options, pretended=bool(params["machine"]))
    checked = keep_refused(planned, refused, plugins)
    blocked = [(run.plan.id, run.plan.blocked) for run in checked if run.plan.blocked is not None]
    return int(exit_code(Result(plan_id=name, status=why.status, cause=why.cause) for name, why in blocked))


_SHOWN = (".sh", ".toml", ".yaml", ".yml", ".json")


def preview(run: PlannedRun, environ: dict[str, str], refused: Iterable[str] = ()) -> str:
    """Return everything one run would do, secrets masked; `refused` is what would keep it from being started."""
    plan = bind_model_dir(run.plan, run.plan.model_dir)
    parts = [f"# {plan.card.name} · backend {plan.backend or 'none'} · runtime {plan.known_runtime or 'none'}"]
    if plan.study is not None and plan.study.varied:
        varied = ", ".join(f"{key}={value}" for key, value in plan.study.varied.items())
        parts.append(f"# {plan.study.kind}: {varied}")
    if plan.blocked:
        parts.append(f"# would not start: {plan.blocked.status.value} {plan.blocked.reason}")
        parts += [f"# hint: {plan.blocked.hint}"] if plan.blocked.hint else []
    parts += [f"# would be refused: {text}" for text in refused]
    parts += [f"# {note}" for note in plan.notes]
    if plan.traits.manifests and plan.image is not None:  # all of it can be piped into the engine's own tool
        parts.append(_manifest(run, plan))
        return Redactor(secrets_for(run, environ)).text("\n".join(parts))
    if (plan.image is not None or not plan.traits.containerised) and (request := _request(run, plan)):
        parts.append(_section(f"{plan.runtime} request", request))
    parts.append(_section("commands", "\n".join(_commands(plan))))
    for file in run.files:
        if file.path.endswith(_SHOWN):
            parts.append(_section(file.path, file.data.decode("utf-8", "replace").rstrip("\n")))
        else:
            parts.append(f"# --- {file.path} ({len(file.data)} bytes, copied from {file.template})")
    return Redactor(secrets_for(run, environ)).text("\n".join(parts)) + "\n"


def _request(run: PlannedRun, plan: RunPlan) -> str:
    """Return the request to the runtime as JSON; "" where building it fails for the reason that blocks the plan."""
    try:
        with guard_plugin(run.runtime):
            return json.dumps(run.runtime.request(plan), indent=2, default=str)
    except UsageProblem:
        if run.plan.blocked is None:
            raise
        return ""


def _manifest(run: PlannedRun, plan: RunPlan) -> str:
    """Return the request as the engine's own tool takes it; a comment where it cannot be made."""
    try:
        with guard_plugin(run.runtime):
            runtime = cast("ManifestRuntime", run.runtime)
            return "---\n" + runtime.manifest(plan, {file.path: file.data for file in run.files})
    except RuntimeProblem as problem:
        return f"# would not start: {problem.message}\n# hint: {problem.hint}\n"


def _section(title: str, text: str) -> str:
    return f"# --- {title}\n{text}"


def _commands(plan: RunPlan) -> list[str]:
    """Return the actions as shell commands, in order."""
    lines = []
    for action in plan.actions:
        where = action.cwd.replace("{folder}", plan.folder_inside)
        lines.append(f"{action.kind:8} (in {where}) {shlex.join(action.argv)}")
    return lines
