"""`madlite build`: from tags to images and a manifest; `madlite prepare`: what the models need is fetched."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from madlite import process
from madlite.backends.loader import Plugins
from madlite.cancellation import Interrupted
from madlite.catalog.datasets import read_credentials
from madlite.cli import setup
from madlite.cli.arguments import MANIFEST, SUMMARY, contract, file_option
from madlite.cli.arguments import VARIABLE as CONTRACT
from madlite.cli.batch_options import check_together, cluster_option, named_cluster
from madlite.cli.options import (
    TagsCommand,
    clean_cache_option,
    common_options,
    context_options,
    is_given,
    live_option,
    machine_option,
    models_options,
    option_words,
    plan_options,
    registry_option,
    section,
    spelled,
    vendor_option,
)
from madlite.cli.planning import open_cluster, planner
from madlite.cli.screens import PlainScreen, open_screen
from madlite.errors import ExitCode, UsageProblem
from madlite.files import check_writable, write_named
from madlite.images.image import IMAGES_VARIABLE
from madlite.plan.cluster import Cluster
from madlite.plan.context import Options
from madlite.plan.images import find_target, read_batch
from madlite.plan.manifest import manifest_text, summary
from madlite.platforms.docker.request import image_access
from madlite.platforms.registry import find_allocation, step_on_node, translate
from madlite.run.build import BuildInputs, BuildJob, Built, Names, build_all, plan_builds, secrets_of_jobs
from madlite.run.executor import secrets_for
from madlite.run.prepare import PrepareOptions, Requirement, Resolution, prepare_all, resolve
from madlite.run.stop import Signals
from madlite.secrets import Redactor, masked_json
from madlite.text import align, printable, size_text

_EXCLUDE = (  # as in madengine 2
    ("batch_manifest", "tags", "it names the models"),
    ("additional_context", "additional_context_file", "one context at a time"),
    ("use_image", "registry", "nothing is built"),
    ("use_image", "build_on_compute", "nothing is built"),
)


@click.command("build", cls=TagsCommand)
@section("Models")
@models_options
@file_option("--batch-manifest", what="Models as a JSON list, some built anew, some built before.")
@context_options
@vendor_option
@section("Image and container")
@click.option(
    "-a", "--target-archs", multiple=True, metavar="LIST", help="One image per GPU architecture: gfx942,gfx90a."
)
@click.option(
    "--use-image",
    is_flag=False,
    flag_value="auto",
    default="",
    metavar="[IMAGE]",
    help="Build nothing, use this image, or the one each card names (env_vars.DOCKER_IMAGE_NAME).",
)
@click.option("--build-on-compute", is_flag=True, help="Build on a node of a Slurm job, or of this allocation.")
@registry_option
@clean_cache_option
@section("Cluster")
@cluster_option
@section("Results")
@SUMMARY
@file_option("-m", "--manifest-output", default=MANIFEST, what="Where the manifest goes.")
@live_option
@common_options
def command(**params: Any) -> int:
    """Build the images of the models that tags select, and write a manifest for `madlite run --manifest-file`.

    \b
    madlite build --tags pyt_train_llama-3.1-8b
    madlite build --tags pyt_train_llama-3.1-8b --target-archs gfx942,gfx950 --registry docker.io
    madlite run --manifest-file build_manifest.json
    """
    check_together(_EXCLUDE)
    check_writable(params["manifest_output"])
    if params["summary_output"] is not None:
        check_writable(params["summary_output"])
    plugins = setup.load(params["no_plugins"])
    params["gpus"] = ""  # the context, which may be a pipe, is read once, and so is the batch
    batch = params["batch_manifest"]
    params["batch"] = read_batch(batch) if batch is not None else ()
    if params["build_on_compute"]:
        return _on_compute(plugins, params)
    inputs = _inputs(plugins, params)
    jobs = _jobs(plugins, params, inputs)
    setup.warn(*dict.fromkeys(_outside(jobs)))
    setup.print_problems(plugins.problems)
    return _build(jobs, inputs, params)


# of this machine, of its shell, of its job, no name of a shell; what MODEL_DIR names has been copied
_NOT_ON_NODES = re.compile(
    r"(?s)(?:SLURM_|SPUR_|BASH).*|SHELLOPTS|(?:OLD)?PWD|E?UID|PPID|HOSTNAME|MODEL_DIR|_|.*\W.*|\d.*"
)


def _on_compute(plugins: Plugins, params: dict[str, Any]) -> int:
    """Run this command on a node: its output and its end are those of the step.

    The step reads its script from its input, so that no value of the environment is in a file or on a command line.

    Raises:
        UsageProblem: nothing says where the node's images go.
    """
    from madlite.jobs.submit import exports

    cluster = _cluster_of_builds(plugins, params)
    folder = cluster.image_folder or _image_folder(params)
    if not (params["registry"] or folder):
        raise UsageProblem(
            "--build-on-compute without --registry: it would stay on the node",
            "--registry HOST, or a shared folder that images are saved to: slurm.image_folder in the context",
        )
    argv, env, madlite = step_on_node(cluster, dict(os.environ))
    others = {name: value for name, value in os.environ.items() if not (name in env or _NOT_ON_NODES.fullmatch(name))}
    others |= {IMAGES_VARIABLE: folder, CONTRACT: str(contract() or "")}
    command = f"exec {madlite} build {_words(params)} </dev/null"
    lines = (f"cd {shlex.quote(str(Path.cwd()))} || exit 2", *cluster.prologue, command)
    with TemporaryFile() as script, Signals() as signals:
        script.write(exports(others) + os.fsencode("\n".join(lines)))
        script.seek(0)
        step = process.start([*argv, "bash", "-s"], env=env, stdin=script.fileno(), stdout=1, stderr=2)
        try:
            code = signals.watch_calls(step.wait)
        except Interrupted:
            setup.warn("cancelling the job")
            process.kill_group(step.pid, signal.SIGTERM)
            code = signals.exit_code or ExitCode.INTERRUPTED
    step.wait()  # one that is cancelled needs a moment; another signal ends this command at once
    if code == ExitCode.INTERNAL or code not in {*map(int, ExitCode)}:
        setup.warn(f"the job came to no result: {argv[0]} ended with exit code {code}")
        return int(ExitCode.BUILD_FAILED)
    return code


def _cluster_of_builds(plugins: Plugins, params: dict[str, Any]) -> Cluster:
    """Return the cluster that builds are a job of, as the cluster file, the context or the first card describes it.

    One without a name is the allocation that this process is in.

    Raises:
        UsageProblem: there is none, or it does not see this folder.
        MadliteError: a tag selects no card.
    """
    from madlite.jobs.file import check_shared

    tags = [entry.model_name for entry in params["batch"]] or params["tags"]
    setup.copy_model_dir(plugins, tags, params["cards_from"])
    requests = setup.select_requests(plugins, tags, Path.cwd(), params["cards_from"])
    name, environ = named_cluster(params), dict(os.environ)
    if not name and find_allocation(environ) is not None:
        return Cluster()
    base, of_card = open_cluster(name) if name else None, requests[0].card.extra.get("slurm")
    deployment = {"target": "slurm", "slurm": of_card} if of_card and not name else {}
    to = translate(setup.make_context(params), deployment, base, environ)
    if to is None:
        raise UsageProblem("--build-on-compute: nothing names a Slurm", "--cluster NAME, or slurm in the context")
    setup.warn(*(note for note in to.notes if note.startswith("context key 'slurm.")))
    check_shared(to.cluster, Path.cwd())
    return to.cluster


def _words(params: dict[str, Any]) -> str:
    """Return the command line of the build itself, for bash: what files say is in it, as they may be pipes."""
    files: dict[str, Any] = {}
    if params["additional_context_file"] is not None:
        files["additional_context_file"] = setup.context_of(params).values
    if params["batch"]:
        files["batch_manifest"] = params["batch"]
    own = {**params, **dict.fromkeys(("cluster", "build_on_compute", *files)), "verbose": is_given("verbose")}
    every = [(param, own.get(str(param.name))) for param in click.get_current_context().command.params]
    words = [shlex.quote(word) for param, value in every if value for word in option_words(param, value)]
    for name, read in files.items():
        words.append(f"{spelled(name)} <(printf %s {shlex.quote(msgspec.json.encode(read).decode())})")
    return " ".join(words)


def _image_folder(params: dict[str, Any]) -> str:
    """Return the folder that images are saved to which are not pushed; "" for none."""
    from madlite.platforms.slurm.context import image_folder

    return image_folder(setup.context_of(params).typed.slurm) or os.environ.get(IMAGES_VARIABLE, "")


def _inputs(plugins: Plugins, params: dict[str, Any]) -> BuildInputs:
    context = setup.make_context(params)
    options = _options(params)
    # where the vendor is given no GPU is looked for: they may be on another machine
    described = replace(context, values={"gpu_vendor": "CPU"}) if context.typed.gpu_vendor else context
    machine = setup.find_machine(described, "")
    setup.print_problems(machine.problems)
    target = find_target(context, machine, params["target_archs"])
    setup.warn(*(target.notes if not params["use_image"] else ()))
    tags = [entry.model_name for entry in params["batch"]] or params["tags"]
    setup.copy_model_dir(plugins, tags, params["cards_from"])
    return BuildInputs(
        options=options,
        target=target,
        machine=machine,
        credentials=read_credentials(options.workspace) or {},
        use_image=params["use_image"],
        image_folder=_image_folder(params),
    )


def _options(params: dict[str, Any]) -> Options:

    workspace = Path.cwd()
    return Options(
        workspace=workspace,
        output=workspace / "perf.csv",
        live_output=params["live_output"],
        clean_docker_cache=params["clean_docker_cache"],
        registry=params["registry"],
        environ=dict(os.environ),
    )


def _jobs(plugins: Plugins, params: dict[str, Any], inputs: BuildInputs) -> list[BuildJob]:

    names: Names = {}
    workspace, trees = inputs.options.workspace, params["cards_from"]
    return [
        job
        for entry in params["batch"] or (None,)
        for request in setup.select_requests(
            plugins, params["tags"] if entry is None else (entry.model_name,), workspace, trees
        )
        for job in plan_builds(request, inputs, entry, names)
    ]


def _outside(jobs: Sequence[BuildJob]) -> Iterator[str]:
    """Yield a warning for each build input outside of the checkout."""
    for job in jobs:
        for what in image_access(job.image):
            yield f"card {job.entry.request.card.name}: its {what} is outside of this folder"


def _build(jobs: Sequence[BuildJob], inputs: BuildInputs, params: dict[str, Any]) -> int:
    with open_screen(live=params["live_output"]) as screen:
        built = build_all(jobs, inputs.options.workspace, inputs.options.environ, screen)
        if len(built.images) + len(built.failed) > 1:
            screen.end([f"{len(built.images)} ready, {len(built.failed)} failed"])
        if built.interrupted:
            screen.warn(f"interrupted: {params['manifest_output']} was not written")
            return int(built.exit_code)
        return _write(built, secrets_of_jobs(jobs, inputs.options.environ), inputs, params, screen)


def _write(
    built: Built, secrets: Sequence[str], inputs: BuildInputs, params: dict[str, Any], screen: PlainScreen
) -> int:
    """Write manifest and summary, each also where the other one fails, and return the exit code."""
    target = inputs.target
    manifest = manifest_text(
        built.images, built.failed, target.context, secrets, gpu_vendor=target.gpu_vendor, took_s=built.took_s
    )
    description = masked_json(summary(built.images, built.failed, built.took_s), secrets)
    code = built.exit_code
    for what, file, text in (
        ("manifest", params["manifest_output"], manifest),
        ("summary", params["summary_output"], description),
    ):
        if file is None:
            continue
        try:
            write_named(file, text)
        except UsageProblem as problem:
            screen.warn(f"{what} {problem.message}; a build once more is quick: the engine keeps what it built")
            code = code or ExitCode.BUILD_FAILED
        else:
            screen.end([f"{what}: {file}"])
    return int(code)


@click.command("prepare", cls=TagsCommand)
@models_options
@section("Plan")
@click.option("-n", "--dry-run", is_flag=True, help="Show what is needed and whether it can be had, and fetch nothing.")
@machine_option
@live_option
@section("Data and tools")
@click.option("--offline", is_flag=True, help="Use no network: list what is missing.")
@click.option("--refresh", is_flag=True, help="Query the hub about what is here, too: branches move.")
@click.option("--no-image", is_flag=True, help="Leave container images out.")
@plan_options
@common_options
def prepare(**params: Any) -> int:
    """Fetch what the models that tags select need: weights, data, image.

    \b
    madlite prepare --tags pyt_train_llama-3.1-8b --dry-run
    madlite prepare --tags pyt_train_llama-3.1-8b --mode pretrain
    madlite prepare --tags pyt_train_llama-3.1-8b --machine 8xMI300X --no-image

    Access to every repository is checked, and room on the disk, before anything is fetched. A run of the same tag and
    options then uses what is here and fetches nothing.
    """
    plugins = setup.load(params["no_plugins"])
    options = setup.make_options(params)
    planned = planner(plugins, options, params)(options)
    wanted = PrepareOptions(offline=params["offline"], refresh=params["refresh"], images=not params["no_image"])
    found = resolve(planned, plugins, options, wanted)
    setup.print_problems(plugins.problems)
    token = [found.access.token.value.reveal()] if found.access.token else []
    mask = Redactor([*token, *(text for run in planned for text in secrets_for(run, options.environ))]).text
    click.echo(mask(table(found)))
    found.check()
    if params["dry_run"]:
        return 0
    with open_screen(live=options.live_output) as screen:
        return int(prepare_all(found, options, screen, mask).exit_code)


# `madlite prepare` on the screen.

_HEADS = ("what", "from", "size", "state", "where")


def table(found: Resolution) -> str:
    """Return a table of requirements, and how much is still to fetch."""
    if not found.requirements:
        return "nothing is needed from elsewhere"
    rows = [_HEADS, *(_cells(requirement) for requirement in found.requirements)]
    notes = [
        f"note: {requirement.what}: {printable(requirement.note)}"
        for requirement in found.requirements
        if requirement.note
    ]
    missing = sum(requirement.missing for requirement in found.requirements)
    return "\n".join([*align(rows), *notes, *([f"to fetch: {size_text(missing)}"] if missing else [])])


def _cells(requirement: Requirement) -> tuple[str, ...]:
    known = "?" if requirement.size is None else size_text(requirement.size)
    size = "-" if requirement.what.startswith("image ") else known
    left = f", {size_text(requirement.missing)} left" if requirement.state == "partly here" else ""
    cells = (requirement.what, requirement.source, size, f"{requirement.state}{left}", requirement.place)
    return tuple(map(printable, cells))
