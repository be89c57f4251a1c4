"""From a command line to plans: what `run` and `explain` share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
import msgspec

from madlite.backends.loader import Plugins
from madlite.batch.resume import follow_cut_off
from madlite.bundled import template_root
from madlite.catalog.datasets import DataSets, read_data_sets
from madlite.cli import setup
from madlite.cli.allocated import check_context_nodes
from madlite.cli.arguments import named_values
from madlite.cli.credentials import read_credentials, read_services
from madlite.errors import MadliteError, UsageProblem
from madlite.files import exists, is_file
from madlite.machine.fabric import find_fabric
from madlite.plan.actions import TOOLS, list_tools, make_toolset
from madlite.plan.context import REMOTE_KEYS, Context, Options, context_on
from madlite.plan.fields import canonical_key
from madlite.plan.inputs import RUNS
from madlite.plan.manifest import context_over
from madlite.plan.plan_file import read_plan_file, secret_sources
from madlite.plan.recipe_file import refuse_other_cards
from madlite.platforms.kubernetes.settings import RUNTIME as KUBERNETES
from madlite.run.checks import why_unreachable
from madlite.run.from_manifest import plan_manifest
from madlite.run.from_plan import bind_plan, claimed_id, differences, planned_environ
from madlite.run.planning import BatchInputs, plan_runs
from madlite.run.screen import PlannedRun
from madlite.store.folder import new_run_id

if TYPE_CHECKING:
    from madlite.model import Finding, Result
    from madlite.plan.manifest import Manifest
    from madlite.platforms.kubernetes.settings import KubernetesSettings

# The manifest of a run: the one it starts from instead of tags, and the one it leaves.


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
    from madlite.plan.manifest import read_manifest

    return read_manifest(file, options.workspace)


def save_manifest(
    planned: Sequence[PlannedRun], results: Sequence[Result], options: Options, params: dict[str, Any]
) -> str:
    """Write the manifest of what a batch of runs from tags built; return what kept it from being written.

    `results` are those of the runs that ended.  A run from a manifest leaves that one as it is, and runs that had
    no image (on the host, not started, not built) leave one that names images.
    """
    from madlite.files import write_named
    from madlite.run.executor import secrets_for
    from madlite.run.from_manifest import builds_of, manifest_of_runs

    file = options.workspace / params["manifest_output"]
    secrets = [text for one in planned for text in secrets_for(one, options.environ)]
    if not builds_of(planned, results)[0] and _names_images(file, options):
        return ""
    text = manifest_of_runs(planned, results, setup.context_of(params), secrets)
    try:
        write_named(file, text, is_manifest)
    except UsageProblem as problem:
        return problem.message
    return ""


def _names_images(file: Path, options: Options) -> bool:
    found = _read(file, options.workspace)
    return found is not None and bool(found.images)


def is_manifest(file: Path) -> bool:
    """Return whether a path is a manifest."""
    return _read(file, Path.cwd()) is not None


def _read(file: Path, workspace: Path) -> Manifest | None:
    from madlite.plan.manifest import read_manifest

    try:
        return read_manifest(file, workspace) if is_file(file) else None
    except MadliteError:
        return None


_KUBERNETES = ("k8s", "kubernetes")


def _for_kubernetes(settings: KubernetesSettings, context: Context, options: Options) -> Options:
    """Return the options of runs that a context gives to Kubernetes.

    Raises:
        UsageProblem: the number of nodes is none.
    """
    nodes = context.typed.distributed.get("nnodes") or settings.nodes
    if not (isinstance(nodes, int) and nodes > 0):
        raise UsageProblem(f"distributed.nnodes {nodes!r} is no number of nodes", '"nnodes": 2')
    runtime = options.runtime or KUBERNETES
    return msgspec.structs.replace(options, runtime=runtime, nodes=options.nodes or (nodes if nodes > 1 else 0))


def check_local_target(context: Context) -> None:
    """Refuse a context that targets other machines.

    Raises:
        UsageProblem: it does.
    """
    keys = context.typed
    on_kubernetes = bool(keys.k8s or keys.kubernetes)
    sent = [key for key in REMOTE_KEYS if getattr(keys, key) and key not in _KUBERNETES]
    target = keys.deployment_config.get("target", "local")
    if target not in ("local", "docker", *(_KUBERNETES if on_kubernetes else ())):
        sent.append("deployment_config")
    if sent:
        raise UsageProblem(
            f"{context.origins.get(sent[0], 'context')}: key '{sent[0]}' asks for other machines",
            "--cluster NAME sends runs to those of a cluster file; leave the key out to run on this machine alone",
        )


def _data_sets(options: Options, context: Context, params: dict[str, Any]) -> DataSets | None:
    named, origin = params.get("data_config") is not None, context.origins.get("data", "context")
    return read_data_sets(options.data_file, context.typed.data, origin, options.mirror, given=named)


def local_secret_sources(options: Options) -> dict[str, str]:
    """Return the values that plan files may name as secrets: the environment and credential.json."""
    credentials, services = read_credentials(options.workspace), read_services(options.workspace)
    return secret_sources(options.environ, credentials, services)


@contextmanager
def plan_of_file(
    file: Path,
    plugins: Plugins,
    options: Options,
    touch: bool,
    *,
    again: bool = False,
    attempt: str = "",
    smaller_plans: bool = False,
    once: bool = False,
) -> Iterator[tuple[PlannedRun, Options, tuple[str, ...]]]:
    """Yield the plan of a file bound to this machine, its options, and the differences as sentences.

    Without `touch` it is not to be run, and has its own id.  `again` takes the place of its run that was cut off;
    `attempt` is the id that who submitted it gave to this attempt.  `once` refuses a plan of which a run has begun: a
    job that a cluster starts twice has one result.  With `smaller_plans` the files beside it are of the same run with
    smaller micro batches.

    Raises:
        MadliteError: it is no plan file, or cannot run here; nothing has been touched but its claim on an id.
    """
    sources = local_secret_sources(options)
    saved = read_plan_file(file, sources)
    environ = planned_environ(saved, options.environ)
    options = msgspec.structs.replace(options, environ=environ, command=saved.command or options.command)
    context = context_on(saved.context, f"plan file {file}", Context(), ())
    kubernetes = setup.kubernetes_settings(context)
    machine = setup.find_machine(context, kubernetes.machine if kubernetes else "")
    setup.print_problems(machine.problems)

    def smaller(micro_batch: int) -> PlannedRun | None:
        beside = file.with_name(f"{file.stem}-{micro_batch}.json")
        if not exists(beside):
            return None
        other = read_plan_file(beside, sources)
        bound = bind_plan(other, other.plan.id, options, machine, plugins, runtimes)
        return msgspec.structs.replace(bound, with_micro_batch=smaller)

    runtimes = setup.make_runtimes(plugins, kubernetes, options.environ)
    own_id = attempt or ("" if touch else saved.plan.id)
    with nullcontext(own_id) if own_id else claimed_id(saved, options.workspace) as run_id:
        if once and run_id != saved.plan.id:
            what = f"a run of this plan has begun: {RUNS}/{saved.plan.id}; its job does not measure it a second time"
            raise UsageProblem(what, f"madlite show {saved.plan.id}")
        one = bind_plan(saved, run_id, options, machine, plugins, runtimes)
        if smaller_plans:
            one = msgspec.structs.replace(one, with_micro_batch=smaller)
        if again and run_id != saved.plan.id:
            follow_cut_off(options.workspace / RUNS / saved.plan.id, run_id)
        notes = differences(saved, one.plan, options, plugins, lambda name: setup.find_card(name, options.workspace))
        yield one, options, tuple(notes)


def plan_all(
    plugins: Plugins, options: Options, params: dict[str, Any], touch: bool = False, probe: bool = False
) -> list[PlannedRun]:
    """Return the plans of a command's tags or manifest on this machine, or the one that `--machine` describes.

    `touch` where the plans are to be run, `probe` where they are to be run later: data endpoints are checked then.

    Raises:
        MadliteError: something cannot be used; nothing has been touched.
    """
    return planner(plugins, options, params, touch, probe)(options)


def plan_points(
    plugins: Plugins, options: Options, params: dict[str, Any], touch: bool = False
) -> Sequence[PlannedRun]:
    """Return the plans of a command's tags or manifest, with `--sweep` those of each point.

    Raises:
        MadliteError: something cannot be used, or a point cannot be planned; nothing has been touched.
    """
    if not params["sweep"]:
        return plan_all(plugins, options, params, touch)
    from madlite.study.sweep import plan_sweep, sweep_points

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
    from madlite.catalog.select import split_tags, tag_additions

    given = [(f"--set {key}", key) for key in (text.partition("=")[0].strip() for text in params["sets"])]
    given += [(option, key) for option, key, _ in named_values(params)]
    given += [("--timeout", "timeout_s")] if params["timeout"] is not None else []
    given += [("--image", "image")] if params["image"] else []
    given += [(f":{key} of tag {tag}", key) for tag in split_tags(params["tags"]) for key in tag_additions(tag)]
    for what, key in given:
        if canonical_key(key) in keys:
            raise UsageProblem(f"{what} beside {by}, which sets it", f"leave {what} out")


class Planner(Protocol):
    """Plans the runs of a command with options; with `refused_as` cards that are refused for that are blocked."""

    def __call__(self, options: Options, refused_as: str = "") -> list[PlannedRun]:
        """Return the plans, or raise MadliteError."""
        ...


def planner(
    plugins: Plugins, options: Options, params: dict[str, Any], touch: bool = False, probe: bool = False
) -> Planner:
    """Return what plans the runs of a command with options of a plan, again and again; else as `plan_all`.

    The machine is looked at and the cards are selected once.

    Raises:
        MadliteError: something cannot be used; nothing has been touched.
    """
    root = template_root(setup.home())
    manifest = find_manifest(params, options)
    context = setup.make_context(params)
    if not params.get("cluster"):
        check_local_target(context)
        check_context_nodes(context, options, params)
    kubernetes = setup.kubernetes_settings(context)
    if manifest is not None:
        context = context_over(manifest, context, options.environ)
    origin = f"cluster '{params['cluster']}'" if params.get("cluster") else "--machine"
    machine = setup.find_machine(context, params["machine"] or (kubernetes.machine if kubernetes else ""), origin)
    recipe = params.get("recipe_file")
    tags, trees = params["tags"] or ((recipe.tag,) if recipe is not None else ()), params["cards_from"]
    if touch:
        setup.copy_model_dir(plugins, None if manifest is not None else tags, trees)
    requests = () if manifest is not None else setup.select_requests(plugins, tags, options.workspace, trees)
    if recipe is not None:
        refuse_other_cards(recipe, requests)
    credentials = read_credentials(options.workspace)
    inputs = BatchInputs(
        options=options,
        context=context,
        machine=machine,
        plugins=plugins,
        runtimes=setup.make_runtimes(plugins, kubernetes, options.environ),
        template_root=root,
        new_run_id=new_run_id,
        credentials=credentials,
        services=read_services(options.workspace),
        data_sets=_data_sets(options, context, params),
        tools=make_toolset(context, options, root / TOOLS),
        tool_files=list_tools(root / TOOLS),
        fabric=None if machine.pretended else find_fabric(),
        check_endpoint=why_unreachable if touch or probe else lambda endpoint: "",
    )
    setup.print_problems(inputs.machine.problems)

    def plan(options: Options, refused_as: str = "") -> list[PlannedRun]:
        options = _for_kubernetes(kubernetes, context, options) if kubernetes is not None else options
        again = msgspec.structs.replace(inputs, options=options, refused_as=refused_as)
        return plan_manifest(manifest, again) if manifest is not None else plan_runs(requests, again)

    return plan


# `--check`: whether `madlite run` would start the plans, by its own checks and messages.

check_option = click.option(
    "--check",
    is_flag=True,
    help="End with the exit code that run would: 4 where it refuses, 3 where a run cannot start (2: no image).",
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
    from madlite.batch.runner import exit_code
    from madlite.model import Result
    from madlite.run.checks import keep_refused

    check_start(planned, options, pretended=bool(params["machine"]))
    checked = keep_refused(planned, refused, plugins)
    blocked = [(one.plan.id, one.plan.blocked) for one in checked if one.plan.blocked is not None]
    return int(exit_code(Result(plan_id=name, status=one.status, cause=one.cause) for name, one in blocked))


def check_start(planned: Sequence[PlannedRun], options: Options, *, pretended: bool = False) -> None:
    """Refuse what no run can be started for, or its row not be written.

    Raises:
        MadliteError: GPUs of the context are not here (unless all is `pretended`), or files are in the way.
    """
    from madlite.perfcsv.append import check_appendable
    from madlite.store.folder import check_runs_folder

    if not pretended:
        refuse_pretended([one for one in planned if one.plan.traits.local])
    check_runs_folder(options.workspace)
    if options.rows:
        check_appendable(options.output, options.workspace)


def refuse_pretended(planned: Sequence[PlannedRun]) -> None:
    """Keep a row from naming GPUs that are not here."""
    from madlite.errors import UsageProblem

    for one in planned:
        if one.plan.machine.pretended:
            what = f"{len(one.plan.machine.gpus)} x {one.plan.machine.device}"
            raise UsageProblem(f"the context describes {what}, which are not here", "add --dry-run, or use explain")
