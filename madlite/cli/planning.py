"""From a command line to plans, which `run` and `explain` share, and what a dry run prints of one."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import click
import msgspec

from madlite.backends.loader import Plugins
from madlite.batch.attempts import exit_code
from madlite.batch.resume import follow_cut_off
from madlite.bundled import template_root
from madlite.catalog.datasets import read_data_sets
from madlite.catalog.select import split_tags, tag_additions
from madlite.cli import setup
from madlite.cli.arguments import named_values
from madlite.cli.model_dir import home
from madlite.cli.options import group, section
from madlite.cli.setup import check_context_nodes
from madlite.errors import MadliteError, RuntimeProblem, UsageProblem
from madlite.files import UNUSABLE, NotJson, decode_json, exists, is_file, read_json, texts, write_named
from madlite.machine.fabric import find_fabric
from madlite.model import Result, RunPlan
from madlite.perfcsv.append import check_appendable
from madlite.plan.actions import TOOLS, bind_model_dir, list_tools, make_toolset
from madlite.plan.context import TARGETS, Context, Options, context_on
from madlite.plan.fields import canonical_key
from madlite.plan.inputs import RUNS
from madlite.plan.manifest import context_over, read_manifest
from madlite.plan.plan_file import read_plan_file, secret_sources
from madlite.plan.planned import PlannedRun
from madlite.plan.recipe_file import refuse_other_cards
from madlite.platforms.kubernetes.settings import RUNTIME as KUBERNETES
from madlite.run.checks import keep_refused, why_unreachable
from madlite.run.executor import secrets_for
from madlite.run.from_manifest import builds_of, manifest_of_runs, plan_manifest
from madlite.run.from_plan import bind_plan, claimed_id, differences, planned_environ
from madlite.run.guard import guard_plugin
from madlite.run.planning import BatchInputs, plan_runs
from madlite.secrets import Redactor
from madlite.store.folder import check_runs_folder, new_run_id

if TYPE_CHECKING:
    from madlite.model import Finding
    from madlite.model.protocols import ManifestRuntime
    from madlite.plan.cluster import KubernetesSettings
    from madlite.plan.manifest import Manifest


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

    return read_manifest(file, options.workspace)


def save_manifest(
    planned: Sequence[PlannedRun], results: Sequence[Result], options: Options, params: dict[str, Any]
) -> str:
    """Write the manifest of what a batch of runs from tags built; return what kept it from being written.

    `results` are those of the runs that ended.  A run from a manifest leaves that one as it is, and runs that had
    no image (on the host, not started, not built) leave one that names images.
    """
    file = options.workspace / params["manifest_output"]
    secrets = [text for run in planned for text in secrets_for(run, options.environ)]
    before = _read(file, options.workspace)
    if before is not None and before.images and not builds_of(planned, results)[0]:
        return ""
    text = manifest_of_runs(planned, results, setup.context_of(params), secrets)
    try:
        write_named(file, text, is_manifest)
    except UsageProblem as problem:
        return problem.message
    return ""


def is_manifest(file: Path) -> bool:
    """Return whether a path is a manifest."""
    return _read(file, Path.cwd()) is not None


def _read(file: Path, workspace: Path) -> Manifest | None:

    try:
        return read_manifest(file, workspace) if is_file(file) else None
    except MadliteError:
        return None


def _send_to_pods(params: dict[str, Any], manifest: Manifest | None) -> None:
    """Put below a context that sends its runs to Kubernetes what else it, or a manifest's deployment, says of them.

    Raises:
        UsageProblem: a value cannot be used.
    """
    from madlite.jobs.node_gpus import gpus_of_nodes
    from madlite.jobs.translate import DONE_FOR_PODS, target_of, translate_for_pods
    from madlite.platforms.kubernetes.settings import read_settings

    context, deployment = setup.context_of(params), manifest.deployment if manifest is not None else {}
    if target_of(context, deployment) != KUBERNETES or context.typed.slurm:
        return
    pods = translate_for_pods(context, deployment, lambda settings: gpus_of_nodes(read_settings(settings, "k8s")[0]))
    setup.warn(*pods.notes)
    setup.put_under_context(params, pods.values, "deployment_config", DONE_FOR_PODS)


def _for_kubernetes(settings: KubernetesSettings, context: Context, options: Options) -> Options:
    """Return the options of runs that a context gives to Kubernetes.

    Raises:
        UsageProblem: the number of nodes is none.
    """
    nodes = context.typed.distributed.get("nnodes") or settings.nodes
    if not (isinstance(nodes, int) and nodes > 0):
        raise UsageProblem(f"distributed.nnodes {nodes!r} is no number of nodes", '"nnodes": 2')
    runtime = options.runtime or KUBERNETES
    origin = options.runtime_origin if options.runtime else context.origins.get("k8s", "context")
    asked = options.nodes or (nodes if nodes > 1 else 0)
    return msgspec.structs.replace(options, runtime=runtime, runtime_origin=origin, nodes=asked)


def check_local_target(context: Context) -> None:
    """Refuse a context that targets other machines.

    Raises:
        UsageProblem: it does.
    """
    keys = context.typed
    sent = ["slurm"] if keys.slurm else []
    if keys.deploy and context.target != "local":
        sent.append("deploy")
    target = str(keys.deployment_config.get("target") or "local")
    if TARGETS.get(target.lower()) not in ("local", *((KUBERNETES,) if context.target == KUBERNETES else ())):
        sent.append("deployment_config")
    if sent:
        raise UsageProblem(
            f"{context.origins.get(sent[0], 'context')}: key '{sent[0]}' asks for other machines",
            "--cluster NAME sends runs to those of a cluster file; leave the key out to run on this machine alone",
        )


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
    smaller_plans: bool = False,
    once: bool = False,
) -> Iterator[tuple[PlannedRun, Options, tuple[str, ...]]]:
    """Yield the plan of a file bound to this machine, its options, and the differences as sentences.

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
    own_id = "" if touch else saved.plan.id
    with nullcontext(own_id) if own_id else claimed_id(saved, options.workspace) as run_id:
        if once and run_id != saved.plan.id:
            what = f"a run of this plan has begun: {RUNS}/{saved.plan.id}; its job does not measure it a second time"
            raise UsageProblem(what, f"madlite show {saved.plan.id}")
        run = bind_plan(saved, run_id, options, machine, plugins, runtimes)
        if smaller_plans:
            run = msgspec.structs.replace(run, with_micro_batch=smaller)
        if again and run_id != saved.plan.id:
            follow_cut_off(options.workspace / RUNS / saved.plan.id, run_id)
        notes = differences(saved, run.plan, options, plugins, lambda name: setup.find_card(name, options.workspace))
        yield run, options, tuple(notes)


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
    """Return what plans the runs of a command with options of a plan, again and again; else as `plan_all`.

    The machine is looked at and the cards are selected once.

    Raises:
        MadliteError: something cannot be used; nothing has been touched.
    """
    root = template_root(home())
    manifest = find_manifest(params, options)
    if not params.get("cluster"):
        _send_to_pods(params, manifest)
    context = setup.make_context(params)
    if not params.get("cluster"):
        check_local_target(context)
        check_context_nodes(context, options, params)
    kubernetes = setup.kubernetes_settings(context)
    if manifest is not None:
        context = context_over(manifest, context, options.environ)
    usual = "k8s of the context" if kubernetes is not None and not params["machine"] else "--machine"
    origin = f"cluster '{params['cluster']}'" if params.get("cluster") else usual
    machine = setup.find_machine(context, params["machine"] or (kubernetes.machine if kubernetes else ""), origin)
    recipe = params.get("recipe_file")
    tags, trees = params["tags"] or ((recipe.tag,) if recipe is not None else ()), params["cards_from"]
    if touch:
        setup.copy_model_dir(plugins, None if manifest is not None else tags, trees)
    requests = () if manifest is not None else setup.select_requests(plugins, tags, options.workspace, trees)
    if recipe is not None:
        refuse_other_cards(recipe, requests)
    named, origin = params.get("data_config") is not None, context.origins.get("data", "context")
    data_sets = read_data_sets(options.data_file, context.typed.data, origin, options.mirror, given=named)
    inputs = BatchInputs(
        options=options,
        context=context,
        machine=machine,
        plugins=plugins,
        runtimes=setup.make_runtimes(plugins, kubernetes, options.environ),
        template_root=root,
        new_run_id=new_run_id,
        credentials=read_credentials(options.workspace),
        services=read_services(options.workspace),
        data_sets=data_sets,
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


def check_start(planned: Sequence[PlannedRun], options: Options, *, pretended: bool = False) -> None:
    """Refuse what no run can be started for, or its row not be written.

    Raises:
        MadliteError: GPUs of the context are not here (unless all is `pretended`), or files are in the way.
    """
    if not pretended:
        refuse_pretended([run for run in planned if run.plan.traits.local])
    check_runs_folder(options.workspace)
    if options.rows:
        check_appendable(options.output, options.workspace)


def refuse_pretended(planned: Sequence[PlannedRun]) -> None:
    """Keep a row from naming GPUs that are not here."""
    for run in planned:
        if run.plan.machine.pretended:
            what = f"{len(run.plan.machine.gpus)} x {run.plan.machine.device}"
            raise UsageProblem(f"the context describes {what}, which are not here", "add --dry-run, or use explain")


def read_credentials(workspace: Path) -> dict[str, dict[str, str]] | None:
    """Return the tables of credential.json of the working folder, name → key → value; None without that file.

    Raises:
        UsageProblem: it cannot be read, or is no such table; the message shows none of it.
    """
    content = _credential_file(workspace)
    if content is None:
        return None
    # NAS_NODES and the like are lists, which no card names
    return {name: _table(entry) for name, entry in content.items() if isinstance(entry, dict)}


def _credential_file(workspace: Path) -> dict[str, Any] | None:

    file = workspace / "credential.json"
    if not exists(file):
        return None
    content = read_json(file, file.name)
    if not isinstance(content, dict):
        raise UsageProblem(f"{file.name} must be an object of tables, found a {type(content).__name__}")
    return content


_SERVICES = ("MAD_MINIO", "MAD_AWS_S3", "NAS_NODES")


def read_services(workspace: Path) -> dict[str, tuple[dict[str, str], ...]]:
    """Return the services that data comes from, each with its table, `NAS_NODES` with one per storage.

    One in the environment (`MAD_MINIO='{"USERNAME": …}'`) comes before that of credential.json.

    Raises:
        UsageProblem: one in the environment is no such table; the message shows none of it.
    """
    of_file = _credential_file(workspace) or {}
    named = {name: _object(name, os.environ[name]) for name in _SERVICES if os.environ.get(name)}
    found = {name: value for name, value in {**of_file, **named}.items() if name in _SERVICES}
    lists = {name: value if isinstance(value, list) else [value] for name, value in found.items()}
    return {name: tuple(_table(item) for item in value if isinstance(item, dict)) for name, value in lists.items()}


def _object(name: str, text: str) -> dict[str, Any] | list[Any]:

    try:
        value = decode_json(os.fsencode(text))
    except NotJson:
        value = None
    fits = isinstance(value, (dict, list) if name == "NAS_NODES" else dict)
    if not fits or any(UNUSABLE.search(inside) for _, inside in texts(value, name)):
        hint = f'{name}=\'{{"USERNAME": "…", "PASSWORD": "…"}}\'   with the other keys of docs/data.md'
        raise UsageProblem(f"{name} of the environment is no JSON object", hint)
    return value  # type: ignore[no-any-return]


def _table(entry: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in entry.items() if isinstance(value, (str, int))}


_SHOWN = (".sh", ".toml", ".yaml", ".yml", ".json")


def preview(run: PlannedRun, environ: dict[str, str], refused: Iterable[str] = ()) -> str:
    """Return everything one run would do, secrets masked; `refused` is what would keep it from being started."""
    plan = run.plan
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
        parts.append(_manifest(run))
        return Redactor(secrets_for(run, environ)).text("\n".join(parts))
    if (plan.image is not None or not plan.traits.containerised) and (request := _request(run)):
        parts.append(_section(f"{plan.runtime} request", request))
    parts.append(_section("commands", "\n".join(_commands(plan))))
    for file in run.files:
        if file.path.endswith(_SHOWN):
            parts.append(_section(file.path, file.data.decode("utf-8", "replace").rstrip("\n")))
        else:
            parts.append(f"# --- {file.path} ({len(file.data)} bytes, copied from {file.template})")
    return Redactor(secrets_for(run, environ)).text("\n".join(parts)) + "\n"


def _request(run: PlannedRun) -> str:
    """Return the request to the runtime as JSON; "" where building it fails for the reason that blocks the plan."""
    try:
        with guard_plugin(run.runtime):
            plan = bind_model_dir(run.plan, run.plan.model_dir)
            return json.dumps(run.runtime.request(plan), indent=2, default=str)
    except UsageProblem:
        if run.plan.blocked is None:
            raise
        return ""


def _manifest(run: PlannedRun) -> str:
    """Return the request as the engine's own tool takes it; a comment where it cannot be made."""
    try:
        with guard_plugin(run.runtime):
            plan = bind_model_dir(run.plan, run.plan.model_dir)
            runtime = cast("ManifestRuntime", run.runtime)
            return "---\n" + runtime.manifest(plan, {file.path: file.data for file in run.files})
    except RuntimeProblem as problem:
        return f"# would not start: {problem.message}\n# hint: {problem.hint}\n"


def _section(title: str, text: str) -> str:
    return f"# --- {title}\n{text}"


def _commands(plan: RunPlan) -> list[str]:
    """Return the actions as shell commands, in order."""
    lines = []
    for action in bind_model_dir(plan, plan.model_dir).actions:
        where = action.cwd.replace("{folder}", plan.folder_inside)
        lines.append(f"{action.kind:8} (in {where}) {shlex.join(action.argv)}")
    return lines
