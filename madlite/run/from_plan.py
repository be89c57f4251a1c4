"""A plan file → the plan as it runs here: in this folder, on this machine, under an id that no other run has.

What was decided stays; what this machine is and where its files lie replaces what the planning one was.  What differs
is reported before the run; what makes it impossible refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from madlite.backends.loader import Plugins, why_unavailable
from madlite.errors import RuntimeProblem, UsageProblem
from madlite.files import digest_of, exists
from madlite.images.client import connected, explained
from madlite.images.image import digest, inspect
from madlite.machine.host import hiding_variables
from madlite.model import EnvValue, Machine, RunPlan, Runtime, Secret
from madlite.plan.container import (
    BY_HOST,
    PYTHON,
    RDMA,
    add_rdma,
    bind_gpus,
    is_pinned,
    machine_variables,
    with_devices,
)
from madlite.plan.context import Context, Options
from madlite.plan.inputs import RUNS
from madlite.plan.place import traits_for, usable_gpus
from madlite.plan.plan_file import (
    VERSION,
    PlannedFile,
    Rendered,
    SavedPlan,
    mask_descriptions,
    name_secrets,
    plan_text,
    secrets_in,
)
from madlite.plan.submission import PlannedRun
from madlite.platforms.docker.request import is_access_note, plan_file_notes
from madlite.run.executor import secrets_for
from madlite.run.instrumentation import versions
from madlite.run.planning import check_mounts, placed
from madlite.run.state import context_file
from madlite.secrets import Redactor
from madlite.store.folder import lock_name, locked_name, new_run_id

# A plan that can start → the text of its plan file.


def saved_text(run: PlannedRun, options: Options, plugins: Plugins, known: Mapping[str, str]) -> str:
    """Return the text of a plan file; `known` is what secrets can be read from at the run, by name.

    Raises:
        UsageProblem: the plan spells a secret out where no name can stand for it.
    """
    from madlite import __version__

    secrets = secrets_for(run, options.environ)
    plan = mask_descriptions(run.plan, secrets)
    names = name_secrets(plan, known)
    places: dict[str, tuple[str, ...]] = {}
    for secret in secrets_in(plan):
        if name := names[secret.secret.reveal()]:
            places[name] = (*places.get(name, ()), secret.place)
    context = context_file(run.context, Redactor(secrets).text)
    saved = SavedPlan(
        version=VERSION,
        madlite=__version__,
        planned=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=tuple(map(Redactor(secrets).text, options.command)),
        plugins=versions(plugins),
        pipeline=options.environ.get("pipeline", ""),
        build_number=options.environ.get("BUILD_NUMBER", ""),
        image_digest="" if plan.machine.pretended else local_digest(plan, options.environ),
        secrets=places,
        inputs=inputs_of([plan]),
        context=context.values,
        context_left_out=context.left_out,
        files=tuple(PlannedFile.of(file.path, file.template, file.data) for file in run.files),
        plan=plan,
    )
    return plan_text(saved, names, known)


def inputs_of(plans: Iterable[RunPlan]) -> dict[str, str]:
    """Return the files of the working folder that runs use, relative to it, with their SHA-256."""
    names = dict.fromkeys((plan.workspace, name) for plan in plans for name in _input_names(plan))
    return {name: text for workspace, name in names if (text := digest_of(workspace / name))}


def _input_names(plan: RunPlan) -> Iterator[str]:
    """Yield the files of the working folder that a plan's run uses, as far as the plan names them."""
    if plan.card.scripts and not plan.templates:
        yield from (plan.card.scripts, f"{plan.card.scripts}/run.sh")
    image = plan.image
    if image is not None and image.dockerfile is not None and not image.prebuilt:
        yield from _relative(str(image.dockerfile), str(plan.workspace))
    for action in plan.actions:
        for word in action.argv:
            yield from _relative(word, plan.inside)


def _relative(word: str, folder: str) -> Iterator[str]:
    """Yield a path below a folder as it is named from there."""
    name = word.removeprefix(f"{folder}/")
    if name != word and ".." not in Path(name).parts:
        yield name


def local_digest(plan: RunPlan, environ: Mapping[str, str]) -> str:
    """Return the digest of the image that a plan finds on this machine's engine; "" for none, and one to be built."""
    image = plan.image
    if image is None or not (plan.traits.containerised and plan.traits.local) or plan.blocked is not None:
        return ""
    if image.dockerfile is not None and not image.prebuilt:
        return ""
    try:
        with explained(environ), connected(environ) as client:
            found = inspect(client, image.ref)
    except RuntimeProblem:
        return ""
    return digest(found, image.ref) if found is not None else ""


def bind_plan(
    saved: SavedPlan, run_id: str, options: Options, machine: Machine, plugins: Plugins, runtimes: Mapping[str, Runtime]
) -> PlannedRun:
    """Return a saved plan as it runs here, under an id.

    Raises:
        UsageProblem: it cannot run here: other GPUs, a file, mount, backend or runtime that is not here.
    """
    plan = _moved_plan(saved.plan, options.workspace, run_id)
    if plan.runtime not in runtimes:
        names = f"runtimes: {', '.join(sorted(runtimes))}"
        raise UsageProblem(f"the plan needs runtime '{plan.runtime}', which is not here", names)
    runtime = runtimes[plan.runtime]
    here = _on_machine(replace(plan, traits=traits_for(runtime.traits, plan.launcher)), machine, options)
    plan = placed(_on_visible(here, saved, options.environ), runtime)
    if plan.blocked is None:
        _check_here(plan, saved, runtime)
        notes = (note for note in plan.notes if not is_access_note(note))  # as it was on the planning machine
        plan = replace(plan, notes=(*notes, *plan_file_notes(plan, saved.secrets, options.environ)))
    known = plugins.backends()
    missing = [name for name in (plan.backend, *plan.readers) if name and name not in known]
    if missing:
        raise UsageProblem(f"the plan needs backend '{missing[0]}', which is not here", "madlite doctor --plugins")
    return PlannedRun(
        plan=plan,
        backends=tuple(known[name][0] for name in plan.readers),
        files=tuple(
            _moved_file(file.path, file.content(), Path(file.template), saved.plan, plan) for file in saved.files
        ),
        runtime=runtime,
        context=saved.context,
        context_left_out=saved.context_left_out,
    )


def copied(run: PlannedRun, run_id: str) -> PlannedRun:
    """Return a plan that can start once more, with its files, under another id."""
    plan = _moved_plan(run.plan, run.plan.workspace, run_id)
    files = tuple(_moved_file(file.path, file.data, file.template, run.plan, plan) for file in run.files)
    return replace(run, plan=plan, files=files)


@contextmanager
def claimed_id(saved: SavedPlan, workspace: Path) -> Iterator[str]:
    """Yield the id that a plan runs under: its own in the first run, and another one in each that comes after.

    Of two that begin at once the one that has the lock is the first.
    """
    plan, name = saved.plan, lock_name(saved.plan.id)
    with locked_name(workspace, name) as is_ours:
        is_first = is_ours and not (workspace / RUNS / plan.id).exists()
        yield plan.id if is_first else new_run_id(plan.card.name)


def _moved_plan(plan: RunPlan, workspace: Path, run_id: str) -> RunPlan:
    """Return a plan in another folder, under another id; a container sees the folder where it saw the old one."""
    swap = _swapped(plan, workspace, run_id)
    moved: RunPlan = _mapped(plan, swap, lambda path: _moved_path(path, plan.workspace, workspace))
    mounts = [
        replace(mount, source=str(_moved_path(Path(mount.source), plan.workspace, workspace))) for mount in plan.mounts
    ]
    inside = plan.inside if plan.traits.containerised else str(workspace)
    folder = workspace / RUNS / run_id
    return replace(moved, id=run_id, workspace=workspace, folder=folder, inside=inside, mounts=tuple(mounts))


def _swapped(plan: RunPlan, workspace: Path, run_id: str) -> Callable[[str], str]:
    """Return what puts id and, where a run sees the folder by its own name, the folder into a text."""
    old = str(plan.workspace)
    move = not plan.traits.containerised and workspace != plan.workspace
    place = re.compile(rf"(?<![\w./-]){re.escape(old)}(?![\w.-])")

    def swap(text: str) -> str:
        text = text.replace(plan.id, run_id)
        return place.sub(lambda found: str(workspace), text) if move else text

    return swap


def _moved_path(path: Path, old: Path, new: Path) -> Path:
    return new / path.relative_to(old) if path.is_relative_to(old) else path


def _moved_file(name: str, data: bytes, template: Path, old: RunPlan, plan: RunPlan) -> Rendered:
    swap = _swapped(old, plan.workspace, plan.id)
    with suppress(UnicodeDecodeError):  # a binary one names neither
        data = swap(data.decode()).encode()
    return Rendered(path=name, data=data, template=template)


def _mapped(value: Any, swap: Callable[[str], str], move: Callable[[Path], Path]) -> Any:
    """Return a value with its texts and paths changed; names of fields, of keys and of fixed sets stay."""
    if isinstance(value, msgspec.Struct):
        fields = {name: _mapped(getattr(value, name), swap, move) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, (Enum, Secret)) or value is None:
        return value
    if isinstance(value, str):
        return swap(value)
    if isinstance(value, Path):
        return move(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, swap, move) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(item, swap, move) for item in value)
    return value


def _on_machine(plan: RunPlan, machine: Machine, options: Options) -> RunPlan:
    """Return a plan with this machine's facts in place of the planning one's.

    Raises:
        UsageProblem: its GPUs are another vendor's, or some that it uses are not here.
    """
    planned_machine = plan.machine
    again = "plan it for this machine: madlite plan"
    if planned_machine.vendor != machine.vendor:
        raise UsageProblem(
            f"the plan is for {_machine_text(planned_machine)}, {_name(machine)} has {_machine_text(machine)}", again
        )
    missing = sorted(set(plan.place.gpu_ids) - {gpu.index for gpu in machine.gpus})
    if missing:
        ids = ", ".join(map(str, missing))
        raise UsageProblem(f"the plan uses GPU {ids}, {_name(machine)} has {_machine_text(machine)}", again)
    env = dict(plan.env)
    for name, text in machine_variables(machine).items():
        if plan.origins.get(f"env.{name}") == "madlite":
            env[name] = text
    if plan.origins.get(f"env.{PYTHON}") == BY_HOST:
        env[PYTHON] = options.python
    owner = options.user if plan.traits.containerised and options.user[0] != 0 else None
    moved = with_devices(plan, machine, plan.place.gpu_ids)
    return _on_network(replace(moved, machine=machine, env=env, give_back=owner))


def _on_visible(plan: RunPlan, saved: SavedPlan, environ: Mapping[str, str]) -> RunPlan:
    """Return a plan on GPUs that the environment leaves, as many as it has: a scheduler gives a job some of a node's.

    GPUs that the user named stay.

    Raises:
        UsageProblem: it leaves too few.
    """
    wanted = plan.place.gpu_ids
    left = usable_gpus(plan.machine, Context(), environ)
    if {*wanted} <= {*left} or is_pinned(plan) or "docker_gpus" in saved.context:
        return plan
    if len(left) < len(wanted):
        names = " and ".join(name for name in hiding_variables(plan.machine.vendor) if name in environ)
        what = f"the plan uses {len(wanted)} GPUs, {names} leaves {len(left)} on {_name(plan.machine)}"
        raise UsageProblem(what, "ask the scheduler for more of them")
    return bind_gpus(plan, left[: len(wanted)], environ)


def _on_network(plan: RunPlan) -> RunPlan:
    """Return a plan of one of several nodes with the network cards of this one, whatever the planning machine had."""
    if plan.place.whole or not plan.traits.containerised:
        return plan
    name = str(RDMA)
    if not RDMA.is_dir():
        return replace(plan, devices=tuple(device for device in plan.devices if device != name))
    if name in plan.devices:
        return plan
    return add_rdma(replace(plan, notes=tuple(note for note in plan.notes if name not in note)))


def _name(machine: Machine) -> str:
    """Return how messages name the machine that a plan is bound to: they may be read on another one."""
    return f"machine {machine.hostname}" if machine.hostname else "this machine"


def _machine_text(machine: Machine) -> str:
    return f"{len(machine.gpus)} x {machine.device}" if machine.gpus else "no GPU"


def _check_here(plan: RunPlan, saved: SavedPlan, runtime: Runtime) -> None:
    """Refuse a plan whose files, mounts or engine are not here.

    Raises:
        UsageProblem: some of them are not.
    """
    for name in saved.inputs:
        if not exists(plan.workspace / name):
            raise UsageProblem(
                f"the plan's run uses {name}, which is not in {plan.workspace}",
                f"start it in the folder it was planned in, {saved.plan.workspace}, or one like it",
            )
    image = plan.image
    if image is not None and image.dockerfile is not None and not image.prebuilt and not exists(image.dockerfile):
        raise UsageProblem(f"the plan's image is built from {image.dockerfile}, which is not here")
    check_mounts(plan, _name(plan.machine))
    problem = why_unavailable(runtime)
    if problem is not None:
        raise UsageProblem(f"the plan needs runtime '{runtime.name}': {problem.what}")


def differences(saved: SavedPlan, plan: RunPlan, options: Options, plugins: Plugins) -> Iterator[str]:
    """Yield what is otherwise here than where the plan was made."""
    for what, before, here in _compared(saved, plan, options, plugins):
        if before and here and before != here:
            yield f"{what}: {before} when the plan was made, here {here}"
    for name, before in saved.inputs.items():
        if digest_of(plan.workspace / name) != before:
            yield f"{name} has changed since the plan was made: what is here runs"
    if saved.context_left_out:
        yield f"not in the plan's context, for it is secret: {', '.join(saved.context_left_out)}"


def _compared(saved: SavedPlan, plan: RunPlan, options: Options, plugins: Plugins) -> Iterator[tuple[str, str, str]]:
    """Yield what is compared, as it was and as it is here; "" where that is unknown."""
    installed = versions(plugins)
    for name, version in {**saved.plugins, "madlite": saved.madlite}.items():
        yield name, version, installed.get(name, "none")
    then, here = saved.plan.machine, plan.machine
    yield "machine", _with_architecture(then), _with_architecture(here)
    if not then.pretended:  # else it was never queried
        yield from (("ROCm", then.rocm_version, here.rocm_version), ("CUDA", then.cuda_version, here.cuda_version))
    if saved.image_digest and plan.image is not None:
        yield f"image {plan.image.ref}", saved.image_digest, local_digest(plan, options.environ) or "not there yet"


def _with_architecture(machine: Machine) -> str:
    return f"{_machine_text(machine)} {machine.architecture}".strip()


def planned_environ(saved: SavedPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return this environment, with what rows are reported the planning one's where this one does not say it."""
    row_values: dict[str, EnvValue] = {"pipeline": saved.pipeline, "BUILD_NUMBER": saved.build_number}
    return {**{name: str(text) for name, text in row_values.items() if text}, **environ}
