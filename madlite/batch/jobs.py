"""Plans as jobs of the scheduler: what each needs, what it must not run beside, and how long it took before."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.gpu_allocator import Allocation, GpuAllocator, Job
from madlite.files import exists, read_plain
from madlite.machine.host_facts import numa_place
from madlite.model import Machine, RunPlan, Status
from madlite.plan.container import bind_gpus, bind_numa
from madlite.plan.inputs import RUNS
from madlite.plan.planned import PlannedRun
from madlite.run.planning import failed
from madlite.store.folder import new_run_id, real_folders
from madlite.store.gpu_leases import LeaseFolder, lease_folder, own_lease_folder
from madlite.store.stored import read_record

MOST_CPU_RUNS = 8  # at once with `auto`: each of them has threads for every core
_FOLDERS = 20  # of a card that are read for a duration, the newest
_LARGEST_SCRIPT_BYTES = 1 << 20
# a port that is written down; `${MASTER_PORT:-29500}` is one that the environment decides
_PORT = re.compile(r"(?:--(?:master|main_process)[-_]port[= ]+|\bMASTER_PORT=)[\"']?(\d{2,5})\b")
_BY_US = "--parallel"  # the origin of a port that no other run of the batch has
_PORTS = ("MASTER_PORT", "PET_MASTER_PORT")  # the second one is torchrun's own: it does not read the first


def cpu_slots() -> int:
    """Return how many runs without a GPU go on at once with `auto`: one for each core that this process may use."""
    return max(1, min(len(os.sched_getaffinity(0)), MOST_CPU_RUNS))


def make_jobs(
    planned: Sequence[PlannedRun], plugins: Plugins, environ: Mapping[str, str], at_once: int, exclusive: bool
) -> list[Job]:
    """Return the jobs of plans, in their order; with `at_once` 1 none runs beside another."""
    several = at_once != 1
    known = known_durations(planned) if several else {}
    images = _shared_images(planned)
    return [
        Job(
            position=position,
            run_id=run.plan.id,
            folder=str(run.plan.folder),
            gpus=len(run.plan.place.gpu_ids) if uses_gpus(run.plan) else 0,
            allowed=_allowed(run, plugins, environ) if uses_gpus(run.plan) else (),
            keys=frozenset(_keys(run.plan, images)) if several else frozenset(),
            expected_s=known.get(run.plan.id),
            exclusive=exclusive,
            keeps=run.plan.keep_alive,
            blocked=run.plan.blocked is not None,
        )
        for position, run in enumerate(planned)
    ]


@contextmanager
def open_pool(
    jobs: Sequence[Job], planned: Sequence[PlannedRun], environ: Mapping[str, str], at_once: int, cancelled: Event
) -> Iterator[GpuAllocator | None]:
    """Yield the GPUs of this machine, where a run uses some; what processes of others use is left alone with AUTO.

    `cancelled` ends the tools that list those.

    Raises:
        UsageProblem: the folder of the leases cannot be used, nor one of the user's own.
    """
    machine = next((planned[job.position].plan.machine for job in jobs if job.gpus), None)
    if machine is None:
        yield None
        return
    in_use = None if at_once else foreign_on_gpus(machine, environ, cancelled)
    leases = LeaseFolder(lease_folder(environ), own_lease_folder(environ))
    with closing(GpuAllocator(machine.gpus, leases, in_use)) as pool:
        yield pool


def bound_plan(plan: RunPlan, start: Allocation, environ: Mapping[str, str], *, numa: bool) -> RunPlan:
    """Return the plan of a run on the GPUs that it gets; with `numa` near them.  Without any it will fail."""
    if start.problem is not None:
        return replace(plan, blocked=failed(start.problem))
    if not start.gpu_ids:
        return _noted(plan, _without_effect(plan, start, numa=numa))
    plan = bind_gpus(plan, start.gpu_ids, environ)
    if not numa:
        return plan
    near = numa_place([gpu for gpu in plan.machine.gpus if gpu.index in start.gpu_ids])
    if near is not None:
        return bind_numa(plan, near)
    return _noted(plan, ["--bind numa: this machine does not say which NUMA node its GPUs are at"])


def _noted(plan: RunPlan, notes: Iterable[str]) -> RunPlan:
    """Return the plan with notes, which a plan that is run again has already."""
    return replace(plan, notes=tuple(dict.fromkeys((*plan.notes, *notes))))


def _without_effect(plan: RunPlan, start: Allocation, *, numa: bool) -> Iterator[str]:
    """Yield why options that are about GPUs do nothing for a run that has none of this machine."""
    if plan.blocked is not None or plan.skip_model_run:
        return
    if numa:
        yield "--bind numa has no effect: the run uses no GPU of this machine"
    if start.job.exclusive and not start.leased:
        yield "--exclusive has no effect: no run of this command uses a GPU of this machine, and others may run beside"


def uses_gpus(plan: RunPlan) -> bool:
    """Return whether a run will be on GPUs of this machine."""
    here = plan.traits.local and not plan.machine.pretended
    return here and plan.blocked is None and not plan.skip_model_run and bool(plan.place.gpu_ids)


def _allowed(run: PlannedRun, plugins: Plugins, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the GPUs that a run may get: those of its plan alone where a check refuses it on others."""
    plan, own = run.plan, run.plan.place.gpu_ids
    if not set(own) < set(run.gpus):
        return own
    if not plan.traits.containerised:  # a script that hides GPUs itself counts the machine's
        elsewhere = bind_gpus(plan, run.gpus[-len(own) :], environ)
        if any(finding.fatal for finding in plugins.checks(elsewhere, run.backends)):
            return own
    return run.gpus


def _shared_images(planned: Iterable[PlannedRun]) -> frozenset[str]:
    """Return the names of images that are built from more than one Dockerfile: each build takes the name away."""
    found: dict[str, set[Path | None]] = {}
    for image in (run.plan.image for run in planned):
        if image is not None and not image.prebuilt:
            found.setdefault(image.ref, set()).add(image.dockerfile)
    return frozenset(ref for ref, files in found.items() if len(files) > 1)


def _keys(plan: RunPlan, images: frozenset[str]) -> Iterator[str]:
    if plan.image is not None and plan.image.ref in images:
        yield f"image {plan.image.ref}"
    if plan.result_rule.kind == "multiple_results" and plan.result_rule.file:
        yield f"file {plan.result_rule.file}"  # scripts write it to one place of the working folder
    script = "" if plan.templates else plan.card.scripts
    fixed = {*_ports_of_script(plan.workspace, script), *_PORT.findall(" ".join((plan.run_args, _runner(plan))))}
    fixed |= {str(plan.settings["master_port"])} if plan.settings.get("master_port") else set()
    fixed |= {text for name in _PORTS if isinstance(text := plan.env.get(name), str) and text.isdecimal()}
    yield from (f"port {number}" for number in fixed if number != "0")


def _runner(plan: RunPlan) -> str:
    runner = plan.env.get("MAD_MULTI_NODE_RUNNER", "")
    return runner if isinstance(runner, str) else ""


def _ports_of_script(workspace: Path, scripts: str) -> frozenset[str]:
    """Return the ports that a card's script spells out; of a folder those of its run.sh."""
    path = workspace / scripts
    texts = (_text(place, workspace) for place in (path, path / "run.sh")) if scripts else ()
    return frozenset(_PORT.findall(next(filter(None, texts), "")))


def _text(path: Path, root: Path) -> str:
    with suppress(OSError, ValueError):
        return read_plain(path, root, limit_bytes=_LARGEST_SCRIPT_BYTES).decode("utf-8", "replace")
    return ""


def known_durations(planned: Iterable[PlannedRun]) -> dict[str, float]:
    """Return by run id how long the newest run of the same card took in this working folder, in seconds.

    It is the newest successful one, of the same mode and precision before others.
    """
    plans = [run.plan for run in planned if run.plan.blocked is None]
    if not plans or not exists(plans[0].workspace / RUNS):
        return {}
    folders: dict[str, list[Path]] = {}
    for folder in real_folders(plans[0].workspace / RUNS):
        folders.setdefault(_slug(folder.name), []).append(folder)
    found: dict[tuple[str, ...], float | None] = {}
    for plan in plans:
        key = _kind(plan)
        if key not in found:
            found[key] = _duration(folders.get(_slug(new_run_id(plan.card.name)), []), plan)
    return {plan.id: seconds for plan in plans if (seconds := found[_kind(plan)]) is not None}


def _slug(run_id: str) -> str:
    """Return what the id of a run has of its card's name."""
    return run_id.partition("-")[2].rpartition("-")[0]


def _kind(plan: RunPlan) -> tuple[str, ...]:
    variant = plan.variant
    return (plan.card.name, *((variant.mode, variant.precision) if variant is not None else ()))


def _duration(folders: Sequence[Path], plan: RunPlan) -> float | None:
    of_card = None
    for folder in reversed(folders[-_FOLDERS:]):
        record = read_record(folder)
        if record is None or record.card != plan.card.name or record.status is not Status.SUCCESS:
            continue
        seconds = record.durations_s.get("total")
        variant = (record.variant.mode, record.variant.precision) if record.variant is not None else ()
        if (record.card, *variant) == _kind(plan):
            return seconds
        of_card = seconds if of_card is None else of_card
    return of_card


def with_own_port(plan: RunPlan, taken: set[str]) -> RunPlan:
    """Return the plan with a port of its own for its ranks to meet, where nothing decides one; `taken` grows by it.

    A run that is tried again gets another one: the first may be what it failed for.
    """
    is_decided = any(name in plan.env and plan.origins.get(f"env.{name}") != _BY_US for name in _PORTS)
    if is_decided or not plan.place.whole or plan.place.nodes > 1:
        return plan
    port = _free_port(taken)
    taken.add(port)
    origins = {f"env.{name}": _BY_US for name in _PORTS}
    return replace(plan, env={**plan.env, **dict.fromkeys(_PORTS, port)}, origins={**plan.origins, **origins})


def _free_port(taken: set[str]) -> str:
    while True:
        with socket.socket() as listener:
            listener.bind(("", 0))
            port = str(listener.getsockname()[1])
        if port not in taken:
            return port


def foreign_on_gpus(machine: Machine, environ: Mapping[str, str], cancelled: Event) -> Callable[[], Mapping[int, str]]:
    """Return what lists the GPUs with processes that this madlite did not start, with those processes as text."""

    def listed() -> Mapping[int, str]:
        from madlite.machine.host import Host
        from madlite.machine.processes import OwnProcesses, find_foreign, sees_all_processes
        from madlite.machine.telemetry.sampler import list_processes

        here = Host(path=environ.get("PATH", ""), env=dict(environ))
        if not sees_all_processes():
            return {}
        found = list_processes(machine.vendor, machine.gpus, here, cancelled)
        own = OwnProcesses(ancestor=os.getpid())
        by_gpu: dict[int, str] = {}
        for process in find_foreign(found, own):
            for gpu in process.memory:
                by_gpu.setdefault(gpu, str(process))
        return by_gpu

    return listed
