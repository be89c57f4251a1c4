"""Tags → cards → the backend of each → drafts → plans that can start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from madlite.backends.loader import Plugin, Plugins
from madlite.catalog.datasets import DataSets
from madlite.errors import MadliteError, PluginError, UsageProblem
from madlite.files import exists, read_text
from madlite.images.client import podman_note
from madlite.model import (
    Backend,
    Blocked,
    Card,
    Cause,
    Draft,
    Image,
    Machine,
    Problem,
    Request,
    RunPlan,
    Runtime,
    Status,
    Value,
)
from madlite.plan.context import Context, Options, args_for, argument_keys
from madlite.plan.given import Given, layers
from madlite.plan.images import Dockerfile, Found, find_dockerfiles
from madlite.plan.make import DEFAULT_TIMEOUT_S, RUNS, WORKSPACE_INSIDE, make_plan
from madlite.plan.place import USUAL, Choice, choose_runtime, make_place
from madlite.plan.render import Outcome, render
from madlite.plan.tools import Toolset
from madlite.plan.values import asked_origins, asked_values
from madlite.run.effects import Asking, refuse_without_effect
from madlite.run.owner import Owner, expand_shared, find_owners
from madlite.run.prepared import needed_assets, use_prepared
from madlite.run.screen import Planned
from madlite.run.stage import border
from madlite.runtimes.docker.access import host_access


class Surroundings(Value, frozen=True):
    """What plans are made in: options, context, machine, plugins' backends and runtimes, credentials, templates."""

    options: Options
    context: Context
    machine: Machine
    plugins: Plugins
    runtimes: dict[str, Runtime]
    template_root: Path
    new_run_id: Callable[[str], str]
    credentials: dict[str, dict[str, str]] | None = None
    services: dict[str, tuple[dict[str, str], ...]] = {}
    data_sets: DataSets | None = None
    tools: Toolset = Toolset()
    tool_files: tuple[str, ...] = ()
    reach: Callable[[str], str] = lambda endpoint: ""


PlanCard = Callable[[Request, Surroundings], list[Planned]]
"""Makes the plans of one card; raises MadliteError as `plan_card` does."""


def gather(requests: Sequence[Request], around: Surroundings) -> list[Planned]:
    """Return one plan per request, variant and Dockerfile, in that order; a card that is wrong by itself is blocked.

    Raises:
        MadliteError: what was asked for cannot be used; nothing has been touched.
    """
    wanted = _dockerfile_context(around)  # a file that cannot be read concerns every card

    def plan_found(request: Request, around: Surroundings) -> list[Planned]:
        found = Found() if foreign_image(around) else find_dockerfiles(request.card, wanted)
        return plan_card(request, found.fitting, missing_image(request.card, found), around)

    return plan_each([(request, plan_found) for request in requests], around)


def plan_each(jobs: Sequence[tuple[Request, PlanCard]], around: Surroundings) -> list[Planned]:
    """Return the plans of every card; one that is wrong by itself has a plan that is kept from starting.

    Raises:
        MadliteError: what was asked for cannot be used, all of it told at once; nothing has been touched.
    """
    around.plugins.backends()  # two of one name concern every card, as does a runtime that nobody brings
    if around.options.runtime:
        _available(around.options.runtime, around)
    planned: list[Planned] = []
    refused: list[UsageProblem] = []
    for request, plan in jobs:
        unasked = partial(plan, *_unasked(request, around))
        try:
            planned += [msgspec.structs.replace(one, unasked=unasked) for one in plan(request, around)]
        except MadliteError as problem:
            if _is_own(problem, unasked):
                planned.append(_unplanned(request, problem, around))
            elif isinstance(problem, UsageProblem):
                refused.append(problem)
            else:
                raise
    if refused:
        told = (one for problem in refused for one in ((problem.message, problem.hint), *problem.more))
        raise UsageProblem.of_all(told)
    return planned


def _unasked(request: Request, around: Surroundings) -> tuple[Request, Surroundings]:
    """Return a card as if the command asked nothing of it: by what it has then tell its own problems."""
    nothing = msgspec.structs.replace(around.options, sets=(), named=(), backend="", runtime="", image="")
    return (
        msgspec.structs.replace(request, overrides=()),
        msgspec.structs.replace(around, options=nothing, context=Context()),
    )


def _is_own(problem: MadliteError, unasked: Callable[[], Sequence[Planned]]) -> bool:
    """Say whether a card has a problem also where nothing is asked of it: then it is not the command's."""
    try:
        unasked()
    except MadliteError as again:
        return again.message == problem.message
    return False


def _unplanned(request: Request, problem: MadliteError, around: Surroundings) -> Planned:
    """Return a plan of a card that none can be made of, for its row."""
    card, runtime = request.card, around.runtimes[around.options.runtime or USUAL]
    run_id = around.new_run_id(card.name)
    place = make_place((), 1, runtime.name, runtime.traits)
    asked = around.context.n_gpus if around.context.n_gpus is not None else int(card.n_gpus)
    gpus = len(around.machine.gpus)
    plan = RunPlan(
        id=run_id,
        card=card,
        backend=around.options.backend or card.backend,
        place=msgspec.structs.replace(place, gpus_per_node=asked if asked >= 0 and gpus else gpus),
        machine=around.machine,
        workspace=around.options.workspace,
        inside=WORKSPACE_INSIDE if runtime.traits.containerised else str(around.options.workspace),
        folder=around.options.workspace / RUNS / run_id,
        runtime=runtime.name,
        traits=runtime.traits,
        args=card.args,
        overrides=request.overrides,
        timeout_s=float(DEFAULT_TIMEOUT_S),
        blocked=failed(problem),
        writes_row=not around.context.known.skip_perf_collection,
    )
    return Planned(plan=plan, backends=(), files=(), runtime=runtime, context=around.context.values)


def failed(problem: MadliteError) -> Blocked:
    """Return what keeps a plan from starting, and makes a FAILURE row of it."""
    return Blocked(status=Status.FAILURE, cause=Cause.PREPARE, reason=problem.message, hint=problem.hint)


def plan_card(
    request: Request, images: Sequence[Dockerfile | Image], missing: str, around: Surroundings
) -> list[Planned]:
    """Return one startable plan per variant of a card and image, to build or built; `missing` says why there is none.

    Raises:
        MadliteError: as in `gather`.
    """
    known = around.plugins.backends()
    planned = []
    for (backend, plugin), draft, elsewhere in _drafts(request, around):
        noted = _noted(draft, backend, request.card, around.options.workspace)
        for image in _images(images, noted, request.card):
            given = _given(request, backend, noted, image, missing, elsewhere, around)
            _check_effects(given, plugin, around)
            planned.append(_startable(given, plugin, known, around))
            if not given.runtime.traits.containerised:  # where every image would be the same run
                break
    return planned


def _drafts(request: Request, around: Surroundings) -> Iterator[tuple[Owner, Draft, frozenset[str]]]:
    """Yield the drafts of all who run the card, each with the settings that only others of them have."""
    options, card = around.options, request.card
    owners = find_owners(card, around.plugins.backends(), around.plugins, options.workspace, options.backend)
    sources = layers(request, around.context, options)
    asked = asked_values(sources)
    wanted = msgspec.structs.replace(request, settings=asked, origins=asked_origins(sources))
    found = expand_shared(card.name, owners, asked, lambda backend, plugin: _expand(backend, plugin, wanted, around))
    keys = frozenset(key for _, draft in found for key in draft.settings)
    for owner, draft in found:
        elsewhere = keys - draft.settings.keys()
        told = [f"{key}: for other runs of this card, not this one" for key in asked if key in elsewhere]
        yield owner, msgspec.structs.replace(draft, notes=(*draft.notes, *told)), elsewhere


def _check_effects(given: Given, plugin: Plugin, around: Surroundings) -> None:
    """Refuse a value that would stand in the row, and of which nothing of the run takes notice."""

    def made(other: Given, brings: Plugin) -> Outcome:
        plan = make_plan(other)
        return Outcome(plan=plan, files=render(plan, _search(brings, around)))

    def plans(asking: Asking) -> list[Outcome]:
        otherwise = msgspec.structs.replace(around, options=asking.options, context=asking.context)
        return [
            made(
                msgspec.structs.replace(
                    given,
                    request=asking.request,
                    backend=backend.name,
                    draft=draft,
                    options=asking.options,
                    context=asking.context,
                    elsewhere=elsewhere,
                ),
                brings,
            )
            for (backend, brings), draft, elsewhere in _drafts(asking.request, otherwise)
        ]

    def is_fatal(one: Outcome) -> bool:
        readers = _readers(one.plan, around.plugins.backends())
        return any(finding.fatal for finding in around.plugins.checks(one.plan, readers))

    refuse_without_effect(given, lambda: made(given, plugin), plans, is_fatal)


def _readers(plan: RunPlan, known: Mapping[str, tuple[Backend, Plugin]]) -> tuple[Backend, ...]:
    return tuple(known[name][0] for name in plan.readers if name in known)


def _noted(draft: Draft, backend: Backend, card: Card, workspace: Path) -> Draft:
    """Return the draft; of a card of this very folder that names a script, with the note that another thing runs."""
    if not (draft.templates and card.scripts and card.root == workspace):
        return draft
    note = f"its script {card.scripts} is not what runs: backend {backend.name} renders the card from a recipe"
    return msgspec.structs.replace(draft, notes=(*draft.notes, note))


def _images(images: Sequence[Dockerfile | Image], draft: Draft, card: Card) -> Sequence[Dockerfile | Image | None]:
    """Return what a draft runs in, one run each; its recipe's image goes before the card's Dockerfiles."""
    if draft.templates and draft.image and draft.image != card.image:
        images = [image for image in images if isinstance(image, Image)]
    return images or (None,)


def foreign_image(around: Surroundings) -> str:
    """Return the image that the caller named for every run, or nothing."""
    asked = dict(around.options.sets).get("image")
    return asked or around.options.image or around.context.known.MAD_CONTAINER_IMAGE or ""


def _expand(backend: Backend, plugin: Plugin, request: Request, around: Surroundings) -> Sequence[Draft]:
    try:
        return list(backend.expand(request, around.machine))
    except UsageProblem:
        raise
    except Exception as error:
        raise PluginError(
            f"backend '{backend.name}' ({plugin.distribution}) failed on card '{request.card.name}': "
            f"{type(error).__name__}: {error}"
        ) from error


def _given(
    request: Request,
    backend: Backend,
    draft: Draft,
    image: Dockerfile | Image | None,
    missing: str,
    elsewhere: frozenset[str],
    around: Surroundings,
) -> Given:
    options = around.options
    added = argument_keys(request, draft)
    return Given(
        run_id=around.new_run_id(request.card.name),
        request=request,
        backend=backend.name,
        draft=draft,
        machine=around.machine,
        options=options,
        context=around.context,
        runtime=_runtime(request.card, draft, image, around),
        args=args_for(request, draft, added),
        arg_keys=added,
        dockerfile=image if isinstance(image, Dockerfile) else None,
        built=image if isinstance(image, Image) else None,
        missing_image=missing,
        elsewhere=elsewhere,
        credentials=around.credentials,
        services=around.services,
        data_sets=around.data_sets,
        tools=around.tools,
        tool_files=around.tool_files,
        reach=around.reach,
    )


def _runtime(card: Card, draft: Draft, image: Dockerfile | Image | None, around: Surroundings) -> Choice:
    has_image = bool(image or draft.image or foreign_image(around))
    traits = {name: runtime.traits for name, runtime in around.runtimes.items()}
    return choose_runtime(
        card, around.options, has_image, lambda name: _available(name, around), traits, draft.runtimes
    )


def _available(name: str, around: Surroundings) -> Problem | None:
    if name not in around.runtimes:
        broken = (f"; {one.where}: {one.what}" for one in around.plugins.problems if "runtime" in one.what)
        raise UsageProblem(f"no runtime '{name}'{next(broken, '')}", f"runtimes: {', '.join(sorted(around.runtimes))}")
    if around.machine.pretended:  # what runs there nobody can ask
        return None
    try:
        return around.runtimes[name].available()
    except Exception as error:  # noqa: BLE001 - the border to a plugin's runtime
        return Problem(where=name, what=f"runtime '{name}' failed: {type(error).__name__}: {error}")


def missing_image(card: Card, found: Found) -> str:
    """Return why a card has no image."""
    if not card.dockerfile:
        return f"card '{card.name}' names neither a Dockerfile nor an image"
    if found.refused:
        return f"no Dockerfile of card '{card.name}' fits: {'; '.join(found.refused)}"
    return f"no Dockerfile {card.dockerfile}.* for card '{card.name}'"


def _dockerfile_context(around: Surroundings) -> dict[str, str]:
    return dockerfile_context(around.machine, around.context, around.options.workspace)


def dockerfile_context(machine: Machine, context: Context, workspace: Path) -> dict[str, str]:
    """Return what a Dockerfile's header is compared with; a CPU machine has no vendor to differ from."""
    test = workspace / "ctx_test"
    detected = {
        "guest_os": "UBUNTU",
        "ctx_test": read_text(test, errors="replace").strip() if exists(test) else "None",
        **({"host_os": machine.host_os} if machine.host_os else {}),
        **({"gpu_vendor": machine.vendor} if machine.gpus else {}),
    }
    given = {key: str(value) for key, value in context.values.items() if isinstance(value, (str, int, float))}
    if given.get("gpu_vendor", "").upper() == "CPU":
        del given["gpu_vendor"]
    return {**detected, **given}


def _startable(
    given: Given, plugin: Plugin, known: Mapping[str, tuple[Backend, Plugin]], around: Surroundings
) -> Planned:
    plan = make_plan(given)
    if plan.traits.containerised and not plan.machine.pretended:
        _check_mounts(plan)
        plan = _with_note(plan, podman_note(around.options.environ))
    if plan.traits.containerised:
        plan = _with_readable_options(plan, around.runtimes[plan.runtime])
    if around.plugins.uses("madlite_adjust_plan"):
        plan = around.plugins.adjust(plan, given.options.asked)
        _available(plan.runtime, around)
        plan = msgspec.structs.replace(plan, traits=around.runtimes[plan.runtime].traits)
    plan = at_a_place_of(plan, around.runtimes[plan.runtime])
    if plan.traits.containerised:
        plan = _with_note(plan, host_access(plan, around.options.environ))
    backends = _readers(plan, known)
    plan = use_prepared(plan, needed_assets(plan, backends, around.plugins), around.options.environ)
    return Planned(
        plan=plan,
        backends=backends,
        files=render(plan, _search(plugin, around)),
        runtime=around.runtimes[plan.runtime],
        context=around.context.values,
    )


def _with_readable_options(plan: RunPlan, runtime: Runtime) -> RunPlan:
    """Return the plan, kept from starting by docker options of its card that cannot be read, before hours of building.

    Raises:
        UsageProblem: those of the context cannot be read.
    """
    if plan.blocked is not None or plan.image is None:
        return plan
    try:
        runtime.request(plan)
    except UsageProblem:
        own = msgspec.structs.replace(plan.engine_options, extra=plan.card.additional_docker_run_options)
        origins = {**plan.origins, "engine_options.extra": f"card '{plan.card.name}'"}
        try:
            runtime.request(msgspec.structs.replace(plan, engine_options=own, origins=origins))
        except UsageProblem as problem:
            return msgspec.structs.replace(plan, blocked=failed(problem))
        raise
    return plan


def at_a_place_of(plan: RunPlan, runtime: Runtime) -> RunPlan:
    """Return the plan, kept from starting where its runtime does not run plans for its place."""
    with border(runtime):
        if plan.blocked is not None or runtime.supports(plan.place):
            return plan
    nodes = f"{plan.place.nodes} node{'s' if plan.place.nodes > 1 else ''}"
    where = "this machine" if plan.place.where == "local" else f"'{plan.place.where}'"
    reason = f"runtime '{plan.runtime}' cannot run a plan for {nodes} of {where}"
    hint = "--runtime NAME names another one; a runtime's plugin may want more options to place a run"
    blocked = Blocked(status=Status.FAILURE, cause=Cause.PREPARE, reason=reason, hint=hint)
    return msgspec.structs.replace(plan, blocked=blocked)


def _with_note(plan: RunPlan, note: str) -> RunPlan:
    return msgspec.structs.replace(plan, notes=(*plan.notes, note)) if note else plan


def _check_mounts(plan: RunPlan) -> None:
    """Refuse a mount of what is not there: docker would make an empty folder of it, and the run train on nothing."""
    for mount in plan.mounts:
        if not mount.create and not exists(Path(mount.source)):
            raise UsageProblem(f"mount of {mount.source} at {mount.target}: it is not on this machine")
        if not mount.target.startswith("/"):
            raise UsageProblem(f"mount of {mount.source}: {mount.target} is no absolute path in the container")


def _search(plugin: Plugin, around: Surroundings) -> list[Path]:
    """Return where templates are looked for: the working folder, beside the plugin, madlite's own."""
    beside = [plugin.folder / "templates", plugin.folder] if plugin.folder else []
    return [around.options.workspace / "templates", *beside, around.template_root]
