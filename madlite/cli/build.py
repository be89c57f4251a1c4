"""`madlite build`: from tags to images and a manifest that `madlite run` takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from madlite.cli import setup
from madlite.cli.format import duration
from madlite.cli.options import (
    TagsCommand,
    clean_cache_option,
    common_options,
    context_options,
    live_option,
    registry_option,
    summary_option,
    tag_words,
    tags_option,
)
from madlite.cli.planning import is_manifest
from madlite.cli.screens import PlainScreen, Sink
from madlite.cli.setup import cards_option
from madlite.errors import ExitCode, UsageProblem
from madlite.run.build import Built, Done
from madlite.run.build_jobs import BuildJob
from madlite.text import printable

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.plan.context import Context, Options
    from madlite.plan.images import BatchEntry
    from madlite.run.build_jobs import BuildInputs

_FILE = click.Path(path_type=Path)
# options that exclude each other, as in madengine 2
_EXCLUSIVE = (
    ("batch_manifest", "tags"),
    ("additional_context", "additional_context_file"),
    ("use_image", "registry"),
    ("use_image", "build_on_compute"),
)


@click.command("build", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@click.option(
    "--batch-manifest", type=_FILE, metavar="FILE", help="Models as a JSON list, some built anew, some built before."
)
@context_options
@click.option("--gpu-vendor", default="", metavar="NAME", help="AMD, NVIDIA or CPU, over what is detected.")
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
@click.option("--build-on-compute", is_flag=True, help="Build in a Slurm job; not there yet.")
@registry_option
@clean_cache_option
@summary_option
@click.option(
    "-m",
    "--manifest-output",
    type=_FILE,
    default=Path("build_manifest.json"),
    show_default=True,
    metavar="FILE",
    help="Where the manifest goes.",
)
@live_option
@common_options
def command(**given: Any) -> int:
    """Build the images of the models that tags select, and write a manifest for `madlite run --manifest-file`.

    \b
    madlite build --tags pyt_train_llama-3.1-8b
    madlite build --tags pyt_train_llama-3.1-8b --target-archs gfx942,gfx950 --registry docker.io
    madlite run --manifest-file build_manifest.json
    """
    _refuse(given)
    from madlite.results.locked import check_writable

    check_writable(given["manifest_output"], is_manifest)
    if given["summary_output"] is not None:
        check_writable(given["summary_output"])
    plugins = setup.load(given["no_plugins"], given["verbose"])
    given["batch"] = _batch(given["batch_manifest"])
    inputs = _inputs(plugins, given)
    jobs = _jobs(plugins, given, inputs)
    for text in dict.fromkeys(_outside(jobs)):
        setup.warn(text)
    setup.tell_problems(plugins.problems)
    return _build(jobs, inputs, given)


def _refuse(given: dict[str, Any]) -> None:
    """Refuse options that exclude each other."""
    for one, other in _EXCLUSIVE:
        if given[one] and given[other]:
            raise click.UsageError(f"{_option(one)} and {_option(other)} exclude each other")
    if given["build_on_compute"] and not given["registry"]:
        raise click.UsageError("--build-on-compute needs --registry")
    if given["build_on_compute"]:
        raise click.UsageError("--build-on-compute is not there yet: build on the node itself, without it")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _inputs(plugins: Plugins, given: dict[str, Any]) -> BuildInputs:
    from madlite.plan.images import find_target
    from madlite.run.build_jobs import BuildInputs

    context = setup.make_context({**given, "gpus": ""})
    options = _options(given)
    machine = setup.find_machine(_without_gpus(context) if context.known.gpu_vendor else context, "")
    setup.tell_problems(machine.problems)
    target = find_target(context, machine, given["target_archs"])
    for note in target.notes if not given["use_image"] else ():
        setup.warn(note)
    setup.bring_model_dir(plugins, _tags(given), given["cards_from"])
    return BuildInputs(
        options=options,
        target=target,
        machine=machine,
        credentials=setup.read_credentials(options.workspace) or {},
        registry=given["registry"],
        use_image=given["use_image"],
    )


def _tags(given: dict[str, Any]) -> Sequence[str]:
    return given["tags"] if given["batch_manifest"] is None else [entry.model_name for entry in given["batch"]]


def _batch(file: Path | None) -> tuple[BatchEntry, ...]:
    """Return the entries of a batch manifest; it may be a pipe, which is read once."""
    from madlite.plan.images import read_batch

    return read_batch(file) if file is not None else ()


def _options(given: dict[str, Any]) -> Options:
    from madlite.plan.context import Options

    workspace = setup.find_workspace(touch=True)
    return Options(
        workspace=workspace,
        output=workspace / "perf.csv",
        live_output=given["live_output"],
        clean_docker_cache=given["clean_docker_cache"],
        environ=dict(os.environ),
    )


def _without_gpus(context: Context) -> Context:
    """Return a context by which no GPU is looked for: whose images are built is said, and they may be elsewhere."""
    from msgspec.structs import replace

    return replace(context, values={"gpu_vendor": "CPU"})


def _jobs(plugins: Plugins, given: dict[str, Any], inputs: BuildInputs) -> list[BuildJob]:
    from madlite.run.build_jobs import plan_builds

    workspace, trees = inputs.options.workspace, given["cards_from"]
    if given["batch_manifest"] is None:
        requests = setup.select_requests(plugins, given["tags"], workspace, trees)
        return [job for request in requests for job in plan_builds(request, inputs)]
    return [
        job
        for entry in given["batch"]
        for request in setup.select_requests(plugins, (entry.model_name,), workspace, trees)
        for job in plan_builds(request, inputs, entry)
    ]


def _outside(jobs: Sequence[BuildJob]) -> Iterator[str]:
    """Yield what of the checkout's images comes from elsewhere on this machine."""
    from madlite.runtimes.docker.request import image_access

    for job in jobs:
        for what in image_access(job.image):
            yield f"card {job.entry.request.card.name}: its {what} is outside of this folder"


def _build(jobs: Sequence[BuildJob], inputs: BuildInputs, given: dict[str, Any]) -> int:
    from madlite.cli.screens import make_screen
    from madlite.run.build import build_all

    sink = Sink(sys.stdout.fileno())
    screen = make_screen(sink, live=given["live_output"])
    lines = BuildLines(screen)
    try:
        built = build_all(jobs, inputs.options.workspace, inputs.options.environ, lines)
        lines.total(built)
        if built.interrupted:
            screen.warn(f"interrupted: {given['manifest_output']} was not written")
            return int(built.exit_code)
        return _write(_texts(built, jobs, inputs, given), built, screen)
    finally:
        screen.close()
        sink.close()


def _write(texts: Mapping[Path, tuple[str, str]], built: Built, screen: PlainScreen) -> int:
    """Write what is wanted, each file whatever becomes of the others, and return the exit code."""
    from madlite.results.locked import write_named

    code = built.exit_code
    for file, (what, text) in texts.items():
        try:
            write_named(file, text, is_manifest if what == "manifest" else lambda file: False)
        except UsageProblem as problem:
            screen.warn(f"{what} {problem.message}; a build once more is quick: the engine keeps what it built")
            code = code or ExitCode.BUILD_FAILED
        else:
            screen.end([f"{what}: {file}"])
    return int(code)


def _texts(
    built: Built, jobs: Sequence[BuildJob], inputs: BuildInputs, given: dict[str, Any]
) -> dict[Path, tuple[str, str]]:
    """Return what is written by its file: what it is, and its text."""
    from madlite.plan.manifest_text import manifest_text, summary
    from madlite.run.build import secrets_of_jobs
    from madlite.secrets import masked_json

    secrets = secrets_of_jobs(jobs, inputs.options.environ)
    text = manifest_text(
        built.images,
        built.failed,
        inputs.target.context,
        secrets,
        gpu_vendor=inputs.target.gpu_vendor,
        took_s=built.took_s,
    )
    told = masked_json(summary(built.images, built.failed, built.took_s), secrets)
    texts = {given["summary_output"]: ("summary", told)} if given["summary_output"] is not None else {}
    return {given["manifest_output"]: ("manifest", text), **texts}


# How builds are worded on the screen.


class BuildLines:
    """Shows builds on a screen of runs."""

    def __init__(self, screen: PlainScreen) -> None:
        self._screen = screen

    def build_started(self, job: BuildJob, position: int, total: int) -> None:
        """Name the card and its image."""
        entry = job.entry
        what = [entry.request.card.name, entry.dockerfile or entry.docker_image or "no image", entry.gpu_architecture]
        lines = [f"[{position}/{total}] " + " · ".join(part for part in what if part)]
        if job.image is not None:
            lines.append(f"      log: {entry.log_file}")
        self._screen.begin(lines)

    def build_line(self, text: str) -> None:
        """Say what the build does, all of it where asked for."""
        self._screen.phase(text)

    def build_finished(self, job: BuildJob, done: Done) -> None:
        """Say how it ended."""
        self._screen.end([f"      {line}" for line in _ending(job, done)])

    def total(self, built: Built) -> None:
        """Say how all of them ended, where there was more than one."""
        if len(built.images) + len(built.failed) > 1:
            self._screen.end([f"{len(built.images)} ready, {len(built.failed)} failed"])


def _ending(job: BuildJob, done: Done) -> list[str]:
    entry = done.entry
    if entry is None:
        hint = [f"  hint: {printable(done.hint)}"] if done.hint else []
        return [f"FAILURE {job.entry.request.card.name} {printable(done.error)}", *hint]
    if job.image is None:
        where = entry.registry_image or entry.docker_image or "each variant's own image"
        return [f"not built: {where} is used"]
    lines = [f"BUILT {entry.docker_image}" + (f" as {entry.registry_image}" if entry.registry_image else "")]
    lines += [f"  note: {printable(note)}" for note in done.notes]
    lines += [f"  FAILURE of the push: {printable(entry.push_error)}"] if entry.push_error else []
    took_s = entry.build_duration_s
    return [*lines, *([] if took_s is None else [f"  took {duration(took_s)}"])]
