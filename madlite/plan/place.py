"""Where a plan runs: which runtime, and which GPUs of the machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from madlite.backends.recipe_book import read_architectures
from madlite.errors import CardProblem, UsageProblem, one_hint
from madlite.machine.host import BY_BUS, CUDA_ORDER, hiding_variables, is_uncertain, visible_gpus
from madlite.model import (
    Architecture,
    Blocked,
    Card,
    Cause,
    Json,
    Machine,
    Place,
    Problem,
    RunSpec,
    Scalar,
    Traits,
    Value,
    Variant,
)
from madlite.plan.context import ASKED, GPUS_OPTION, Context, Options

Availability = Callable[[str], "Problem | None"]
"""Returns why a runtime cannot be used now; raises UsageProblem for an unknown name."""
DEFAULT_RUNTIME = "docker"
"""The runtime of a card that names none."""
MOST_GPUS = 65536  # numbers from there on are a slip, and a range of them would fill the memory
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def starts_itself(launcher: str) -> bool:
    """Return whether a card's script starts the steps, and their containers, on its nodes itself (madengine 2)."""
    return launcher.replace("-", "_") == "slurm_multi"


def serving_note(launcher: str) -> str:
    """Return that nothing starts the servers of a launcher of serving (madengine 2); "" for any other."""
    if launcher.replace("_", "-") not in ("sglang-disagg", "vllm-disagg"):
        return ""
    return f"launcher '{launcher}' starts no servers by their roles: the card's script runs as it is"


def traits_for(traits: Traits, launcher: str) -> Traits:
    """Return a runtime's traits for a run: on nodes a script that starts containers itself is in none."""
    return replace(traits, containerised=False) if starts_itself(launcher) and not traits.local else traits


def own_table(card: Card, key: str) -> dict[str, Json]:
    """Return what a card whose script starts its steps itself says of its job; {} of any other card."""
    tables = {name: found for name in (key, "distributed") if isinstance(found := card.extra.get(name), dict)}
    return tables.get(key, {}) if starts_itself(str(tables.get("distributed", {}).get("launcher", ""))) else {}


class RuntimeChoice(Value, frozen=True):
    """The runtime of a plan, its origin and traits, and what blocks it."""

    runtime: str
    origin: str
    traits: Traits = Traits()
    note: str = ""
    blocked: Blocked | None = None


class GpuAllocation(Value, frozen=True):
    """The GPUs a run gets; `blocked` when the machine has too few; `wanted` is the requested count either way."""

    gpu_ids: tuple[int, ...]
    wanted: int = 0
    note: str = ""
    blocked: Blocked | None = None


def choose_runtime(
    card: Card,
    options: Options,
    has_image: bool,
    available: Availability,
    traits: Mapping[str, Traits],
    without_image: tuple[str, ...] = (),
    launcher: str = "",
) -> RuntimeChoice:
    """Return the requested runtime, else the card's, else docker; `traits` are those of each runtime, by name.

    A card that has an image is kept from starting on nodes without containers, unless it lists a runtime without them,
    or the user asked for this one.

    A runtime without containers stands in for docker only where the card lists it, and no engine answers or there is no
    image.  `without_image` are the runtimes of a run whose card lists none and that has no image.

    Raises:
        UsageProblem: the runtime asked for is not one the card lists or has no container for `--image`, or the one of
            the card does not exist.
    """
    if options.elsewhere and not options.runtime and starts_itself(launcher):
        options = replace(options, runtime="slurm", runtime_origin="card")
    if options.runtime:
        choice = _asked_for(card, options, available, traits)
        if starts_itself(launcher):
            return replace(choice, traits=traits_for(choice.traits, launcher))
        own = choice.traits.containerised or choice.traits.local
        return choice if own else _without_container(choice, card, options, has_image, traits)
    listed = card.runtimes or (() if has_image else without_image) or (DEFAULT_RUNTIME,)
    if DEFAULT_RUNTIME not in listed:
        return _chosen(listed[0], "card", _of_card(card, listed[0], available), traits)
    bare = next((name for name in listed if name in traits and not traits[name].containerised), "")
    problem = available(DEFAULT_RUNTIME) if has_image or not bare else None
    if bare and (problem or not has_image):
        why = problem.what if problem else "the card names no image"
        return RuntimeChoice(runtime=bare, origin="card", traits=traits[bare], note=f"runs on the {bare}: {why}")
    return _chosen(DEFAULT_RUNTIME, "card" if card.runtimes and problem is None else "default", problem, traits)


def _chosen(runtime: str, origin: str, problem: Problem | None, traits: Mapping[str, Traits]) -> RuntimeChoice:
    hint = "start it, or --runtime host where the training is installed here"
    blocked = Blocked.failure(Cause.ENGINE, problem.what, hint) if problem else None
    return RuntimeChoice(runtime=runtime, origin=origin, traits=traits[runtime], blocked=blocked)


def _of_card(card: Card, runtime: str, available: Availability) -> Problem | None:
    try:
        return available(runtime)
    except UsageProblem as unknown:
        raise CardProblem(
            f"card '{card.name}' ({card.source}) names runtime '{runtime}': {unknown.message}", unknown.hint
        ) from None


def _asked_for(card: Card, options: Options, available: Availability, traits: Mapping[str, Traits]) -> RuntimeChoice:
    runtime = options.runtime
    # a card names those of this machine: on others it runs as its image and script do
    if card.runtimes and runtime not in card.runtimes and (runtime not in traits or traits[runtime].local):
        raise UsageProblem(
            f"card '{card.name}' does not run on runtime '{runtime}' (it lists {', '.join(card.runtimes)})",
            f"--runtime {card.runtimes[0]}",
            keys=("runtime",),
        )
    return _chosen(runtime, options.runtime_origin, available(runtime), traits)


def _without_container(
    choice: RuntimeChoice, card: Card, options: Options, has_image: bool, traits: Mapping[str, Traits]
) -> RuntimeChoice:
    """Return the choice of nodes that have no containers, blocked for a card that has an image and must have one."""
    name = "container of the cluster file or, in an allocation, $MADLITE_CONTAINER: docker, podman, pyxis or apptainer"
    if options.image:
        raise UsageProblem(
            f"--image {options.image}: the nodes run commands without a container", name, keys=("image",)
        )
    bare = any(runtime in traits and not traits[runtime].containerised for runtime in card.runtimes)
    wants = has_image or bool(card.dockerfile)
    if not (wants or card.runtimes) or options.runtime_origin == ASKED or choice.blocked:
        return choice
    if bare:
        return replace(choice, note="runs without a container: the nodes have none") if wants else choice
    image = card.image or card.dockerfile
    reason = (
        f"card '{card.name}' runs in an image{f' ({image})' if image else ''}, and the nodes have no container for it"
    )
    hint = f"{name}; --runtime {choice.runtime} runs the card without one"
    return replace(choice, blocked=Blocked.failure(Cause.IMAGE, reason, hint))


def usable_gpus(machine: Machine, context: Context, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the ids of the GPUs that runs may have: those of the context's `docker_gpus` (`0,2-4`), else all.

    What the caller's environment hides (HIP_VISIBLE_DEVICES, say) is left out; of a machine that is elsewhere it hides
    nothing.

    Raises:
        UsageProblem: `docker_gpus` is no list of GPU numbers, or which GPUs the environment hides is not known.
    """
    named = expand_ids(context.typed.docker_gpus) or tuple(gpu.index for gpu in machine.gpus)
    left = None if machine.pretended else visible_gpus(machine.vendor, machine.gpus, environ, empty=True)
    if left is None:
        return named
    if is_uncertain(machine.vendor, machine.gpus, environ):
        raise UsageProblem(
            f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']} of the environment counts from the fastest on, "
            "and the GPUs here are not all alike",
            f"export {CUDA_ORDER}={BY_BUS} to count as nvidia-smi does, or name them by their ids (nvidia-smi -L)",
            keys=(),
        )
    hidden = {gpu.index for gpu in machine.gpus} - {gpu.index for gpu in left}
    return tuple(index for index in named if index not in hidden)


def allocate_gpus(
    card: Card,
    machine: Machine,
    context: Context,
    requested: int | None,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> GpuAllocation:
    """Return the first of the usable GPUs, as many as the card asks for; -1 asks for all of them.

    On a CPU machine there is none to grant.

    Raises:
        UsageProblem: `docker_gpus` is no list of GPU numbers, or names a GPU that the machine does not have; the count
            asked for is less than -1.
    """
    named = _refuse_missing(context, machine)
    visible = usable_gpus(machine, context, environ)
    count = requested if requested is not None else context.n_gpus if context.n_gpus is not None else int(card.n_gpus)
    if count < -1:
        raise UsageProblem(
            f"n_gpus {count} is less than -1", "-1 asks for every GPU: --set n_gpus=-1", keys=("n_gpus",)
        )
    if machine.vendor == "CPU":
        many = f", though {count} are asked for" if count > 1 else ""  # 1 is the default of a card
        ids = f"; docker_gpus {context.typed.docker_gpus} has no effect" if named else ""
        note = f"no GPU here: runs on the CPU{many}{ids}" if count > 0 or named else ""
        return GpuAllocation(gpu_ids=(), note=note)
    wanted = max(1, len(visible)) if count < 0 else count
    if wanted > len(visible):
        left_by = _left_by(machine, named, visible, environ)
        return GpuAllocation(gpu_ids=(), wanted=wanted, blocked=_too_few(card, machine, wanted, visible, left_by))
    return GpuAllocation(gpu_ids=visible[:wanted], wanted=wanted)


def _refuse_missing(context: Context, machine: Machine) -> tuple[int, ...]:
    """Return the GPUs of `docker_gpus`; what looks like a count there is the id of one GPU.

    Raises:
        UsageProblem: one of them is not here, or it is no list of GPU numbers.
    """
    text, origin = context.typed.docker_gpus or "", context.origins.get("docker_gpus", "context")
    named, have = expand_ids(text), {gpu.index for gpu in machine.gpus}
    missing = sorted(set(named) - have)
    if not missing or not (have or origin == GPUS_OPTION):  # a context may be for machines with and without GPUs
        return named
    count = named[0]
    hint = f"it takes ids; {count} GPUs are 0-{count - 1}" if text.strip().isdigit() and count > 1 else "it takes ids"
    raise UsageProblem(
        f"{origin} {text if origin == GPUS_OPTION else f'docker_gpus {text}'} names GPU {_listed(missing)}, "
        f"{machine.words} has {_ids(have)}",
        one_hint(hint, "--set n_gpus=N sets how many a run uses"),
        keys=("docker_gpus",),
    )


def _ids(have: set[int]) -> str:
    return f"0 to {len(have) - 1}" if have and have == set(range(len(have))) else _listed(have) or "none"


def _left_by(machine: Machine, named: tuple[int, ...], visible: tuple[int, ...], environ: Mapping[str, str]) -> str:
    """Return what leaves a run no more than the visible GPUs, as text."""
    if set(visible) == set(named or (gpu.index for gpu in machine.gpus)):
        return "docker_gpus"
    hiding = next(name for name in hiding_variables(machine.vendor) if name in environ)
    return f"{hiding}={environ[hiding]} of the environment"


def _too_few(card: Card, machine: Machine, wanted: int, visible: tuple[int, ...], left_by: str) -> Blocked:
    if wanted > len(machine.gpus):
        left = f"{machine.words} has {len(machine.gpus)}"
    else:
        left = f"{left_by} leaves {len(visible)}"
    hint = f"--set n_gpus={len(visible)}" if visible else f"unset {left_by.partition('=')[0]}"
    return Blocked.failure(Cause.GPUS, f"card '{card.name}' asks for {wanted} GPUs, {left}", hint)


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


def expand_ids(text: str | None) -> tuple[int, ...]:
    """Return the numbers of a list such as `0,2-4`, sorted; nothing for an empty one.

    Raises:
        UsageProblem: it is no such list.
    """
    ids: set[int] = set()
    for part in filter(None, (text or "").replace(" ", "").strip("{}").split(",")):
        found = _RANGE.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < MOST_GPUS:
            what = f"docker_gpus: {part!r} is no GPU number or range"
            raise UsageProblem(what, 'write it like "0,2-4"', keys=("docker_gpus",))
        ids |= set(range(first, last + 1))
    return tuple(sorted(ids))


def make_place(gpu_ids: tuple[int, ...], nodes: int, runtime: str, traits: Traits) -> Place:
    """Return the place of a run: on this machine, which of more `nodes` than one is a part, or where its runtime is."""
    where = "local" if traits.local else runtime
    return Place(where=where, nodes=nodes, gpus_per_node=len(gpu_ids), gpu_ids=gpu_ids)


# The architecture of a planned model: the spec's own, else that of madlite's table, overlaid by settings.

TABLE = Path(__file__).with_name("architectures.toml")
_UNKNOWN_WITH = "no shape is known with"
_CHANGED = ", settings"
_NEEDED = ("layers", "hidden", "heads", "vocab", "ffn")  # fields without which there is no shape


class ArchitectureChoice(Value, frozen=True):
    """A model's architecture and its origin, or why it is unknown."""

    architecture: Architecture | None
    origin: str


@cache
def load_architectures() -> dict[str, Architecture]:
    """Return madlite's own table."""
    import tomli

    tables = tomli.loads(TABLE.read_text(encoding="utf-8"))["architecture"]
    return {
        name: architecture
        for name, architecture in read_architectures(tables).items()
        if isinstance(architecture, Architecture)
    }


def find_architecture(spec: RunSpec, variant: Variant | None, settings: Mapping[str, Scalar]) -> ArchitectureChoice:
    """Return the architecture of a spec's model with its final `variant` and `settings`."""
    if variant is None or not variant.model:
        return ArchitectureChoice(architecture=None, origin="no model is named")
    own = spec.variant is not None and variant.model == spec.variant.model
    if own and spec.shape.unknown:
        return ArchitectureChoice(architecture=None, origin=spec.shape.unknown)
    changed = [key for key in spec.shape.others if settings.get(key) != spec.settings.get(key)]
    if changed:
        words = ", ".join(f"{key}={settings.get(key)}" for key in changed)
        return ArchitectureChoice(architecture=None, origin=f"{_UNKNOWN_WITH} {words}")
    base = (spec.architecture if own else None) or _named(variant.model)
    return _over(base, variant.model, spec.shape.fields, settings)


def is_changed(origins: Mapping[str, str]) -> bool:
    """Return whether settings made another model of the one that a plan names, by the origins of its values.

    Where nothing is known of the shape, a model that the user names is what the user says.
    """
    origin, named_by = origins.get("architecture", ""), origins.get("variant.model", "recipe")
    return origin.endswith(_CHANGED) or (origin.startswith(_UNKNOWN_WITH) and named_by.startswith("recipe"))


def _named(name: str) -> Architecture | None:
    table = load_architectures()
    exact = {item.casefold(): item for item in table}
    return table.get(exact.get(name.casefold(), ""))


def _over(
    base: Architecture | None, name: str, fields: Mapping[str, str], settings: Mapping[str, Scalar]
) -> ArchitectureChoice:
    """Return a shape with the fields that settings have."""
    set_by = {field: value for field, key in fields.items() if (value := settings.get(key))}
    if base is None and not all(field in set_by for field in _NEEDED):
        return ArchitectureChoice(architecture=None, origin=f"no shape is known of a model '{name}'")
    before = {} if base is None else msgspec.structs.asdict(base)
    if not (set_by.get("experts") or before.get("experts")):
        set_by = {field: value for field, value in set_by.items() if "expert" not in field}
    differing = [field for field, value in set_by.items() if before.get(field) != value]
    if base is not None and not differing:
        return ArchitectureChoice(architecture=base, origin=base.source)
    origin = f"{base.source}{_CHANGED}" if base and base.source else "settings"
    try:
        made = msgspec.convert({**before, **set_by, "name": name, "source": origin}, Architecture)
    except msgspec.ValidationError as error:
        return ArchitectureChoice(architecture=None, origin=str(error))
    return ArchitectureChoice(architecture=made, origin=origin)
