"""Tags → cards → the backend of each → specs → plans that can start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from madlite.assets.paths import needed_assets, use_prepared
from madlite.backends.loader import Plugin, Plugins
from madlite.errors import MadliteError, PluginError, UsageProblem, did_you_mean
from madlite.files import exists, read_text
from madlite.images.client import podman_note
from madlite.model import Backend, Blocked, Card, Cause, Image, Machine, Problem, Request, RunPlan, RunSpec, Runtime
from madlite.plan.container import is_pinned
from madlite.plan.context import Context, args_for, argument_keys
from madlite.plan.fields import BACKEND, PLAN_KEYS
from madlite.plan.images import Dockerfile, FoundDockerfiles, find_dockerfiles
from madlite.plan.inputs import (
    RUNS,
    WORKSPACE_INSIDE,
    PlanInputs,
    RunInputs,
    is_of_command,
    requested_keys,
    with_requested_values,
)
from madlite.plan.make import DEFAULT_TIMEOUT_S, make_plan
from madlite.plan.place import DEFAULT_RUNTIME, RuntimeChoice, choose_runtime, make_place, usable_gpus
from madlite.plan.render import render
from madlite.plan.submission import PlannedRun
from madlite.platforms.docker.request import host_access
from madlite.run.backend_choice import BackendMatch, expand_shared, owner_names, select_backends
from madlite.run.checks import refuse_without_effect
from madlite.run.guard import guard_plugin, why_unavailable


class BatchInputs(PlanInputs, frozen=True, kw_only=True):
    """What a command plans with: the inputs of every plan, and what makes runs of cards: plugins, runtimes, ids.

    `refused_as` names what a command was asked for; with it a card that is refused for that is blocked, too.
    """

    plugins: Plugins
    runtimes: dict[str, Runtime]
    template_root: Path
    new_run_id: Callable[[str], str]
    refused_as: str = ""


PlanCard = Callable[[Request, BatchInputs], list[PlannedRun]]
"""Makes the plans of one card; raises MadliteError as `plan_card` does."""


def plan_runs(requests: Sequence[Request], inputs: BatchInputs) -> list[PlannedRun]:
    """Return one plan per request, variant and Dockerfile, in that order; a card that is wrong by itself is blocked.

    Raises:
        MadliteError: what was asked for cannot be used; nothing has been touched.
    """
    # here, since a file that cannot be read concerns every card
    wanted = dockerfile_context(inputs.machine, inputs.context, inputs.options.workspace)

    def plan_found(request: Request, inputs: BatchInputs) -> list[PlannedRun]:
        found = FoundDockerfiles() if image_of_command(inputs) else find_dockerfiles(request.card, wanted)
        return plan_card(request, found.fitting, missing_image(request.card, found), inputs)

    return plan_each([(request, plan_found) for request in requests], inputs)


def plan_each(jobs: Sequence[tuple[Request, PlanCard]], inputs: BatchInputs) -> list[PlannedRun]:
    """Return the plans of every card; one that is wrong by itself has a plan that is kept from starting.

    Raises:
        MadliteError: what was asked for cannot be used, all of it told at once; nothing has been touched.
    """
    inputs.plugins.backends()  # two of one name concern every card, as does an unknown runtime
    if inputs.options.runtime:
        _available(inputs.options.runtime, inputs)
    planned: list[PlannedRun] = []
    refused: list[tuple[str, UsageProblem]] = []
    for request, plan in jobs:
        try:
            found = plan(request, inputs)
            again = partial(_with_micro_batch, plan, request, inputs)
            planned += [replace(item, with_micro_batch=partial(again, found, n)) for n, item in enumerate(found)]
        except MadliteError as problem:
            if not is_of_command(problem.keys, _requested_keys(request, inputs)):
                planned.append(_blocked_plan(request, problem, inputs))
            elif inputs.refused_as:
                named = UsageProblem(f"{inputs.refused_as}: {problem.message}", problem.hint)
                planned.append(_blocked_plan(request, named if isinstance(problem, UsageProblem) else problem, inputs))
            elif isinstance(problem, UsageProblem):
                refused.append((request.card.name, problem))
            else:
                raise
    if refused:
        raise UsageProblem.of_all(_with_cards(refused))
    return planned


def _with_cards(refused: Sequence[tuple[str, UsageProblem]]) -> Iterator[tuple[str, str]]:
    """Yield messages and hints; what several cards have alike once, else with the card where the message has none."""
    each = [(card, item) for card, problem in refused for item in ((problem.message, problem.hint), *problem.more)]
    cards = {card for card, _ in refused}
    for card, (message, hint) in each:
        shared = {other for other, item in each if item == (message, hint)} == cards
        yield (message if shared or card in message else f"{card}: {message}"), hint


def _requested_keys(request: Request, inputs: BatchInputs) -> frozenset[str]:
    """Return what the command sets for a card, with `backend` where it has another one by the command alone."""
    options, plugins = inputs.options, inputs.plugins
    keys = requested_keys(request, inputs.context, options)
    own = not options.backend or options.backend in owner_names(request.card, plugins, options.workspace)
    return keys if own else keys | {BACKEND}


def _requested_of_run(requested: frozenset[str], spec: RunSpec, plan: RunPlan) -> frozenset[str]:
    """Return the keys of a run's plan that the command sets.

    Naming a recipe sets all its values.  A mode and a precision that only select among the card's own runs set none.
    """
    own = {"mode", "precision"}.intersection(spec.chosen)
    if requested.isdisjoint(("recipe", "recipe_device")):
        return requested - own
    of_recipe = {name for name, origin in plan.origins.items() if origin.startswith("recipe ")}
    return (requested - own) | {name.removeprefix("settings.").removeprefix("variant.") for name in of_recipe}


def _with_micro_batch(
    plan: PlanCard, request: Request, inputs: BatchInputs, found: Sequence[PlannedRun], index: int, micro_batch: int
) -> PlannedRun | None:
    """Return one of the plans `found` of a card as it is planned with another micro batch; None where it has none.

    Raises:
        MadliteError: it cannot be planned so.
    """
    variant = found[index].plan.variant
    if variant is None or variant.micro_batch is None or "micro_batch" in found[index].declared:
        return None
    options = replace(inputs.options, fallback=(("micro_batch", str(micro_batch)),))
    every = plan(request, replace(inputs, options=options))
    again = every[index] if len(every) == len(found) else None
    if again is None or again.plan.variant is None or again.plan.variant.micro_batch != micro_batch:
        return None
    return replace(again, with_micro_batch=partial(_with_micro_batch, plan, request, inputs, found, index))


def _blocked_plan(request: Request, problem: MadliteError, inputs: BatchInputs) -> PlannedRun:
    """Return a plan of a card that none can be made of, for its row."""
    card, runtime = request.card, inputs.runtimes[inputs.options.runtime or DEFAULT_RUNTIME]
    run_id = inputs.new_run_id(card.name)
    place = make_place((), 1, runtime.name, runtime.traits)
    requested = inputs.context.n_gpus if inputs.context.n_gpus is not None else int(card.n_gpus)
    gpus = len(inputs.machine.gpus)
    plan = RunPlan(
        id=run_id,
        card=card,
        backend=inputs.options.backend or card.backend,
        place=replace(place, gpus_per_node=requested if requested >= 0 and gpus else gpus),
        machine=inputs.machine,
        workspace=inputs.options.workspace,
        inside=WORKSPACE_INSIDE if runtime.traits.containerised else str(inputs.options.workspace),
        folder=inputs.options.workspace / RUNS / run_id,
        runtime=runtime.name,
        traits=runtime.traits,
        args=card.args,
        overrides=request.overrides,
        timeout_s=float(DEFAULT_TIMEOUT_S),
        blocked=failed(problem),
        writes_row=not inputs.context.typed.skip_perf_collection,
    )
    return PlannedRun(
        plan=plan,
        backends=(),
        files=(),
        runtime=runtime,
        context=inputs.context.values,
        requested=_requested_keys(request, inputs),
    )


def failed(problem: MadliteError) -> Blocked:
    """Return what keeps a plan from starting, and makes a FAILURE row of it."""
    return Blocked.failure(Cause.PREPARE, problem.message, problem.hint)


def plan_card(
    request: Request, images: Sequence[Dockerfile | Image], missing: str, inputs: BatchInputs
) -> list[PlannedRun]:
    """Return one startable plan per variant of a card and image, to build or built; `missing` says why there is none.

    Raises:
        MadliteError: as in `plan_runs`.
    """
    backends = inputs.plugins.backends()
    wanted = with_requested_values(request, inputs.context, inputs.options)
    requested = _requested_keys(request, inputs)
    planned = []
    for (backend, plugin), spec, foreign_keys in _specs(wanted, inputs):
        annotated = _with_script_note(spec, backend, request.card, inputs.options.workspace)
        for image in _images(images, annotated, request.card):
            run = _run_inputs(request, backend, annotated, image, missing, foreign_keys, inputs)
            startable = _startable(run, plugin, backends, inputs)
            planned.append(replace(startable, requested=_requested_of_run(requested, spec, startable.plan)))
            _check_effects(wanted, spec, planned[-1], (backend, plugin), inputs)
            if not run.runtime.traits.containerised:  # where every image would be the same run
                break
    return planned


def _specs(wanted: Request, inputs: BatchInputs) -> Iterator[tuple[BackendMatch, RunSpec, frozenset[str]]]:
    """Yield the specs of all who run the card, each with the settings that only others of them have."""
    options, card, requested = inputs.options, wanted.card, wanted.settings
    owners = select_backends(card, inputs.plugins, options.workspace, options.backend)
    found = expand_shared(
        card.name, owners, requested, lambda backend, plugin: _expand(backend, plugin, wanted, inputs)
    )
    keys = frozenset(key for _, spec in found for key in spec.settings)
    for owner, spec in found:
        foreign_keys = keys - spec.settings.keys()
        note_texts = [f"{key}: for other runs of this card, not this one" for key in requested if key in foreign_keys]
        yield owner, replace(spec, notes=(*spec.notes, *note_texts)), foreign_keys


def _check_effects(
    wanted: Request, spec: RunSpec, planned: PlannedRun, owner: BackendMatch, inputs: BatchInputs
) -> None:
    """Refuse a value that would stand in the row, and of which nothing of the run takes notice.

    What a check refuses is left to it, whose message is better.
    """
    backend, plugin = owner
    search = _search(plugin, inputs)
    try:
        refuse_without_effect(
            wanted,
            spec,
            planned.plan,
            planned.files,
            lambda request: _expand(backend, plugin, request, inputs),
            lambda other: render(other, search),
        )
    except UsageProblem:
        findings = inputs.plugins.checks(planned.plan, planned.backends) if inputs.options.lint else ()
        if not any(finding.fatal for finding in findings):
            raise


def _with_script_note(spec: RunSpec, backend: Backend, card: Card, workspace: Path) -> RunSpec:
    """Return the spec; of a card of this very folder that names a script, with the note that another thing runs."""
    if not (spec.templates and card.scripts and card.root == workspace):
        return spec
    note = f"its script {card.scripts} is not what runs: backend {backend.name} renders the card from a recipe"
    return replace(spec, notes=(*spec.notes, note))


def _images(images: Sequence[Dockerfile | Image], spec: RunSpec, card: Card) -> Sequence[Dockerfile | Image | None]:
    """Return what a spec runs in, one run each; its recipe's image goes before the card's Dockerfiles."""
    if spec.templates and spec.image and spec.image != card.image:
        images = [image for image in images if isinstance(image, Image)]
    return images or (None,)


def image_of_command(inputs: BatchInputs) -> str:
    """Return the image that the caller named for every run, or nothing."""
    requested = dict(inputs.options.sets).get("image")
    return requested or inputs.options.image or inputs.context.typed.MAD_CONTAINER_IMAGE or ""


def _expand(backend: Backend, plugin: Plugin, request: Request, inputs: BatchInputs) -> Sequence[RunSpec]:
    try:
        return list(backend.expand(request, inputs.machine))
    except UsageProblem as problem:
        if problem.keys is None:  # then about any of the settings that it was given, and nothing around them
            problem.keys = tuple(key for key in request.settings if key not in PLAN_KEYS)
        raise
    except Exception as error:
        raise PluginError(
            f"backend '{backend.name}' ({plugin.distribution}) failed on card '{request.card.name}': "
            f"{type(error).__name__}: {error}",
            keys=(),
        ) from error


def _run_inputs(
    request: Request,
    backend: Backend,
    spec: RunSpec,
    image: Dockerfile | Image | None,
    missing: str,
    foreign_keys: frozenset[str],
    inputs: BatchInputs,
) -> RunInputs:
    added = argument_keys(request, spec)
    return RunInputs(
        **{name: getattr(inputs, name) for name in PlanInputs.__struct_fields__},
        run_id=inputs.new_run_id(request.card.name),
        request=request,
        backend=backend.name,
        spec=spec,
        runtime=_runtime(request.card, spec, image, inputs),
        args=args_for(request, spec, added),
        arg_keys=added,
        dockerfile=image if isinstance(image, Dockerfile) else None,
        built=image if isinstance(image, Image) else None,
        missing_image=missing,
        foreign_settings=foreign_keys,
    )


def _runtime(card: Card, spec: RunSpec, image: Dockerfile | Image | None, inputs: BatchInputs) -> RuntimeChoice:
    has_image = bool(image or spec.image or image_of_command(inputs))
    traits = {name: runtime.traits for name, runtime in inputs.runtimes.items()}
    launcher = str(inputs.context.typed.distributed.get("launcher") or spec.launcher)
    available = partial(_available, inputs=inputs)
    return choose_runtime(card, inputs.options, has_image, available, traits, spec.runtimes, launcher)


def _available(name: str, inputs: BatchInputs) -> Problem | None:
    if name not in inputs.runtimes:
        broken = (
            f"; {problem.where}: {problem.what}" for problem in inputs.plugins.problems if "runtime" in problem.what
        )
        hint = did_you_mean(name, inputs.runtimes, "--runtime ") or f"runtimes: {', '.join(sorted(inputs.runtimes))}"
        raise UsageProblem(f"no runtime '{name}'{next(broken, '')}", hint, keys=("runtime",))
    if inputs.machine.pretended or inputs.options.elsewhere:  # that machine cannot be queried
        return None
    return why_unavailable(inputs.runtimes[name])


def missing_image(card: Card, found: FoundDockerfiles) -> str:
    """Return why a card has no image."""
    if not card.dockerfile:
        return f"card '{card.name}' names neither a Dockerfile nor an image"
    if found.refused:
        return f"no Dockerfile of card '{card.name}' fits: {'; '.join(found.refused)}"
    return f"no Dockerfile {card.dockerfile}.* for card '{card.name}'"


def dockerfile_context(machine: Machine, context: Context, workspace: Path) -> dict[str, str]:
    """Return what a Dockerfile's header is compared with; a CPU machine has no vendor to differ from."""
    test = workspace / "ctx_test"
    detected = {
        "guest_os": "UBUNTU",
        "ctx_test": read_text(test, errors="replace").strip() if exists(test) else "None",
        **({"host_os": machine.host_os} if machine.host_os else {}),
        **({"gpu_vendor": machine.vendor} if machine.gpus else {}),
    }
    run = {key: str(value) for key, value in context.values.items() if isinstance(value, (str, int, float))}
    if run.get("gpu_vendor", "").upper() == "CPU":
        del run["gpu_vendor"]
    return {**detected, **run}


def _startable(
    run: RunInputs, plugin: Plugin, backends: Mapping[str, tuple[Backend, Plugin]], inputs: BatchInputs
) -> PlannedRun:
    plan = make_plan(run)
    if plan.traits.containerised and not plan.machine.pretended:
        _check_mounts(plan)
        plan = _with_note(plan, podman_note(inputs.options.environ))
    if plan.traits.containerised:
        plan = _with_readable_options(plan, inputs.runtimes[plan.runtime])
    if inputs.plugins.uses("madlite_adjust_plan"):
        plan = inputs.plugins.adjust(plan, run.options.asked)
        _available(plan.runtime, inputs)
        plan = replace(plan, traits=inputs.runtimes[plan.runtime].traits)
    plan = placed(plan, inputs.runtimes[plan.runtime])
    if plan.traits.containerised:
        plan = _with_note(plan, host_access(plan, inputs.options.environ))
    readers = tuple(backends[name][0] for name in plan.readers if name in backends)
    plan = use_prepared(plan, needed_assets(plan, readers, inputs.plugins), inputs.options.environ)
    return PlannedRun(
        plan=plan,
        backends=readers,
        files=render(plan, _search(plugin, inputs)),
        runtime=inputs.runtimes[plan.runtime],
        context=inputs.context.values,
        declared=run.spec.declared,
        knobs=run.spec.knobs,
        gpus=() if is_pinned(plan) else usable_gpus(inputs.machine, inputs.context, inputs.options.environ),
    )


def _with_readable_options(plan: RunPlan, runtime: Runtime) -> RunPlan:
    """Return the plan, kept from starting by docker options of its card that cannot be read, before hours of building.

    Raises:
        UsageProblem: those of the context cannot be read.
    """
    if plan.blocked is not None or plan.image is None:
        return plan
    own = replace(plan.engine_options, extra=plan.card.additional_docker_run_options)
    origins = {**plan.origins, "engine_options.extra": f"card '{plan.card.name}'"}
    try:
        runtime.request(replace(plan, engine_options=own, origins=origins))
    except UsageProblem as problem:
        return replace(plan, blocked=failed(problem))
    if own == plan.engine_options:
        return plan
    try:
        runtime.request(plan)
    except UsageProblem as problem:
        raise UsageProblem(problem.message, problem.hint, keys=("additional_docker_run_options", "SHM_SIZE")) from None
    return plan


def placed(plan: RunPlan, runtime: Runtime) -> RunPlan:
    """Return the plan, kept from starting where its runtime does not run plans for its place."""
    with guard_plugin(runtime):
        if plan.blocked is not None or runtime.supports(plan.place):
            return plan
    nodes = f"{plan.place.nodes} node{'s' if plan.place.nodes > 1 else ''}"
    where = "this machine" if plan.place.where == "local" else f"'{plan.place.where}'"
    reason = f"runtime '{plan.runtime}' cannot run a plan for {nodes} of {where}"
    hint = "--runtime NAME names another one; a runtime's plugin may want more options to place a run"
    return replace(plan, blocked=Blocked.failure(Cause.PREPARE, reason, hint))


def _with_note(plan: RunPlan, note: str) -> RunPlan:
    return replace(plan, notes=(*plan.notes, note)) if note else plan


def _check_mounts(plan: RunPlan) -> None:
    """Refuse a mount of what is not there: docker would make an empty folder of it, and the run train on nothing."""
    for mount in plan.mounts:
        if not mount.create and not exists(Path(mount.source)):
            what = f"mount of {mount.source} at {mount.target}: it is not on this machine"
            raise UsageProblem(what, keys=("docker_mounts",))
        if not mount.target.startswith("/"):
            what = f"mount of {mount.source}: {mount.target} is no absolute path in the container"
            raise UsageProblem(what, keys=("docker_mounts",))


def _search(plugin: Plugin, inputs: BatchInputs) -> list[Path]:
    """Return where templates are looked for: the working folder, beside the plugin, madlite's own."""
    beside = [plugin.folder / "templates", plugin.folder] if plugin.folder else []
    return [inputs.options.workspace / "templates", *beside, inputs.template_root]
