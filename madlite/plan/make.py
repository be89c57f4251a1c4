"""Card, draft, machine, options and context → RunPlan. Pure: the same input gives the same plan."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from madlite.plan.context import Context
from madlite.plan.dockerfiles import Dockerfile
from madlite.plan.environment import Environment, credential_env, make_environment, secret_args, visible_devices
from madlite.plan.options import Options
from madlite.plan.place import Choice, Granted, grant_gpus, make_place
from madlite.plan.values import Layer, Resolved, resolve
from madlite.secrets import collect, guard
from madlite.types import (
    Action,
    Blocked,
    Card,
    Cause,
    Draft,
    EngineOptions,
    EnvValue,
    Image,
    Machine,
    Mount,
    Place,
    Request,
    RunPlan,
    Scalar,
    Secret,
    Status,
    Value,
)

DEFAULT_TIMEOUT_S = 7200
_PLACE = re.compile(r"\{(?:args|encapsulate)\}")
MODEL_DIR = "{model_dir}"
WORKSPACE_INSIDE = "/myworkspace"
RUNS = "madlite_runs"


class Given(Value, frozen=True):
    """Everything a plan is made from; `dockerfile` is one of the card's, `missing_image` why it has none."""

    run_id: str
    request: Request
    backend: str
    draft: Draft
    machine: Machine
    options: Options
    context: Context
    runtime: Choice
    args: str
    dockerfile: Dockerfile | None = None
    missing_image: str = ""
    credentials: dict[str, dict[str, str]] | None = None  # None without a credential.json


def make_plan(given: Given) -> RunPlan:
    """Return the plan.

    Raises:
        UsageProblem: a value that was set is unknown or does not fit.
    """
    card, options, draft = given.request.card, given.options, given.draft
    resolved = resolve(draft.variant, draft.settings, layers(given), draft.origin or f"backend {given.backend}")
    granted = grant_gpus(card, given.machine, given.context, _whole(resolved.plan.get("n_gpus")))
    on_host = given.runtime.runtime != "docker"
    launcher = str(resolved.plan.get("launcher", draft.launcher))
    environment = _environment(given, resolved, granted, launcher)
    image = None if on_host else _image(given, str(resolved.plan.get("image", "")))
    timeout_s, timeout_origin = _timeout(card, options, resolved.plan.get("timeout_s"))
    return RunPlan(
        id=given.run_id,
        card=card,
        backend=given.backend,
        place=_place(given, granted),
        machine=given.machine,
        workspace=options.workspace,
        inside=str(options.workspace) if on_host else WORKSPACE_INSIDE,
        folder=options.workspace / RUNS / given.run_id,
        runtime=given.runtime.runtime,
        readers=draft.readers or (given.backend,),
        variant=resolved.variant,
        settings=resolved.settings,
        image=image,
        env=environment.values,
        mounts=() if on_host else _mounts(given.context),
        devices=() if on_host else _devices(given.machine, granted.gpu_ids),
        engine_options=EngineOptions() if on_host else _engine_options(given),
        templates=draft.templates,
        actions=_actions(given),
        launcher=launcher,
        result_rule=draft.result_rule,
        args=given.args,
        model_args=given.context.known.model_args,
        model_dir=model_dir(card) if draft.actions else "",
        timeout_s=timeout_s,
        stop_grace_s=float(resolved.plan.get("stop_grace_s", 10.0)),
        keep_alive=options.keep_alive,
        keep_model_dir=options.keep_model_dir,
        skip_model_run=options.skip_model_run,
        name=_container_name(image),
        log_name=_log_name(card, image),
        give_back=options.user if not on_host and options.user[0] != 0 else None,
        origins={
            **resolved.origins,
            **environment.origins,
            "runtime": given.runtime.origin,
            "args": given.context.origins.get("model_args", "card, tag"),
            "timeout_s": resolved.origins.get("timeout_s", timeout_origin),
            "n_gpus": _n_gpus_origin(given, resolved),
            "image": _image_origin(given, resolved),
            "machine": ", ".join(sorted(set(given.machine.sources.values()))) or "detected",
        },
        notes=tuple(note for note in (given.runtime.note, granted.note) if note),
        blocked=_blocked(given, granted, image),
    )


def _place(given: Given, granted: Granted) -> Place:
    """Return where the plan runs; one that is refused for too few GPUs keeps the count it asked for, for its row."""
    place = make_place(given.machine, given.runtime.runtime, granted.gpu_ids)
    return replace(place, gpus_per_node=granted.wanted) if granted.blocked else place


def layers(given: Given) -> list[Layer]:
    """Return the sources of values over a draft's own, in their order: later wins."""
    request, context, options = given.request, given.context, given.options
    card_values = request.card.recipe if isinstance(request.card.recipe, dict) else {}
    tag_values: dict[str, Scalar] = {key: "true" if value is None else value for key, value in request.overrides}
    return [
        Layer(origin="card", values={key: value for key, value in card_values.items() if key != "name"}),
        Layer(origin=f"context file {context.file}", values=context.file_settings),
        Layer(origin="--additional-context", values=context.option_settings),
        Layer(origin="tag", values=tag_values if given.draft.templates else {}),
        *(Layer(origin="--set", values={key: value}) for key, value in options.sets),
    ]


def model_dir(card: Card) -> str:
    """Return the folder a MAD script runs in: the repository's name, else run_directory."""
    name = re.split(r"[/:]", card.url.rstrip("/"))[-1].removesuffix(".git") if card.url else ""
    return name if name not in ("", ".", "..") else "run_directory"


def _actions(given: Given) -> tuple[Action, ...]:
    """Return the draft's actions with `{args}` and `{encapsulate}` filled in; `{model_dir}` waits for its claim."""
    drafted = given.draft.actions or (Action(kind="run", argv=("bash", "run.sh"), cwd="{folder}"),)
    known = given.context.known
    fill = {
        "{args}": _run_args(given),
        "{encapsulate}": f"{known.encapsulate_script} " if known.encapsulate_script else "",
    }
    return tuple(replace(action, argv=tuple(_filled(word, fill) for word in action.argv)) for action in drafted)


def _run_args(given: Given) -> str:
    """Return the args the run gets: the context's model_args replace the card's, whose the row keeps."""
    replaced = given.context.known.model_args
    return given.args if replaced is None else replaced


def settle_model_dir(plan: RunPlan, name: str) -> RunPlan:
    """Return the plan with `name` as the folder its script runs in.

    `{model_dir}` counts only as a whole word or folder: text of a card's args that looks like it stays what it is.
    """
    actions = tuple(
        replace(
            action,
            argv=tuple(name if word == MODEL_DIR else word for word in action.argv),
            cwd=name if action.cwd == MODEL_DIR else action.cwd,
        )
        for action in plan.actions
    )
    return replace(plan, actions=actions, model_dir=name if plan.model_dir else "")


def _filled(word: str, fill: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: fill.get(found[0], found[0]), word)


def _environment(given: Given, resolved: Resolved, granted: Granted, launcher: str) -> Environment:
    host_env: dict[str, str] = {}
    if given.runtime.runtime != "docker":
        host_env = visible_devices(given.machine, granted.gpu_ids) | {"MADLITE_PYTHON": given.options.python}
    return make_environment(
        given.request.card,
        given.machine,
        given.options,
        given.context,
        n_gpus=len(granted.gpu_ids),
        launcher=launcher,
        credentials=given.credentials or {},
        backend_env=given.draft.env,
        host_env=host_env,
        set_env=resolved.env,
    )


def _image(given: Given, asked: str) -> Image | None:
    foreign = given.options.image or asked or given.context.known.MAD_CONTAINER_IMAGE
    if foreign:
        return Image(ref=foreign)
    if given.dockerfile is None:
        return Image(ref=given.draft.image) if given.draft.image else None
    card = given.request.card
    args = _build_args(given)
    return Image(
        ref=image_name(card.name, given.dockerfile.path.name),
        dockerfile=given.dockerfile.path,
        context=given.dockerfile.context,
        build_args=args,
        base=str(given.context.known.docker_build_arg.get("BASE_DOCKER", "")) or given.dockerfile.base,
        no_cache=given.options.clean_docker_cache,
    )


def image_name(card_name: str, dockerfile: str) -> str:
    """Return MAD's name for a card's image, `ci-<card>_<Dockerfile>`; what a registry refuses becomes `_`.

    Grammar: a repository name of the OCI distribution specification.
    """
    name = f"ci-{_flat(card_name).lower()}_{dockerfile.removesuffix('.Dockerfile')}"
    if re.fullmatch(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*", name):
        return name
    return re.sub(r"[._-]{2,}", "_", re.sub(r"[^a-z0-9._-]", "_", name.lower())).strip("._-")


def _build_args(given: Given) -> dict[str, EnvValue]:
    arch = {"MAD_SYSTEM_GPU_ARCHITECTURE": given.machine.architecture} if given.machine.gpus else {}
    asked = {key: str(value) for key, value in given.context.known.docker_build_arg.items()}
    credential = credential_env(given.request.card, given.credentials or {})
    known = collect(given.options.environ, credential.values())
    return {**secret_args(given.options.environ), **arch, **guard(asked, known), **credential}


def _n_gpus_origin(given: Given, resolved: Resolved) -> str:
    count = resolved.origins.get("n_gpus", "context" if given.context.n_gpus is not None else "card")
    which = given.context.origins.get("docker_gpus", "")
    return f"{count}, {which}" if which else count


def _image_origin(given: Given, resolved: Resolved) -> str:
    if given.options.image:
        return "--image"
    if "image" in resolved.plan:
        return resolved.origins["image"]
    if given.context.known.MAD_CONTAINER_IMAGE:
        return given.context.origins.get("MAD_CONTAINER_IMAGE", "context")
    return "card's Dockerfile" if given.dockerfile else resolved.origins.get("image", "card")


def _mounts(context: Context) -> tuple[Mount, ...]:
    return tuple(Mount(source=host, target=inside) for inside, host in context.known.docker_mounts.items())


def _devices(machine: Machine, gpu_ids: tuple[int, ...]) -> tuple[str, ...]:
    """Return device files: /dev/fuse as MAD asks for, and AMD's /dev/kfd and render nodes."""
    if machine.vendor == "CPU":
        return ()
    if machine.vendor == "NVIDIA":
        return ("/dev/fuse",)
    minors = [gpu.render_minor for gpu in machine.gpus if gpu.index in gpu_ids and gpu.render_minor is not None]
    return ("/dev/fuse", "/dev/kfd", *(f"/dev/dri/renderD{minor}" for minor in minors))


def _engine_options(given: Given) -> EngineOptions:
    vendor = given.machine.vendor
    caps = {"AMD": ("SYS_PTRACE", "SYS_ADMIN"), "NVIDIA": ("SYS_PTRACE", "SYS_ADMIN", "SYS_NICE"), "CPU": ()}[vendor]
    return EngineOptions(
        group_add=("video",) if vendor == "AMD" else (),
        cap_add=caps,
        security_opt=("seccomp=unconfined", "apparmor=unconfined") if vendor != "CPU" else (),
        cpuset=(given.context.known.docker_cpus or "").replace(" ", ""),
        extra=given.request.card.additional_docker_run_options,
    )


def _timeout(card: Card, options: Options, asked: Scalar | None) -> tuple[float | None, str]:
    """Return the limit in seconds, None for none, and who set it."""
    if asked is not None:
        return (float(asked) or None), "--set"
    if options.timeout_s is not None:
        return (float(options.timeout_s) or None), "--timeout"
    if card.timeout_s is not None:
        return (float(card.timeout_s) or None), "card"
    return float(DEFAULT_TIMEOUT_S), "default"


def _flat(name: str) -> str:
    return re.sub(r"[/:]", "_", name)


def _container_name(image: Image | None) -> str:
    return f"container_{_flat(image.ref)}" if image else ""


def _log_name(card: Card, image: Image | None) -> str:
    if image is None:
        part = "host"
    else:
        part = image.dockerfile.name.removesuffix(".Dockerfile") if image.dockerfile else _flat(image.ref)
    return f"{_flat(card.name)}_{part}.live.log"


def _blocked(given: Given, granted: Granted, image: Image | None) -> Blocked | None:
    """Return what keeps the plan from starting, the user's own rule first."""
    card, options = given.request.card, given.options
    if card.is_deprecated and not options.ignore_deprecated:
        return _skip(Cause.DEPRECATED, f"card '{card.name}' is deprecated", "--ignore-deprecated runs it")
    arch = _skipped_arch(card, given.machine)
    if arch and not options.disable_skip_gpu_arch:
        return _skip(
            Cause.SKIPPED_ARCH, f"card '{card.name}' is not meant for {arch}", "--disable-skip-gpu-arch runs it"
        )
    if card.cred and given.credentials is not None and card.cred not in given.credentials:
        return _fail(
            Cause.PREPARE,
            f"card '{card.name}' needs credential '{card.cred}', credential.json has no table of that name",
        )
    if given.draft.problem:
        return _fail(Cause.PREPARE, given.draft.problem)
    if given.runtime.blocked or granted.blocked:
        return given.runtime.blocked or granted.blocked
    if given.runtime.runtime == "docker" and image is None:
        return _fail(Cause.IMAGE, given.missing_image or f"card '{card.name}' names no image", "--image REF names one")
    return None


def _skip(cause: Cause, reason: str, hint: str) -> Blocked:
    return Blocked(status=Status.SKIPPED, cause=cause, reason=reason, hint=hint)


def _fail(cause: Cause, reason: str, hint: str = "") -> Blocked:
    return Blocked(status=Status.FAILURE, cause=cause, reason=reason, hint=hint)


def _skipped_arch(card: Card, machine: Machine) -> str:
    """Return the architecture of this machine that the card wants to be skipped on.

    AMD: the gfx id.  NVIDIA: the whole name, or its second word up to the first dash (`A100` of `NVIDIA A100-SXM4`).
    """
    names = {machine.architecture}
    if machine.vendor == "NVIDIA":
        words = machine.architecture.split()
        names |= {words[1], words[1].split("-")[0]} if len(words) > 1 else set()
    return next((arch for arch in card.skip_gpu_arch if arch in names), "")


def _whole(value: Scalar | None) -> int | None:
    return None if value is None else int(value)


def secrets_of(plan: RunPlan) -> Mapping[str, Secret]:
    """Return the plan's secret values by variable, for the redactor."""
    values = {**(plan.image.build_args if plan.image else {}), **plan.env}
    return {name: value for name, value in values.items() if isinstance(value, Secret)}
