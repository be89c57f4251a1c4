"""Card, spec, machine, options and context → RunPlan; pure but for checks of which files and data exist."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Blocked, Card, Cause, FileTemplate, Image, Machine, Place, RunPlan, Scalar, Status
from madlite.plan.actions import (
    DataPlan,
    error_scan_origin,
    make_actions,
    make_error_scan,
    model_dir,
    plan_data,
    tool_files,
    tools_of,
)
from madlite.plan.container import add_rdma, choose_image, container_fields, log_name, make_environment
from madlite.plan.fields import Resolved, resolve, targeted_values, with_output_limit
from madlite.plan.inputs import RUNS, RunInputs, add_node_values, layers
from madlite.plan.place import GpuAllocation, allocate_gpus, find_architecture, make_place, own_table, serving_note

# Args that set what the plan decides: they would go before it, and the row would describe another run.
#
# A backend names the options of its trainer that do (`RunSpec.planned_options`); the core knows none.


def refuse_planned_options(plan: RunPlan, planned: Mapping[str, str], source: str) -> None:
    """Refuse args of a run that set an option whose value the plan decides; `source` is where they come from.

    Raises:
        UsageProblem: they do.
    """
    keys = {_plain(option): key for option, key in planned.items()}
    found = [(word, value, keys[name]) for name, word, value in _options(plan.run_args) if name in keys]
    if found:
        words = ", ".join(f"{word}={value}" if value else word for word, value, _ in found)
        wanted = {key: value if value.isdecimal() else "…" for _, value, key in found}
        what = f"{source}: args set {words}, and the plan decides {', '.join(wanted)}: the row would differ"
        instead = f"{' '.join(f'--set {key}={value}' for key, value in wanted.items())} instead"
        raise UsageProblem(what, instead, keys=("args",))


def _options(args: str) -> Iterator[tuple[str, str, str]]:
    """Yield each option's plain name, the name as written, and its value; also of `a=1` and hydra's `+a=1`."""
    try:
        words = shlex.split(args)
    except ValueError:
        return  # rendering refuses them
    for word, after in pairwise([*words, "-"]):
        name, equals, value = word.partition("=")
        if equals:
            yield _plain(name), name, value
        elif word.startswith("-"):
            yield _plain(word), word, "" if after.startswith("-") else after


def _plain(name: str) -> str:
    """Return an option's name without what introduces it; most trainers take `-` and `_` for the same."""
    return name.lstrip("-+~").replace("-", "_")


# What blocks a plan; it still becomes a row.


def find_blocked(
    inputs: RunInputs, allocation: GpuAllocation, image: Image | None, unfit: str, data_problem: str
) -> Blocked | None:
    """Return what blocks the plan, the user's own rule first; `unfit` is why its results file cannot be."""
    card, options = inputs.request.card, inputs.options
    if card.is_deprecated and not options.ignore_deprecated:
        return _skip(Cause.DEPRECATED, f"card '{card.name}' is deprecated", "--ignore-deprecated runs it")
    arch = _skipped_arch(card, inputs.machine)
    if arch and not options.disable_skip_gpu_arch:
        return _skip(
            Cause.SKIPPED_ARCH,
            f"Skipping model {card.name}: it is not meant for {arch}",
            "--disable-skip-gpu-arch runs it",
        )
    if card.cred and inputs.credentials is not None and card.cred not in inputs.credentials:
        return Blocked.failure(
            Cause.PREPARE,
            f"card '{card.name}' needs credential '{card.cred}', credential.json has no table of that name",
        )
    if problem := unfit or inputs.spec.problem or data_problem:
        return Blocked.failure(Cause.PREPARE, problem)
    imageless = inputs.runtime.traits.containerised and image is None
    # before a missing engine, which would be of no use without an image
    if imageless and inputs.spec.templates and not allocation.blocked:
        return _no_image(inputs)
    if inputs.runtime.blocked or allocation.blocked:
        return inputs.runtime.blocked or allocation.blocked
    return _no_image(inputs) if imageless else None


def _no_image(inputs: RunInputs) -> Blocked:
    if inputs.spec.templates:  # of no use to it is a Dockerfile of the card's own
        return Blocked.failure(
            Cause.IMAGE,
            f"what backend '{inputs.backend}' renders for card '{inputs.request.card.name}' has no image",
            "--runtime host runs it on this machine, --image REF in a container",
        )
    reason = inputs.missing_image or f"card '{inputs.request.card.name}' names no image"
    return Blocked.failure(Cause.IMAGE, reason, "--image REF names one")


def _unfit_results(inputs: RunInputs) -> str:
    """Return why a results file cannot have the name the card gives it: it would replace another one."""
    name, options = inputs.spec.result_rule.file, inputs.options
    place = options.workspace / name
    taken = {"perf.csv", "common_info.json", "build_manifest.json", "models.json", "data.json", "credential.json"}
    entries = {f"perf_{kind}.{end}" for kind in ("entry", "super", "entry_super") for end in ("csv", "json")}
    if not name or (name not in taken | entries and place != options.output and ".." not in place.parts):
        inside = not name or place.is_relative_to(options.workspace)
        return "" if inside else f"card '{inputs.request.card.name}' leaves its results in {name}, outside this folder"
    return f"card '{inputs.request.card.name}' leaves its results in {name}, which is another file's name"


def _skip(cause: Cause, reason: str, hint: str) -> Blocked:
    return Blocked(status=Status.SKIPPED, cause=cause, reason=reason, hint=hint)


def _skipped_arch(card: Card, machine: Machine) -> str:
    """Return the architecture of this machine that the card wants to be skipped on.

    AMD: the gfx id.  NVIDIA: the whole name, or its second word up to the first dash (`A100` of `NVIDIA A100-SXM4`).
    """
    names = {machine.architecture}
    if machine.vendor == "NVIDIA":
        words = machine.architecture.split()
        names |= {words[1], words[1].split("-")[0]} if len(words) > 1 else set()
    return next((arch for arch in card.skip_gpu_arch if arch in names), "")


DEFAULT_TIMEOUT_S = 7200
_ARGUMENTS = "an argument of the script: TAG:name=value, or --set 'args=--name value'"


def make_plan(inputs: RunInputs) -> RunPlan:
    """Return the plan.

    Raises:
        UsageProblem: a value that was set is unknown or does not fit.
    """
    request, spec = inputs.request, inputs.spec
    overrides = tuple(pair for pair in request.overrides if pair[0] not in inputs.arg_keys)
    sources = (replace(request, overrides=overrides), inputs.context, inputs.options)
    resolved = resolve(
        spec.variant,
        spec.settings,
        layers(*sources, rendered=bool(spec.templates), nodes=inputs.nodes),
        spec.origin or f"backend {inputs.backend}",
        spec.chosen,
        inputs.foreign_settings,
        _ARGUMENTS if spec.tag_args else "",
    )
    _refuse_without_steps(inputs, resolved)
    if spec.result_rule.kind != "steps":
        resolved = with_output_limit(resolved)
    inputs = _with_args(inputs, resolved)
    plan = _plan(inputs, resolved)
    source = inputs.context.origins.get("model_args", f"card '{request.card.name}'")
    refuse_planned_options(plan, spec.planned_options, source)
    # whether this machine is one of the nodes: its runtime's, or the node of Slurm that it runs on
    is_here = inputs.runtime.traits.local or bool(inputs.options.environ.get("SLURMD_NODENAME"))
    plan = add_node_values(plan, inputs.fabric if is_here else None, inputs.options.environ)
    return add_rdma(plan) if inputs.runtime.traits.containerised else plan


_OF_STEPS = {"until": ("cannot end early", "0"), "profile": ("cannot be profiled", "false")}  # and how each is off


def _refuse_without_steps(inputs: RunInputs, resolved: Resolved) -> None:
    """Refuse `until` and `profile` of a run that no steps of its log give the number of, and `profile` of one whose
    number of steps is not known, or that may end early.

    Raises:
        UsageProblem: one is set.
    """
    for key, (what, off) in _OF_STEPS.items():
        why = ""
        if inputs.spec.result_rule.kind != "steps":
            why = "its own script makes the number, and madlite reads no training steps that decide it"
        elif key == "profile" and (resolved.variant is None or resolved.variant.steps is None):
            why = "nothing says how many steps it makes, after which others are profiled (--steps N)"
        elif key == "profile" and resolved.plan.get("until"):
            why = "a run that ends early (--until) has no last measured step after which others are profiled"
        if why and resolved.plan.get(key):
            raise UsageProblem(
                f"{resolved.origins[key]}: card '{inputs.request.card.name}' {what}: {why}",
                f"leave it out, or --set {key}={off} for this card",
                keys=(key,),
            )


def _with_args(inputs: RunInputs, resolved: Resolved) -> RunInputs:
    """Return the inputs with args that were set, in place of the card's and the context's.

    What the tag adds comes after them all the same.
    """
    if "args" not in resolved.plan:
        return inputs
    args = f"{resolved.plan['args']}{inputs.args.removeprefix(inputs.request.card.args)}".strip()
    keys = replace(inputs.context.typed, model_args=args)
    origins = {**inputs.context.origins, "model_args": resolved.origins["args"]}
    return replace(inputs, args=args, context=replace(inputs.context, typed=keys, origins=origins))


def _plan(inputs: RunInputs, resolved: Resolved) -> RunPlan:
    card, options, spec, traits = inputs.request.card, inputs.options, inputs.spec, inputs.runtime.traits
    wanted, nodes = _whole(resolved.plan.get("n_gpus")), _whole(resolved.settings.get("nnodes"))
    allocation = allocate_gpus(card, inputs.machine, inputs.context, wanted, options.environ)
    place = _place(inputs, allocation, nodes)
    shape = find_architecture(spec, resolved.variant, resolved.settings)
    image, of_image = choose_image(inputs, resolved)
    launcher, unfit = _launcher(inputs, resolved), _unfit_results(inputs)
    timeout_s, of_timeout = _timeout(inputs, resolved)
    origins = _origins(inputs, resolved, of_timeout, of_image)
    tools = tools_of(inputs)
    data = plan_data(inputs) if spec.actions or not card.scripts else DataPlan()
    environment = make_environment(inputs, allocation.gpu_ids, launcher, data.env, resolved.env)
    plan = RunPlan(
        id=inputs.run_id,
        card=card,
        backend=inputs.backend,
        place=place,
        machine=inputs.machine,
        workspace=options.workspace,
        inside=inputs.inside,
        folder=options.workspace / RUNS / inputs.run_id,
        runtime=inputs.runtime.runtime,
        traits=traits,
        readers=spec.readers or (inputs.backend,),
        variant=resolved.variant,
        settings=resolved.settings,
        env=environment.values,
        templates=(*spec.templates, *tool_files(inputs, tools), *_profiler_file(resolved)),
        actions=make_actions(inputs, data.actions, tools, environment.values),
        launcher=launcher,
        deployment=options.environ.get("MAD_DEPLOYMENT_TYPE", ""),
        # the name that blocks the plan is nothing to read, nor to put into a plan file
        result_rule=replace(spec.result_rule, file="") if unfit else spec.result_rule,
        error_scan=make_error_scan(card, inputs.context, spec),
        args=inputs.args,
        overrides=inputs.request.overrides,
        model_args=inputs.context.typed.model_args,
        model_dir=model_dir(card) if spec.actions else "",
        timeout_s=timeout_s,
        architecture=shape.architecture,
        origins={
            **environment.origins,
            **resolved.origins,
            **origins,
            **({"architecture": shape.origin} if resolved.variant else {}),
        },
        image=image,
        keep_alive=options.keep_alive,
        keep_model_dir=options.keep_model_dir,
        skip_model_run=options.skip_model_run,
        log_name=log_name(card, image),
        blocked=find_blocked(inputs, allocation, image, unfit, data.problem),
        data=data.uses,
        outputs=spec.outputs,
        writes_row=not inputs.context.typed.skip_perf_collection,
        **(container_fields(inputs, allocation.gpu_ids, data.mounts, image) if traits.containerised else {}),
        **targeted_values(resolved),
    )
    notes = (*spec.notes, inputs.runtime.note, options.allocation, allocation.note, _no_credential(inputs))
    return replace(
        plan, notes=tuple(filter(None, (*notes, serving_note(plan.launcher), _other_precision(plan), *data.notes)))
    )


def _launcher(inputs: RunInputs, resolved: Resolved) -> str:
    """Return what launches the ranks: --set, the context, the card or its backend, $MAD_LAUNCHER; as it is given."""
    requested = resolved.plan.get("launcher") or inputs.context.typed.distributed.get("launcher")
    return str(requested or inputs.spec.launcher or inputs.options.environ.get("MAD_LAUNCHER", ""))


def _profiler_file(resolved: Resolved) -> tuple[FileTemplate, ...]:
    """Return what profiles a run, by Python's own hook at its start."""
    name = "profile/sitecustomize.py"
    return (FileTemplate(path=name, template=name, raw=True),) if resolved.plan.get("profile") else ()


def _other_precision(plan: RunPlan) -> str:
    """Return that the card is labelled with another precision than its run trains in."""
    requested = plan.card.training_precision
    return (
        f"the card has training_precision {requested}, and this run trains in {plan.row_precision}: so does its row"
        if requested and plan.row_precision != requested
        else ""
    )


def _no_credential(inputs: RunInputs) -> str:
    """Return that the card runs without its credential, as it does under madengine."""
    cred = inputs.request.card.cred
    return (
        f"there is no credential.json: the run is not given credential {cred}"
        if cred and inputs.credentials is None
        else ""
    )


def _origins(inputs: RunInputs, resolved: Resolved, of_timeout: str, of_image: str) -> dict[str, str]:
    return {
        "runtime": inputs.runtime.origin,
        "args": inputs.context.origins.get("model_args", "card, tag"),
        "timeout_s": of_timeout,
        "n_gpus": _n_gpus_origin(inputs, resolved),
        "image": of_image,
        "engine_options.extra": _options_origin(inputs),
        "error_scan": error_scan_origin(inputs.request.card, inputs.context),
        "machine": ", ".join(sorted(set(inputs.machine.sources.values()))) or "detected",
    }


def _options_origin(inputs: RunInputs) -> str:
    """Return the origin of additional docker options, for error messages."""
    of_card = f"card '{inputs.request.card.name}'" if inputs.request.card.additional_docker_run_options else ""
    own = (inputs.context.origins.get(key, "") for key in ("additional_docker_run_options", "SHM_SIZE"))
    return " and ".join(dict.fromkeys(filter(None, (of_card, *own)))) or f"card '{inputs.request.card.name}'"


def _place(inputs: RunInputs, allocation: GpuAllocation, asked_nodes: int | None) -> Place:
    """Return where the plan runs; `--nodes`, the backend's setting `nnodes` or the context decides the number of nodes.

    A plan refused for too few GPUs keeps the requested count for its row.
    """
    nodes = int((inputs.context.typed.multi_node_args or {}).get("NNODES", inputs.nodes.nnodes or 1))
    nodes = asked_nodes if asked_nodes and asked_nodes > 0 else nodes
    if inputs.options.elsewhere:  # where what this machine has says nothing
        of_job, ranks = (own_table(inputs.request.card, key) for key in ("slurm", "distributed"))
        of_card = str(of_job.get("nodes") or ranks.get("nnodes"))
        nodes = int(of_card) if of_card.isdecimal() else 1
    nodes = inputs.options.nodes or nodes
    place = make_place(allocation.gpu_ids, nodes, inputs.runtime.runtime, inputs.runtime.traits)
    return replace(place, gpus_per_node=allocation.wanted) if allocation.blocked else place


def _n_gpus_origin(inputs: RunInputs, resolved: Resolved) -> str:
    count = resolved.origins.get("n_gpus", "context" if inputs.context.n_gpus is not None else "card")
    which = inputs.context.origins.get("docker_gpus", "")
    return f"{count}, {which}" if which else count


def _timeout(inputs: RunInputs, resolved: Resolved) -> tuple[float | None, str]:
    """Return the limit in seconds, None for none, and who set it."""
    card, options, requested = inputs.request.card, inputs.options, resolved.plan.get("timeout_s")
    if requested is not None:
        return (float(requested) or None), resolved.origins["timeout_s"]
    if options.timeout_s is not None:
        return (float(options.timeout_s) or None), "--timeout"
    if card.timeout_s is not None:
        return (float(card.timeout_s) or None), "card"
    return float(DEFAULT_TIMEOUT_S), "default"


def _whole(value: Scalar | None) -> int | None:
    return None if value is None else int(value)
