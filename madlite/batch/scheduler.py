"""Which run of a batch starts when, and on which GPUs: the longest first, none of them shared.

A run that needs more GPUs than are free has a reservation: a later one may start before it only where enough GPUs are
left for it in the end.  A run that is tried again keeps its GPUs, or its slot, until its last attempt has ended.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.gpu_allocator import POLL_LEFT_S, GpuAllocator, Job
from madlite.errors import UsageProblem
from madlite.files import exists, read_plain
from madlite.machine.host import Host
from madlite.machine.host_facts import numa_place
from madlite.machine.processes import OwnProcesses, find_foreign, sees_all_processes
from madlite.model import Machine, RunPlan, Status, Value
from madlite.plan.container import bind_gpus, bind_numa
from madlite.plan.inputs import RUNS
from madlite.plan.submission import PlannedRun
from madlite.run.planning import failed
from madlite.store.folder import new_run_id, real_folders
from madlite.store.gpu_leases import LeaseFolder, lease_folder, own_lease_folder
from madlite.store.record import read_record

# Plans as jobs of the scheduler: what each needs, what it must not run beside, and how long it took before.

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


class Allocation(Value, frozen=True):
    """A run that starts now, and the GPUs that it keeps others off: none where it needs none."""

    job: Job
    leased: tuple[int, ...] = ()
    problem: UsageProblem | None = None  # why it cannot have any: it fails

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """The GPUs that it uses."""
        return tuple(index for index in self.job.allowed if index in self.leased)[: self.job.gpus]


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
    in_use = None if at_once else partial(foreign_on_gpus, machine, environ, cancelled)
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
    words = f"{plan.run_args} {plan.env.get('MAD_MULTI_NODE_RUNNER', '')}"
    fixed = {*_ports_of_script(plan.workspace, script), *_PORT.findall(words)}
    fixed |= {str(plan.settings["master_port"])} if plan.settings.get("master_port") else set()
    fixed |= {text for name in _PORTS if isinstance(text := plan.env.get(name), str) and text.isdecimal()}
    yield from (f"port {number}" for number in fixed if number != "0")


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


def foreign_on_gpus(machine: Machine, environ: Mapping[str, str], cancelled: Event) -> dict[int, str]:
    """Return the GPUs with processes that this madlite did not start, with those processes as text."""
    from madlite.machine.telemetry import list_processes

    if not sees_all_processes():
        return {}
    here = Host(path=environ.get("PATH", ""), env=dict(environ))
    found = list_processes(machine.vendor, machine.gpus, here, cancelled)
    by_gpu: dict[int, str] = {}
    for process in find_foreign(found, OwnProcesses(ancestor=os.getpid())):
        for gpu in process.memory:
            by_gpu.setdefault(gpu, str(process))
    return by_gpu


_LOOK_AHEAD = 64  # of the waiting runs: with ten thousand of them not each is tried each time
MOST_BESIDE = 64  # runs at the same time that are named


class _Running:
    """A run that goes on."""

    def __init__(self, start: Allocation, began_s: float, passed: int | None) -> None:
        self.start, self.began_s = start, began_s
        self.passed = passed  # the position of the run before it that was waiting for GPUs
        self.beside: dict[str, None] = {}  # runs at the same time, in the order in which they met
        self.is_blocked = start.job.blocked or start.problem is not None  # then it executes nothing


class Scheduler:
    """Gives the jobs of a batch to threads that run them, one after another as each can start; safe from any thread.

    `cpu_slots` is how many runs without a GPU go on at once; `is_over` says that none starts any more.  `on_wait` gets
    why no run can start as long as that is for other processes, and "" when one can.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        pool: GpuAllocator | None,
        cpu_slots: int,
        *,
        in_order: bool = False,
        on_wait: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waiting = list(jobs) if in_order else _longest_first(jobs)
        self._head: int | None = None  # the position of the first that waits for GPUs
        self._pool, self._cpu_slots = pool, cpu_slots
        self._on_wait, self._clock = on_wait, clock
        self._condition = threading.Condition()
        self._running: dict[int, _Running] = {}
        self._in_order = in_order
        self.is_over = self._is_polling = self._has_begun = False
        self._shown = ""

    def take(self) -> Allocation | None:
        """Return the next run as soon as one can start; None once none is to start any more.

        Raises:
            UsageProblem: the leases cannot be used, and no run has started yet; later it is that of a `Start`.
        """
        with self._condition:
            while self._waiting and not self.is_over:
                if (start := self._next()) is not None:
                    self._show("")
                    self._condition.notify_all()  # another one of them may have waited for other processes
                    return start
                self._wait()
            self._condition.notify_all()
            return None

    def note(self, start: Allocation, run_id: str, folder: str, handle: str = "") -> None:
        """Note which run is on its GPUs, and once its session is open the handle of that."""
        with self._condition:
            if self._pool is not None and start.job.position in self._running:
                self._pool.note(start.leased, run_id, folder, handle)

    def beside(self, start: Allocation) -> tuple[str, ...]:
        """Return the runs that went on beside one so far."""
        with self._condition:
            running = self._running[start.job.position]
            if self._pool is not None:
                running.beside.update(dict.fromkeys(self._pool.beside()))
            return tuple(islice(running.beside, MOST_BESIDE))

    def try_again(self, start: Allocation, run_id: str, folder: str, wait_s: float) -> Allocation | None:
        """Return the start of a run's next attempt, after `wait_s` on the same GPUs; None once no run starts.

        It does not start before what the failed attempt left on them is gone.
        """
        self._wait_or_stop(wait_s)
        while (left := self._left_by(start)) and not self.is_over:
            with self._condition:
                self._show(f"{left}, left by run {start.job.run_id} that is to be tried again")
            self._wait_or_stop(POLL_LEFT_S)
        with self._condition:
            self._show("")
            if self.is_over:
                return None
            before = self._running.pop(start.job.position)
            following = replace(start, job=replace(start.job, run_id=run_id, folder=folder))
            self._add(_Running(following, self._clock(), before.passed))
            return following

    def end(self, start: Allocation) -> tuple[str, ...]:
        """Take back what an ended run had, and return the runs that went on beside it; a second time nothing."""
        with self._condition:
            if start.job.position not in self._running:
                return ()
        left = self._left_by(start)
        with self._condition:
            ended = self._running.pop(start.job.position)
            if self._pool is not None:
                ended.beside.update(dict.fromkeys(self._pool.beside()))
                self._pool.give_back(start.leased, left=left)
            self._condition.notify_all()
            return tuple(islice(ended.beside, MOST_BESIDE))

    def stop(self) -> None:
        """Start no other run; what goes on is not touched."""
        with self._condition:
            self.is_over = True
            if self._pool is not None:
                self._pool.let_go()
            self._condition.notify_all()

    def left_s(self, typical_s: float | None) -> float | None:
        """Return how long the batch will take, by durations that are known, else `typical_s`; None where it is unknown.

        It is what all GPUs or slots need together, and at least the longest that goes on.
        """
        with self._condition:
            now_s = self._clock()
            jobs = [(running.start.job, now_s - running.began_s) for running in self._running.values()]
            jobs += [(job, 0.0) for job in self._waiting]
        if any(job.expected_s is None for job, _ in jobs) and typical_s is None:
            return None
        needs_s = [max(0.0, (job.expected_s or typical_s or 0.0) - done_s) for job, done_s in jobs]
        with_gpus = self._pool is not None and any(job.gpus for job, _ in jobs)
        room = len(self._pool.every) if self._pool is not None and with_gpus else self._cpu_slots
        together_s = sum(max(1, job.gpus) * need_s for (job, _), need_s in zip(jobs, needs_s, strict=True))
        return max(together_s / max(1, room), *needs_s, 0.0)

    def _left_by(self, start: Allocation) -> str:
        """Return what a run that ended left running on its GPUs, as text; without the lock, for it takes long."""
        return self._pool.left_on(start.leased) if self._pool is not None and not start.job.keeps else ""

    def _wait_or_stop(self, wait_s: float) -> None:
        """Wait for so long, or until no run starts any more."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_over, wait_s)

    def _wait(self) -> None:
        """Wait for a change: of our own runs, and one of the threads also for other processes."""
        waiting = self._pool.waiting if self._pool is not None else None
        if waiting is None or self._is_polling:
            self._condition.wait()
            return
        self._is_polling = True
        try:
            if waiting.for_foreign and self._pool is not None and self._pool.is_out_of_date:
                self._list_foreign(self._pool)
                return
            self._show(waiting.text)
            self._condition.wait(waiting.poll_s)
        finally:
            self._is_polling = False

    def _list_foreign(self, pool: GpuAllocator) -> None:
        """List foreign processes while others use the scheduler: it starts tools."""
        self._condition.release()
        try:
            pool.foreign()
        finally:
            self._condition.acquire()

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._on_wait(text)

    def _next(self) -> Allocation | None:
        """Start the first of the waiting runs that can; None where none can now."""
        keys = {key for running in self._running.values() for key in running.start.job.keys}
        head, waited = None, None  # the first that waits for GPUs, and what for
        for job in self._in_turn():
            if keys & job.keys:
                keys |= job.keys  # nobody gets past it with one of them
            elif (start := self._start_of(job, head)) is not None:
                return self._begin(start, head)
            elif head is None and self._needs_gpus(job):
                head, waited = job, self._pool.waiting if self._pool is not None else None
        self._head = head.position if head is not None else None
        if self._pool is not None:
            self._pool.waiting = waited
        return None

    def _in_turn(self) -> list[Job]:
        """Return the waiting runs that may start now in their order; the one with a reservation is the first."""
        looked_at = self._waiting[: 1 if self._in_order else _LOOK_AHEAD]
        return sorted(looked_at, key=lambda job: job.position != self._head)

    def _needs_gpus(self, job: Job) -> bool:
        return self._pool is not None and (job.gpus > 0 or job.exclusive)

    def _room_for(self, job: Job, head: Job | None) -> tuple[int, ...] | None:
        """Return the GPUs that a run can start with now, none for one that needs none; None where it cannot."""
        if self._pool is None or not self._needs_gpus(job):
            without = sum(not running.start.leased for running in self._running.values())
            return () if without < self._cpu_slots else None
        if head is None:
            return self._pool.take(job, passes=False)
        usable = self._pool.usable(head)
        if usable is None:
            return self._pool.take(job, passes=True)
        passing = [running for running in self._running.values() if running.passed == head.position]
        used = sum(len(usable.intersection(running.start.leased)) for running in passing)
        if len(usable) - used - job.gpus < head.gpus:
            return None
        return self._pool.take(job, passes=True, spared=head.allowed)  # what it keeps would be missed meanwhile

    def _start_of(self, job: Job, head: Job | None) -> Allocation | None:
        """Return the start of a run, also of one that cannot have GPUs any more; None where it waits."""
        try:
            leased = self._room_for(job, head)
        except UsageProblem as problem:
            if not self._has_begun:
                raise
            return Allocation(job=job, problem=problem)
        return Allocation(job=job, leased=leased) if leased is not None else None

    def _begin(self, start: Allocation, head: Job | None) -> Allocation:
        self._waiting.remove(start.job)
        self._head = head.position if head is not None else None
        self._has_begun = True
        self._add(_Running(start, self._clock(), self._head if start.leased else None))
        return start

    def _add(self, begun: _Running) -> None:
        """Note of a run that begins, and of those that go on now, that they were beside each other."""
        if self._pool is not None:
            begun.beside.update(dict.fromkeys(self._pool.beside()))
        for running in self._running.values():
            if running.is_blocked or begun.is_blocked:
                continue
            begun.beside[running.start.job.run_id] = None
            if len(running.beside) < MOST_BESIDE:
                running.beside[begun.start.job.run_id] = None
        self._running[begun.start.job.position] = begun


def _longest_first(jobs: Sequence[Job]) -> list[Job]:
    """Return jobs by their durations, of alike ones those with many GPUs first: what is small fills what they leave.

    One whose duration is not known is taken for one like the others.
    """
    known = sorted(job.expected_s for job in jobs if job.expected_s is not None)
    typical_s = known[len(known) // 2] if known else 0.0

    def key(job: Job) -> tuple[float, int, int]:
        return (-(typical_s if job.expected_s is None else job.expected_s), -job.gpus, job.position)

    return sorted(jobs, key=key)
