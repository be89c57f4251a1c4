"""Tags → cards → the backend of each → specs → plans that can start."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from madlite.assets.paths import command, find_token, is_found, is_offline, needed_assets, use_prepared
from madlite.backends.base import describe_setting
from madlite.backends.loader import Plugin, Plugins, guard_plugin, why_unavailable
from madlite.errors import CheckFailed, MadliteError, PluginError, UsageProblem, did_you_mean, inline_hint, one_hint
from madlite.files import exists, read_text
from madlite.images.client import podman_note
from madlite.model import (
    Backend,
    Blocked,
    Card,
    Cause,
    Finding,
    Image,
    Machine,
    Problem,
    Request,
    RunPlan,
    RunSpec,
    Runtime,
    Scalar,
    Status,
)
from madlite.perfcsv.append import check_appendable
from madlite.plan.container import is_pinned
from madlite.plan.context import Context, Options, args_for, argument_keys
from madlite.plan.fields import BACKEND, PLAN_KEYS, VARIANT_KEYS, canonical_key
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
from madlite.plan.place import DEFAULT_RUNTIME, RuntimeChoice, choose_runtime, make_place, traits_for, usable_gpus
from madlite.plan.plan_file import Rendered, render, run_content
from madlite.plan.submission import PlannedRun
from madlite.platforms.docker.request import host_access
from madlite.run.backend_choice import BackendMatch, expand_shared, owner_names, select_backends
from madlite.store.folder import check_runs_folder


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
    shared = {name: getattr(inputs, name) for name in PlanInputs.__struct_fields__}
    planned = []
    for (backend, plugin), spec, foreign_keys in _specs(wanted, inputs):
        annotated = _with_script_note(spec, backend, request.card, inputs.options.workspace)
        for image in _images(images, annotated, request.card):
            added = argument_keys(request, annotated)
            run = RunInputs(
                **shared,
                run_id=inputs.new_run_id(request.card.name),
                request=request,
                backend=backend.name,
                spec=annotated,
                runtime=_runtime(request.card, annotated, image, inputs),
                args=args_for(request, annotated, added),
                arg_keys=added,
                dockerfile=image if isinstance(image, Dockerfile) else None,
                built=image if isinstance(image, Image) else None,
                missing_image=missing,
                foreign_settings=foreign_keys,
            )
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
        check_mounts(plan, "this machine")
        plan = _with_note(plan, podman_note(inputs.options.environ))
    if plan.traits.containerised:
        plan = _with_readable_options(plan, inputs.runtimes[plan.runtime])
    plan = inputs.plugins.adjust(plan, run.options.asked)
    if plan.runtime != run.runtime.runtime:
        _available(plan.runtime, inputs)
    plan = replace(plan, traits=traits_for(inputs.runtimes[plan.runtime].traits, plan.launcher))
    plan = placed(plan, inputs.runtimes[plan.runtime])
    if plan.traits.containerised:
        plan = _with_note(plan, host_access(replace(plan, mounts=()), inputs.options.environ))  # asked for elsewhere
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


def check_mounts(plan: RunPlan, machine: str) -> None:
    """Refuse a mount of what is not there: docker would make an empty folder of it, and the run train on nothing.

    Raises:
        UsageProblem: one is not on this `machine`, as it is called, or has no place in a container.
    """
    for mount in plan.mounts:
        if not mount.create and not exists(Path(mount.source)):
            what = f"mount of {mount.source} at {mount.target}: it is not on {machine}"
            raise UsageProblem(what, keys=("docker_mounts",))
        if not mount.target.startswith("/"):
            what = f"mount of {mount.source}: {mount.target} is no absolute path in the container"
            raise UsageProblem(what, keys=("docker_mounts",))


def _search(plugin: Plugin, inputs: BatchInputs) -> list[Path]:
    """Return where templates are looked for: the working folder, beside the plugin, madlite's own."""
    beside = [plugin.folder / "templates", plugin.folder] if plugin.folder else []
    return [inputs.options.workspace / "templates", *beside, inputs.template_root]


# What speaks against a batch before anything of it starts: the backends' and the plugins' checks, and gated assets.


_NO_LINT_HINT = "--no-lint starts it all the same"


def check_plans(
    planned: Sequence[PlannedRun], plugins: Plugins, lint: bool = True
) -> tuple[list[PlannedRun], tuple[str, ...]]:
    """Return the plans, those with a fatal finding kept from starting, and what is warned of, each once.

    Without `lint` nothing is fatal.

    Raises:
        CheckFailed: as in `keep_refused`.
    """
    refused, warnings = run_checks(planned, plugins, lint)
    return keep_refused(planned, refused, plugins), tuple(warnings)


def keep_refused(
    planned: Sequence[PlannedRun], refused: Sequence[Sequence[Finding]], plugins: Plugins
) -> list[PlannedRun]:
    """Return the plans, those of which `run_checks` found something fatal kept from starting.

    Raises:
        CheckFailed: what was asked for is fatal, for a card has no such finding otherwise; nothing starts.
    """
    pairs = list(zip(planned, refused, strict=True))
    failures = [
        (card_or_run(item.plan, planned) + finding.message, one_hint(finding.hint, _NO_LINT_HINT))
        for item, findings in pairs
        for finding in _of_command(item, findings, plugins)
    ]
    if failures:
        raise CheckFailed.of_all(failures)
    return [item if not findings else blocked_by(item, findings) for item, findings in pairs]


def _of_command(run: PlannedRun, findings: Sequence[Finding], plugins: Plugins) -> Sequence[Finding]:
    """Return the findings that a run has by what the command asked for; a token is never an option."""
    own = tuple(_token_findings(run, plugins)) if findings else ()
    read = (*run.plan.settings, *VARIANT_KEYS)  # what a finding is about that names no keys
    return [
        item
        for item in findings
        if item not in own and is_of_command(read if item.keys is None else item.keys, run.requested)
    ]


def blocked_by(run: PlannedRun, findings: Sequence[Finding]) -> PlannedRun:
    """Return a run that findings keep from starting."""
    if run.plan.blocked is not None:
        return run
    reason = "; ".join(dict.fromkeys(finding.message for finding in findings))
    hint = one_hint(*dict.fromkeys(finding.hint for finding in findings), _NO_LINT_HINT)
    return replace(run, plan=replace(run.plan, blocked=Blocked.failure(Cause.PREPARE, reason, hint)))


def find_findings(run: PlannedRun, plugins: Plugins) -> tuple[Finding, ...]:
    """Return what speaks against a run; nothing against one that a rule skips."""
    if run.plan.blocked is not None and run.plan.blocked.status is Status.SKIPPED:
        return ()
    return (*plugins.checks(run.plan, run.backends), *_token_findings(run, plugins))


def run_checks(
    planned: Sequence[PlannedRun], plugins: Plugins, lint: bool = True
) -> tuple[list[list[Finding]], list[str]]:
    """Return what keeps each of the plans from starting, nothing without `lint`, and what is warned of, each once."""
    refused: list[list[Finding]] = []
    warnings: dict[str, None] = {}
    for run in planned:
        refused.append([])
        for finding in find_findings(run, plugins):
            if finding.fatal and lint:
                refused[-1].append(finding)
            else:
                warnings[in_one_line(finding, card_or_run(run.plan, planned) + finding.message)] = None
    return refused, list(warnings)


def in_one_line(finding: Finding, message: str = "") -> str:
    """Return a finding with its hint; `message` in place of its own."""
    return (message or finding.message) + (f" ({inline_hint(finding.hint)})" if finding.hint else "")


def card_or_run(plan: RunPlan, planned: Sequence[PlannedRun]) -> str:
    """Return which run of the batch a message is about, where it could be about another."""
    if len({(run.plan.card.name, run.plan.variant) for run in planned}) < 2:
        return ""
    variant = plan.variant
    text = (plan.card.name, variant.mode, variant.precision) if variant else (plan.card.name,)
    return f"{' '.join(filter(None, text))}: "


def _token_findings(run: PlannedRun, plugins: Plugins) -> Iterator[Finding]:
    """Find gated repositories that a run would ask for in vain; what is prepared it does not ask for."""
    plan, needed = run.plan, needed_assets(run.plan, run.backends, plugins)
    gated = [asset for asset in needed if asset.gated and not is_found(plan, asset)]
    if not gated or is_offline(plan.env) or find_token(plan.env) is not None:
        return
    refs = ", ".join(sorted({asset.ref for asset in gated}))
    before = f"{command(plan)} once, after which runs need none"
    ways = ("export MAD_SECRETS_HFTOKEN=…", before, "--set env.HF_HUB_OFFLINE=1 where the run finds it in its cache")
    yield Finding(
        message=f"{refs} is a gated repository, and there is no Hugging Face token",
        hint=", or ".join((*ways, *dict.fromkeys(asset.hint for asset in gated if asset.hint))),
        fatal=True,
    )


# Whether something listens where data is to come from, and for `ssh://` whether it is an SSH server.

LIMIT_S = 30.0  # as madengine has it
_PORTS = {"https": 443, "ssh": 22}


@cache
def why_unreachable(endpoint: str) -> str:
    """Return why there is no answer from an address such as `http://host:9000`, or nothing; queried once per address.

    An SSH server speaks first (RFC 4253, 4.2): nothing more is checked.
    """
    name = endpoint.rpartition("@")[2]  # a user's name and password must not be reported
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        name = parts.hostname or name
        port = parts.port or _PORTS.get(parts.scheme, 80)
        with socket.create_connection((parts.hostname or "", port), timeout=LIMIT_S) as connected:
            if parts.scheme == "ssh" and not connected.recv(255).startswith(b"SSH-"):
                return f"{name} answers at port {port}, but not as an SSH server"
            return ""
    except (OSError, ValueError) as error:
        return f"{name} cannot be reached: {getattr(error, 'strerror', None) or error}"


# What is written is what runs: a value that a backend has no use for is refused, with what it does use.

_ROW_KEYS = ("model", "mode", "precision", "seq_len", "micro_batch", "global_batch", "steps", "release", "args")
"""Values of a row that a user can set; `warmup_steps` is madlite's own."""
_COUNTS = ("seq_len", "micro_batch", "global_batch", "steps")
_OTHER_WORD = "madlite-tries-another-word"  # which no backend accepts
_MOST = 8  # settings that a hint names

Expand = Callable[[Request], Sequence[RunSpec]]
"""Returns the backend's specs of a request; raises UsageProblem where it has none."""
Render = Callable[[RunPlan], Sequence[Rendered]]


def refuse_without_effect(
    request: Request, spec: RunSpec, plan: RunPlan, files: Sequence[Rendered], expand: Expand, render: Render
) -> None:
    """Refuse what was requested and changes nothing of a run but its labels.

    Raises:
        UsageProblem: a template makes the same of another value, and the backend the same spec without it.
    """
    settled = (*spec.settings, *spec.declared, *spec.chosen)
    for key in _ROW_KEYS:
        label = plan.args if key == "args" else getattr(plan.variant, key, None)
        requested = key in request.origins and key not in settled and label not in (None, "")
        if not requested or _is_rendered(key, label, spec, plan, files, render):
            continue
        if _relabels(key, label, request, spec, expand):
            raise _refusal(describe_setting(request, key), key, plan)


def _is_rendered(
    key: str, label: Scalar | None, spec: RunSpec, plan: RunPlan, files: Sequence[Rendered], render: Render
) -> bool:
    """Return whether the files or commands of a run depend on a value; one that a comment alone has is none of them."""
    if key == "args":
        of_actions = any("{args}" in word for action in spec.actions for word in action.argv)
        other = replace(plan, args=_OTHER_WORD, model_args=None if plan.model_args is None else _OTHER_WORD)
    else:
        of_actions, value = False, int(str(label)) * 2 if key in _COUNTS else _OTHER_WORD
        other = replace(plan, variant=replace(plan.variant, **{key: value})) if plan.variant is not None else plan
    try:
        return of_actions or run_content(other, render(other)) != run_content(plan, files)
    except UsageProblem:  # the template knows no such word
        return True


def _relabels(key: str, label: Scalar | None, request: Request, spec: RunSpec, expand: Expand) -> bool:
    """Return whether the backend has the same run without a requested value, under another label."""
    card, left = request.card, {name: text for name, text in request.settings.items() if name != key}
    if isinstance(card.recipe, dict):
        card = replace(card, recipe={name: value for name, value in card.recipe.items() if canonical_key(name) != key})
    try:
        specs = expand(replace(request, card=card, settings=left))
    except UsageProblem:  # it is what makes a run possible
        return False
    alike = [item for item in specs if _without_label(item, key) == _without_label(spec, key)]
    labels = [card.args if key == "args" else getattr(item.variant, key, None) for item in alike]
    return bool(alike) and label not in labels


def _without_label(spec: RunSpec, key: str) -> RunSpec:
    labels = {key: ""} if key != "args" else {}
    variant = replace(spec.variant, **labels) if spec.variant is not None else None
    return replace(spec, variant=variant, origin="", notes=(), left_out={})


def _refusal(text: str, key: str, plan: RunPlan) -> UsageProblem:
    what = f"{text} is nothing to backend '{plan.backend}': the run would be the same, and its row would say otherwise"
    settings = [name for name in plan.settings if name != "recipe"]
    more = ", …" if len(settings) > _MOST else ""
    named = f"settings {', '.join(settings[:_MOST])}{more}" if settings else "explain --all shows what it uses"
    return UsageProblem(what, one_hint("leave it out", named), keys=(key,))


def check_start(planned: Sequence[PlannedRun], options: Options, *, pretended: bool = False) -> None:
    """Refuse what no run can be started for, or its row not be written.

    Raises:
        MadliteError: GPUs of the context are not here (unless all is `pretended`), or files are in the way.
    """
    if not pretended:
        for machine in (run.plan.machine for run in planned if run.plan.traits.local):
            if machine.pretended:  # a row must not name GPUs that are not here
                what = f"the context describes {len(machine.gpus)} x {machine.device}, which are not here"
                raise UsageProblem(what, "add --dry-run, or use explain")
    check_runs_folder(options.workspace)
    if options.rows:
        check_appendable(options.output, options.workspace)
